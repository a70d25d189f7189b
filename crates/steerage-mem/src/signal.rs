//! Signals that threads outside of the path can wait for, such as the end of a run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::park::{Bell, Events, wait};

/// A bell that rings as long as a condition is true. Only the signal itself silences it, so any
/// number of threads can wait for it.
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

    /// Sets whether the condition is true. Callers exclude each other, by the control lock or
    /// because there is only one caller. A change of the condition takes a system call.
    pub fn set(&self, yes: bool) {
        // Relaxed: only the callers read the flag, and they exclude each other.
        if self.rings.swap(yes, Ordering::Relaxed) != yes {
            if yes { self.bell.ring() } else { _ = self.bell.hush() }
        }
    }

    /// A file descriptor that is readable as long as the condition is true. Reading from it is an
    /// error, so one reader cannot consume the signal of another.
    ///
    /// # Errors
    /// As [`Events::new`].
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Events::new(&self.bell, [])?.try_clone()
    }

    /// Waits until `is_true` returns true or `timeout` is over. Either this signal or the signal
    /// `or` announces that `is_true` may have changed. Returns the last result of `is_true`.
    pub fn wait(&self, timeout: Duration, or: &Self, is_true: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if is_true() {
                return true;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            // An error of `ppoll` means that waiting is impossible, because the kernel has too
            // little memory. The function then returns the current state.
            if left.is_zero() || wait(&self.bell, &[or.bell.as_fd()], Some(left)).is_err() {
                return is_true();
            }
        }
    }
}
