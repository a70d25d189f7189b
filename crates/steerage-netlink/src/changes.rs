//! Changes that rtnetlink(7) reports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_route::link::LinkHeader;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use crate::entry::Change;
use crate::socket::Socket;

/// The group of links (`RTMGRP_` of linux/rtnetlink.h), and those of neighbours and of the addresses and routes of both
/// families.
const LINKS: u32 = 0x1;
const TABLES: u32 = 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// The receive buffer for the changes of all tables. It holds about ten thousand changes of routes.
const BUFFER_BYTES: usize = 8 << 20;

/// Receives changes, and never waits for them. Poll its descriptor to learn of new ones.
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
    /// The link whose changes are wanted, or `None` for those of all entries.
    link: Option<u32>,
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

impl Changes {
    /// Receives the changes of one link from now on.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn of_link(link: u32) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(None, LINKS)?, link: Some(link) })
    }

    /// Receives the changes of all links, addresses, routes and neighbours from now on.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn of_all() -> io::Result<Self> {
        let socket = Socket::open(None, LINKS | TABLES)?;
        // Root may exceed the limit for other users.
        if set_socket_recv_buffer_size_force(&socket.fd, BUFFER_BYTES).is_err() {
            set_socket_recv_buffer_size(&socket.fd, BUFFER_BYTES)?;
        }
        Ok(Self { socket, link: None })
    }

    /// Passes the changes that have arrived to `each`. Returns false if some were lost, because too many came before they
    /// were read.
    pub fn read(&mut self, each: &mut dyn FnMut(Change)) -> bool {
        let link = self.link;
        self.socket.read(&mut |message| {
            // The full parse allocates memory. Do not do that for the links of others.
            if link.is_none_or(|link| LinkHeader::parse(message.body).is_ok_and(|header| header.index == link)) {
                Change::from_message(message).into_iter().for_each(&mut *each);
            }
        })
    }
}
