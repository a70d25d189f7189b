use std::cell::Cell;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Makes the page allocation with the number `nth`, counted from 1, fail. If `nth` is 0, no
/// allocation fails.
pub(crate) fn fail(nth: u64) {
    LEFT.set(nth);
}

pub(crate) fn has_failed() -> bool {
    LEFT.get() == 0
}

pub(crate) fn is_due() -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left == 1
}
