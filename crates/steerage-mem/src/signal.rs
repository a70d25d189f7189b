//! What threads outside of the path can wait for, such as the end of a run.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::park::{Bell, Events, wait};

/// A bell that rings as long as something is true. Nobody but the signal itself silences it, so any number of threads can
/// wait for it.
#[derive(Debug)]
pub struct Signal {
    bell: Bell,
    rings: AtomicBool,
}

impl Signal {
    /// A silent signal.
    ///
    /// # Errors
    /// As [`Bell::new`].
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, rings: AtomicBool::new(false) })
    }

    /// Sets whether it is true. Callers exclude each other, by the control lock or because only one of them calls. It takes a
    /// system call if the answer changes.
    pub fn set(&self, yes: bool) {
        // Relaxed: only callers, who exclude each other, read it.
        if self.rings.swap(yes, Ordering::Relaxed) != yes {
            if yes { self.bell.ring() } else { self.bell.hush() }
        }
    }

    /// A file descriptor that is readable as long as it is true. Reading from it is an error, so no owner takes the signal from
    /// others.
    ///
    /// # Errors
    /// As [`Events::new`].
    pub fn fd(&self) -> io::Result<OwnedFd> {
        Events::new(&self.bell, [])?.try_clone()
    }

    /// Waits until `is_true`, which this signal or the signal `or` announces, or until `timeout` is over. Returns whether it
    /// is true.
    pub fn wait(&self, timeout: Duration, or: &Self, is_true: impl Fn() -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if is_true() {
                return true;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            // An error of `ppoll` means that nobody can wait here, for lack of memory. What is known by then counts.
            if left.is_zero() || wait(&self.bell, &[or.bell.as_fd()], Some(left)).is_err() {
                return is_true();
            }
        }
    }
}
