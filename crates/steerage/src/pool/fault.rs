//! Has the k-th allocation of the test's thread fail.

use std::cell::Cell;

thread_local! {
    /// Allocations to come up to and with the one that fails; 0: none will.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// From now on the `nth` allocation, counted from 1, finds nothing. 0: none does.
pub(crate) fn fail(nth: u64) {
    LEFT.set(nth);
}

/// Whether the one that was to fail did.
pub(crate) fn has_failed() -> bool {
    LEFT.get() == 0
}

/// Asked once by each allocation.
pub(super) fn is_due() -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left == 1
}
