//! The kernel's messages about changed links, addresses, routes and neighbours: rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_route::link::LinkHeader;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use crate::entry::Change;
use crate::socket::Socket;

/// The multicast groups for links, and for neighbours, addresses and routes (`RTMGRP_` in
/// linux/rtnetlink.h).
const LINKS: u32 = 0x1;
const TABLES: u32 = 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// The size of the receive buffer for all tables in bytes: about ten thousand changes of routes.
const BUFFER_BYTES: usize = 8 << 20;

/// Receives the kernel's reports of changes. Never waits for a report. Poll the socket's file
/// descriptor to find out when changes arrive.
///
/// ```
/// let mut changes = steerage_netlink::Changes::of_all()?;
/// let is_complete = changes.read(&mut |change| println!("{change:?}"));
/// # assert!(is_complete);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Changes {
    socket: Socket,
    /// The link whose changes are read, or `None` for all links and tables.
    link: Option<u32>,
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

impl Changes {
    /// Starts to receive the changes of one link.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket.
    pub fn of_link(link: u32) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(None, LINKS)?, link: Some(link) })
    }

    /// Starts to receive the changes of all links.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket.
    pub fn of_links() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(None, LINKS)?, link: None })
    }

    /// Starts to receive the changes of all links, addresses, routes and neighbours.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket.
    pub fn of_all() -> io::Result<Self> {
        let socket = Socket::open(None, LINKS | TABLES)?;
        // Root may exceed the system's limit on receive buffers.
        if set_socket_recv_buffer_size_force(&socket.fd, BUFFER_BYTES).is_err() {
            set_socket_recv_buffer_size(&socket.fd, BUFFER_BYTES)?;
        }
        Ok(Self { socket, link: None })
    }

    /// Calls `each` with every change that has arrived. Returns false if changes were lost.
    pub fn read(&mut self, each: &mut dyn FnMut(Change)) -> bool {
        let link = self.link;
        self.socket.read(&mut |message| {
            // A full parse allocates memory, so messages about other links are skipped first.
            if link.is_none_or(|link| LinkHeader::parse(message.body).is_ok_and(|header| header.index == link)) {
                Change::from_message(message).into_iter().for_each(&mut *each);
            }
        })
    }
}
