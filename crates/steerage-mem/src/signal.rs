//! [`Signal`]: threads outside of the receive path can wait for a condition.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::park::{Bell, Events, wait};

/// A bell (an eventfd) that rings as long as its condition is true, for any number of threads.
#[derive(Debug)]
pub struct Signal {
    bell: Bell,
    rings: AtomicBool,
}

impl Signal {
    /// Creates a silent signal.
    ///
    /// # Errors
    /// Returns the errors of [`Bell::new`].
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, rings: AtomicBool::new(false) })
    }

    /// Sets whether the condition is true. No two threads call `set` at the same time: they hold
    /// the control lock, or there is only one caller.
    pub fn set(&self, yes: bool) {
        // Relaxed: only the callers of `set` read this flag.
        if self.rings.swap(yes, Ordering::Relaxed) != yes {
            if yes { self.bell.ring() } else { _ = self.bell.hush() }
        }
    }

    /// A file descriptor that is readable as long as the condition is true. Reading from the
    /// descriptor fails.
    ///
    /// # Errors
    /// Returns the errors of [`Events::new`].
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Events::new(&self.bell, [])?.try_clone()
    }

    /// Waits until `is_true` returns true or `timeout` has passed, and returns the last result.
    /// `wait` calls `is_true` again whenever one of the signals `self` and `or` rings.
    pub fn wait(&self, timeout: Duration, or: &Self, is_true: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if is_true() {
                return true;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            // `ppoll` fails if the kernel has too little memory.
            if left.is_zero() || wait(&self.bell, &[or.bell.as_fd()], Some(left)).is_err() {
                return is_true();
            }
        }
    }
}
