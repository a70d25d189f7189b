use std::thread;
use std::time::Duration;

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
