//! A clock that is set by hand, for CPUs that a test steps.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use steerage::{Bell, Handle, Handler, Platform, Softnet, Stepped, Timestamp};

#[derive(Clone, Default)]
pub(crate) struct ByHand(Rc<Cell<Duration>>);

impl ByHand {
    pub(crate) fn advance(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

impl Platform for ByHand {
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

/// Stops two CPUs, and sees that the ledger balances then and every page is home.
pub(crate) fn end<H: Handler>(handle: &Handle, cpus: [&mut Softnet<H, ByHand>; 2]) {
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
