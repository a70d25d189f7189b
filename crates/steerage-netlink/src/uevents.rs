//! Receives the kernel's messages about devices that appear, change and disappear
//! (lib/kobject_uevent.c of the kernel). Examples of such devices are the queues of an interface,
//! and CPUs that go offline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::netlink::KOBJECT_UEVENT;

use crate::socket::Socket;

/// The netlink multicast group to which the kernel sends its messages about devices. (udev sends
/// messages to another group.)
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
    /// Starts to receive the kernel's messages about devices in this thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket.
    pub fn open() -> io::Result<Self> {
        Socket::open(Some(KOBJECT_UEVENT), KERNEL).map(Self)
    }

    /// Calls `each` for each message about a device that has arrived. The arguments of `each` are
    /// the action, such as `add`, `remove` or `online`, and the device's path below /sys. Returns
    /// false if messages were lost because the socket's buffer was full.
    pub fn read(&mut self, each: &mut dyn FnMut(&str, &str)) -> bool {
        self.0.read_datagrams(&mut |datagram| {
            // A datagram about a device contains several strings. Each string ends with a zero
            // byte. The first string is `ACTION@PATH`. Later strings repeat the action and the
            // path.
            let first = datagram.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some((action, path)) = std::str::from_utf8(first).ok().and_then(|text| text.split_once('@')) {
                each(action, path);
            }
        })
    }
}
