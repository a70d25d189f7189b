//! Receives the kernel's messages about devices that appear, change and disappear
//! (lib/kobject_uevent.c of the kernel), such as the queues of an interface, and CPUs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::netlink::KOBJECT_UEVENT;

use crate::socket::Socket;

/// The multicast group of the kernel's messages. (udev sends messages to another group.)
const KERNEL: u32 = 1;

/// Receives the kernel's messages about devices. Never waits for a message. Poll the socket's file
/// descriptor to find out when messages about devices arrive.
///
/// ```
/// let mut events = steerage_netlink::Uevents::open()?;
/// let is_complete = events.read(&mut |action, path| println!("{action} {path}"));
/// # assert!(is_complete);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Uevents(Socket);

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl Uevents {
    /// Starts to receive messages in this thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket.
    pub fn open() -> io::Result<Self> {
        Socket::open(Some(KOBJECT_UEVENT), KERNEL).map(Self)
    }

    /// Calls `each` for each message with the action, such as `add`, `remove` or `online`, and the
    /// device's path below /sys. Returns false if messages were lost.
    pub fn read(&mut self, each: &mut dyn FnMut(&str, &str)) -> bool {
        self.0.read_datagrams(&mut |datagram| {
            // The first of a datagram's zero-terminated strings is `ACTION@PATH`.
            let first = datagram.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some((action, path)) = std::str::from_utf8(first).ok().and_then(|text| text.split_once('@')) {
                each(action, path);
            }
        })
    }
}
