//! The number of the last slice, for threads that do not hold the lock of the state machine.

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
    /// Writes the number of the last slice, and whether this slice is still under way. The caller
    /// holds the lock of the state machine.
    pub fn publish(&self, moves: &Moves) {
        let ended = 2 * moves.slice.epoch;
        // A thread that sees a packet which was sent after the slice began or ended also sees that
        // the slice began or ended.
        self.0.store(ended - u64::from(moves.slice().is_some()), Ordering::Release);
    }

    /// Returns the number of the last slice (0 before the first slice), or `None` while a slice is
    /// under way.
    pub fn number(&self) -> Option<u64> {
        let published = self.0.load(Ordering::Acquire);
        (published % 2 == 0).then_some(published / 2)
    }
}
