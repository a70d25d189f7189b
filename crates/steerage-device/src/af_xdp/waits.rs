use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage_netlink::Changes;

const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(512);

/// Waits before another attempt, while the kernel cleans up after a process that has just ended, or
/// another process changes a dispatcher. Each of the ten waits is twice as long as the previous
/// wait.
#[derive(Debug)]
pub(super) struct Waits(Duration);

impl Waits {
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    pub(super) fn are_over(&self) -> bool {
        self.0 > LAST
    }

    pub(super) fn sleep(&mut self) {
        thread::sleep(self.0);
        self.0 *= 2;
    }
}

/// Waits until `changes` has messages, or until the file descriptor `end` is readable or closed.
/// Returns true if `end` is.
pub(super) fn has_ended(end: BorrowedFd<'_>, changes: &Changes, wait: PollTimeout) -> nix::Result<bool> {
    let mut fds = [end, changes.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, wait) {
        Ok(_) | Err(Errno::EINTR) => Ok(fds[0].any().unwrap_or(false)),
        Err(error) => Err(error),
    }
}
