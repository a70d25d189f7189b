//! [`Signal`]: threads outside of the receive path can wait for a condition, such as the end of a
//! run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::park::{Bell, Events, wait};

/// A bell (an eventfd) that rings as long as its condition is true. Reading does not silence the
/// bell of a signal, so any number of threads can wait for the same signal.
#[derive(Debug)]
pub struct Signal {
    bell: Bell,
    rings: AtomicBool,
}

impl Signal {
    /// Creates a silent signal.
    ///
    /// # Errors
    /// As [`Bell::new`].
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, rings: AtomicBool::new(false) })
    }

    /// Sets whether the signal's condition is true. No two threads call `set` at the same time: the
    /// callers hold the control lock, or there is only one caller. If the condition changes, `set`
    /// makes a system call.
    pub fn set(&self, yes: bool) {
        // Relaxed: only the callers of `set` read this flag, and two callers never run at the same
        // time.
        if self.rings.swap(yes, Ordering::Relaxed) != yes {
            if yes { self.bell.ring() } else { _ = self.bell.hush() }
        }
    }

    /// A file descriptor that is readable as long as the condition is true. Reading from the file
    /// descriptor fails. Therefore a thread cannot consume a signal that another thread waits for.
    ///
    /// # Errors
    /// As [`Events::new`].
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Events::new(&self.bell, [])?.try_clone()
    }

    /// Waits until `is_true` returns true or `timeout` has passed. The function `is_true` is called
    /// again whenever this signal or the signal `or` rings. Returns the result of the last call of
    /// `is_true`.
    pub fn wait(&self, timeout: Duration, or: &Self, is_true: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if is_true() {
                return true;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            // An error of `ppoll` means that the thread cannot wait, because the kernel has too
            // little memory. If `ppoll` fails, `wait` returns the current result of `is_true`.
            if left.is_zero() || wait(&self.bell, &[or.bell.as_fd()], Some(left)).is_err() {
                return is_true();
            }
        }
    }
}
