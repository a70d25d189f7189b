//! Polls a receive queue until its device has ended.

use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::testing::{Headed, QueueTester};
use steerage::{
    DeviceError, LinkType, Timestamp,
    device::{Polled, RxQueue},
};

use crate::HANG;

/// A device under test must end after at most this many polls that return frames.
pub const POLLS_MAX: usize = 1_000_000;

/// Receives all frames of a queue whose device can wait, such as a capture file.
pub fn drain(queue: Box<dyn RxQueue>) -> (Vec<Vec<u8>>, Result<(), DeviceError>, u64) {
    let mut all = Vec::new();
    let (tester, end) = poll_to_end(queue, |tester| {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64)?;
        all.extend(frames);
        Ok(polled)
    });
    (all, end, tester.wire_bytes())
}

/// Like [`drain`], but returns each frame with its link type. The queue must not fail.
pub fn drain_with_links(queue: Box<dyn RxQueue>) -> Vec<(Vec<u8>, LinkType)> {
    let mut all = Vec::new();
    let (_, end) = poll_to_end(queue, |tester| {
        let (polled, frames) = tester.poll(Timestamp::ZERO, 64)?;
        let link = tester.link();
        all.extend(frames.into_iter().map(|frame| (frame, link)));
        Ok(polled)
    });
    end.expect("a queue that can be read");
    all
}

/// Like [`drain`], but returns each frame with its metadata. The queue must not fail.
pub fn drain_headed(queue: Box<dyn RxQueue>) -> Vec<Headed> {
    let mut all = Vec::new();
    let (_, end) = poll_to_end(queue, |tester| {
        let (polled, frames) = tester.poll_with_headers(Timestamp::ZERO, 64)?;
        all.extend(frames);
        Ok(polled)
    });
    end.expect("a sound device");
    all
}

fn poll_to_end(
    queue: Box<dyn RxQueue>,
    mut poll: impl FnMut(&mut QueueTester) -> Result<Polled, DeviceError>,
) -> (QueueTester, Result<(), DeviceError>) {
    let mut tester = QueueTester::new(queue).expect("memory for a test");
    let mut polls = 0;
    while polls < POLLS_MAX {
        match poll(&mut tester) {
            Ok(Polled::Ended) => return (tester, Ok(())),
            Ok(Polled::Drained) => wait_for_data(&tester),
            Ok(_) => polls += 1,
            Err(error) => return (tester, Err(error)),
        }
    }
    panic!("it does not end");
}

/// Waits for data, or yields to other threads if the queue has no file descriptor.
pub fn wait_for_data(tester: &QueueTester) {
    match tester.queue().wait_on() {
        Some(fd) => {
            let limit = PollTimeout::try_from(HANG).expect("a timeout that poll takes");
            let ready = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], limit);
            assert_ne!(ready, Ok(0), "no data comes");
        }
        None => thread::yield_now(),
    }
}
