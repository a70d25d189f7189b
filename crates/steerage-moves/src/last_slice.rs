use std::sync::atomic::{AtomicU64, Ordering};

use crate::Moves;

/// The number of the last slice, for threads that do not hold the state machine's lock.
///
/// ```
/// use steerage_moves::LastSlice;
///
/// assert_eq!(LastSlice::default().number(), Some(0));
/// ```
#[derive(Debug, Default)]
pub struct LastSlice(AtomicU64);

impl LastSlice {
    /// Writes the last slice's number, and whether its move goes on. The caller holds the lock.
    pub fn publish(&self, moves: &Moves) {
        let ended = 2 * moves.slice.epoch;
        // Release: a thread that sees a packet from after the move's beginning or end also sees the
        // new number.
        self.0.store(ended - u64::from(moves.slice().is_some()), Ordering::Release);
    }

    /// Returns the number of the last slice (0 before the first), or `None` during a move.
    pub fn number(&self) -> Option<u64> {
        let published = self.0.load(Ordering::Acquire);
        (published % 2 == 0).then_some(published / 2)
    }
}
