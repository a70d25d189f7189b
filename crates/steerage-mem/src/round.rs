//! Marks when the thread of a packet CPU is inside of a round (one pass of the CPU's loop). With
//! debug assertions, the marks are used to check that a round neither waits for a lock nor
//! allocates memory. Without debug assertions, the marks do nothing.
//!
//! A mark belongs to the thread that runs the round. While a handler runs, the thread is not
//! marked, because handlers may wait and allocate memory.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static IS_IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// A guard that keeps the thread marked as inside or outside of a round (a pass of the CPU's loop)
/// until the guard is dropped.
#[derive(Debug)]
#[must_use]
pub struct Mark {
    #[cfg(debug_assertions)]
    before: bool,
}

#[inline(always)]
fn mark(is_in_round: bool) -> Mark {
    #[cfg(not(debug_assertions))]
    let _ = is_in_round;
    Mark {
        #[cfg(debug_assertions)]
        before: IS_IN_ROUND.replace(is_in_round),
    }
}

/// Marks the calling thread as inside of a round (a pass of the CPU's loop) until the returned
/// value is dropped.
#[inline(always)]
pub fn enter() -> Mark {
    mark(true)
}

/// Marks the calling thread as outside of its round (a pass of the CPU's loop) until the returned
/// value is dropped.
#[inline(always)]
pub fn leave() -> Mark {
    mark(false)
}

/// Returns true if the calling thread is in a round (a pass of the CPU's loop). Without debug
/// assertions, the result is always false.
#[inline(always)]
pub fn is_inside() -> bool {
    #[cfg(debug_assertions)]
    return IS_IN_ROUND.get();
    #[cfg(not(debug_assertions))]
    false
}

#[cfg(debug_assertions)]
impl Drop for Mark {
    #[inline]
    fn drop(&mut self) {
        IS_IN_ROUND.set(self.before);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn marks_nest_and_end_also_by_a_panic() {
        assert!(!is_inside());
        let round = enter();
        {
            let _handler = leave();
            assert!(!is_inside());
        }
        assert!(is_inside());
        let panicked = std::panic::catch_unwind(|| {
            let _handler = leave();
            panic!("a handler");
        });
        assert!(panicked.is_err() && is_inside());
        drop(round);
        assert!(!is_inside());
    }
}
