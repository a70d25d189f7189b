//! The number of the last slice (a set of buckets that move together), for threads that do not hold
//! the state machine's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Moves;

/// The number of the last slice. The thread that holds the lock of the state machine writes the
/// number, and any thread can read it.
///
/// ```
/// use steerage_moves::LastSlice;
///
/// assert_eq!(LastSlice::default().number(), Some(0));
/// ```
#[derive(Debug, Default)]
pub struct LastSlice(AtomicU64);

impl LastSlice {
    /// Writes the number of the last slice (a set of buckets that move together), and whether its
    /// move is still under way. The caller holds the lock of the state machine.
    pub fn publish(&self, moves: &Moves) {
        let ended = 2 * moves.slice.epoch;
        // If a packet is sent after the move of a slice began or ended, a thread that sees this
        // packet also sees that the move began or ended.
        self.0.store(ended - u64::from(moves.slice().is_some()), Ordering::Release);
    }

    /// Returns the number of the last slice, a set of buckets that move together. Returns 0 before
    /// the first slice. Returns `None` while a slice (a set of buckets) is moving.
    pub fn number(&self) -> Option<u64> {
        let published = self.0.load(Ordering::Acquire);
        (published % 2 == 0).then_some(published / 2)
    }
}
