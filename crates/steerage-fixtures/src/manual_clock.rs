//! A clock that a test sets, for simulated CPUs that the test runs step by step.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use steerage::{
    Handle, Handler, Timestamp,
    threads::{Bell, Platform, Softnet, Stepped},
};

/// A clock that a test sets. All clones of a clock show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Rc<Cell<Duration>>);

impl ManualClock {
    /// Advances the clock by `time`.
    pub fn advance(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

impl Platform for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.0.get()
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], _: Option<Timestamp>) -> io::Result<()> {
        Ok(())
    }

    fn random(&mut self) -> u64 {
        0
    }
}

/// Stops two simulated CPUs. Checks that every received packet was delivered or counted as dropped,
/// and that every page has returned to the page pool.
pub fn end<H: Handler>(handle: &Handle, cpus: [&mut Softnet<H, ManualClock>; 2]) {
    handle.stop();
    let mut ended = [false; 2];
    let [first, second] = cpus;
    while ended != [true; 2] {
        ended[1] |= second.step() == Stepped::Finished;
        ended[0] |= first.step() == Stepped::Finished;
    }
    let ledger = handle.snapshot();
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), ledger.pages_free), (0, ledger.pages));
}
