//! Polls a queue to its end.

use steerage::testing::{Headed, QueueTester};
use steerage::{
    DeviceError, LinkType, Timestamp,
    device::{Polled, RxQueue},
};

/// The maximum number of polls until a device ends: far more than any test's input requires.
pub const POLLS_MAX: usize = 1_000_000;

/// All frames of a queue that can wait, until it ends or fails.
pub fn drain(queue: Box<dyn RxQueue>) -> (Vec<Vec<u8>>, Result<(), DeviceError>, u64) {
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

/// All frames of a queue that can wait, each with its link type.
pub fn drain_with_links(queue: Box<dyn RxQueue>) -> Vec<(Vec<u8>, LinkType)> {
    let mut tester = QueueTester::new(queue).expect("memory for a test");
    let mut all = Vec::new();
    for _ in 0..POLLS_MAX {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64).expect("a queue that can be read");
        let link = tester.link();
        all.extend(frames.into_iter().map(|frame| (frame, link)));
        if polled == Polled::Ended {
            return all;
        }
    }
    panic!("it does not end");
}

/// All frames of a queue that can wait, with the metadata from their device. The queue must not
/// fail.
pub fn drain_headed(queue: Box<dyn RxQueue>) -> Vec<Headed> {
    let mut tester = QueueTester::new(queue).expect("memory for a test");
    let mut all = Vec::new();
    for _ in 0..POLLS_MAX {
        let (polled, frames) = tester.poll_with_headers(Timestamp::ZERO, 64).expect("a sound device");
        all.extend(frames);
        if polled == Polled::Ended {
            return all;
        }
    }
    panic!("it does not end");
}
