//! Receives the kernel's messages about devices that appear, change and disappear
//! (lib/kobject_uevent.c of the kernel). Examples are the queues of an interface, and CPUs that go
//! offline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::netlink::KOBJECT_UEVENT;

use crate::socket::Socket;

/// The multicast group of the kernel's own messages. udev sends its messages to another group.
const KERNEL: u32 = 1;

/// Receives messages without waiting for them. Poll the socket's descriptor to find out when
/// messages arrive.
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
    /// Starts to receive the messages of this thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        Socket::open(Some(KOBJECT_UEVENT), KERNEL).map(Self)
    }

    /// Passes the action (such as `add`, `remove` or `online`) and the path below /sys of each
    /// message that has arrived to `each`. Returns false if messages were lost because too many
    /// arrived before they were read.
    pub fn read(&mut self, each: &mut dyn FnMut(&str, &str)) -> bool {
        self.0.read_datagrams(&mut |datagram| {
            // The first text of the datagram is `ACTION@PATH`. The texts after the first text
            // repeat the action and the path.
            let first = datagram.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some((action, path)) = std::str::from_utf8(first).ok().and_then(|text| text.split_once('@')) {
                each(action, path);
            }
        })
    }
}
