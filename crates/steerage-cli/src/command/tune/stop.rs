//! The signals that end a measurement or `tune --watch`, through a descriptor that can be polled.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;

use crate::error::Error;
use crate::signals::{hold, to_end};

/// The signals that end a command, which are blocked, so that the process can restore the old
/// setting before it ends.
#[derive(Debug)]
pub(super) struct Stop(SignalFd);

impl Stop {
    pub(super) fn hold() -> Result<Self, Error> {
        hold(&to_end()).map(Self)
    }

    /// Waits for `time`. Returns false as soon as a signal arrives.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut waiting = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        loop {
            match ppoll(&mut waiting, Some(TimeSpec::from_duration(time)), None) {
                Ok(ready) => return ready == 0,
                Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
