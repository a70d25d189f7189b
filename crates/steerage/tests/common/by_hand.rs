//! A clock that is set by hand, for CPUs that a test steps.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use steerage::{Bell, Platform, Timestamp};

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
