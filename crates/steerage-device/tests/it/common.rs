use std::os::fd::AsRawFd;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, socket};
use steerage::Input;
use steerage::testing::QueueTester;

pub(crate) fn testers(input: Input) -> Vec<QueueTester> {
    input.queues.into_iter().map(|queue| QueueTester::new(queue).expect("memory for a test")).collect()
}

pub(crate) fn send_raw(interface: &str, frames: &[Vec<u8>]) {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let of_link = |each: InterfaceAddress| each.address?.as_link_addr().copied();
    let address = getifaddrs().unwrap().filter(|each| each.interface_name == interface).find_map(of_link).unwrap();
    bind(socket.as_raw_fd(), &address).unwrap();
    for frame in frames {
        assert_eq!(nix::sys::socket::send(socket.as_raw_fd(), frame, MsgFlags::empty()), Ok(frame.len()));
    }
}
