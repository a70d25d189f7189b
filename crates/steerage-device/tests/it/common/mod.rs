//! Helpers for the tests of several devices: polling a queue to its end, capture files, and sending
//! raw frames.

pub(crate) mod files;

use std::os::fd::AsRawFd;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, socket};
use steerage::testing::{Headed, QueueTester};
use steerage::{
    DeviceError, Input, LinkType, Timestamp,
    device::{Polled, RxQueue},
};

/// How many polls a device may need to end. This is far more than any test's input requires.
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

/// All frames of a queue that can wait, each with its link type.
pub(crate) fn drain_with_links(queue: Box<dyn RxQueue>) -> Vec<(Vec<u8>, LinkType)> {
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

/// The testers of all queues.
pub(crate) fn testers(input: Input) -> Vec<QueueTester> {
    input.queues.into_iter().map(|queue| QueueTester::new(queue).expect("memory for a test")).collect()
}

/// All frames of a queue that can wait, with the metadata from their device. The queue must not
/// fail.
pub(crate) fn drain_headed(queue: Box<dyn RxQueue>) -> Vec<Headed> {
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

/// Sends complete frames with their headers through an interface of this thread's namespace.
pub(crate) fn send_raw(interface: &str, frames: &[Vec<u8>]) {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let of_link = |each: InterfaceAddress| each.address?.as_link_addr().copied();
    let address = getifaddrs().unwrap().filter(|each| each.interface_name == interface).find_map(of_link).unwrap();
    bind(socket.as_raw_fd(), &address).unwrap();
    for frame in frames {
        assert_eq!(nix::sys::socket::send(socket.as_raw_fd(), frame, MsgFlags::empty()), Ok(frame.len()));
    }
}
