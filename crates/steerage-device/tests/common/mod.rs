//! What the tests of several devices need.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use steerage::testing::QueueTester;
use steerage::{DeviceError, Input, Polled, RxQueue, Timestamp};

/// How many polls a device may take to end: far more than any test's input needs.
pub(crate) const POLLS_MAX: usize = 1_000_000;

/// All frames of a queue that can wait, until it ends or fails.
pub(crate) fn drain(queue: Box<dyn RxQueue>) -> (Vec<Vec<u8>>, Result<(), DeviceError>, u64) {
    let mut tester = QueueTester::new(queue).expect("memory for a test");
    let mut all = Vec::new();
    for _ in 0..POLLS_MAX {
        match tester.poll(Timestamp::ZERO, 64) {
            Ok((polled, frames)) => {
                all.extend(frames);
                if polled == Polled::Ended {
                    return (all, Ok(()), tester.wire_bytes());
                }
            }
            Err(error) => return (all, Err(error), tester.wire_bytes()),
        }
    }
    panic!("it does not end");
}

/// The testers of all queues.
pub(crate) fn testers(input: Input) -> Vec<QueueTester> {
    input.queues.into_iter().map(|queue| QueueTester::new(queue).expect("memory for a test")).collect()
}
