//! Marks the rounds of packet CPUs, so that builds with debug assertions can check that a round
//! neither waits for a lock nor allocates memory. In other builds, the marks do nothing.
//!
//! The mark belongs to the thread. Handlers run outside of the mark: they may wait and allocate.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static IS_IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the thread inside or outside of a round until this value is dropped.
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

/// The calling thread is in a round until the mark is dropped.
#[inline(always)]
pub fn enter() -> Mark {
    mark(true)
}

/// The calling thread is outside of its round until the mark is dropped.
#[inline(always)]
pub fn leave() -> Mark {
    mark(false)
}

/// Returns true if the calling thread is in a round. Always false without debug assertions.
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
