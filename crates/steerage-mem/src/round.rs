//! Marks when a thread is inside of a round (one pass of a packet CPU's loop). With debug
//! assertions, this is used to check that a round neither waits for a lock nor allocates memory. A
//! thread is not marked while a handler runs, because handlers may wait for locks and allocate
//! memory.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static IS_IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the thread marked as inside or outside of a round until this value is dropped.
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

/// Marks the calling thread as inside of a round until the returned value is dropped.
#[inline(always)]
pub fn enter() -> Mark {
    mark(true)
}

/// Marks the calling thread as outside of its round until the returned value is dropped.
#[inline(always)]
pub fn leave() -> Mark {
    mark(false)
}

/// Returns true if the calling thread is in a round. Without debug assertions, always false.
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
