//! Reads the kernel's links, addresses, routes and neighbours, and receives their changes:
//! rtnetlink(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_timeout,
};
use rustix::net::{
    AddressFamily as Family, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

const ROUTE: Option<rustix::net::Protocol> = None;

/// The multicast groups for links, for neighbours, and for the addresses and routes of both
/// families (`RTMGRP_` of linux/rtnetlink.h).
const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// The size of the socket's receive buffer, which holds about ten thousand route changes.
const EVENT_BYTES: usize = 8 << 20;

/// The kernel replies in datagrams of up to 32 KiB.
const READ_BYTES_MAX: usize = 256 << 10;

/// The maximum number of datagrams that are read at a time.
const READS_MAX: usize = 4096;

/// The timeout for a reply. The kernel replies at once, even under load, or never.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximum number of dumps if changes interrupt them. After the last dump, the reported changes
/// must suffice.
const DUMPS_MAX: usize = 3;

pub(super) type Each<'a> = &'a mut dyn FnMut(RouteNetlinkMessage, u16);

#[derive(Debug)]
pub(super) struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Events {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(Family::NETLINK, SocketType::RAW, flags, ROUTE)?;
        // Root may exceed the limit that applies to other users. If the buffer overflows, the
        // tables are read again.
        if set_socket_recv_buffer_size_force(&socket, EVENT_BYTES).is_err() {
            set_socket_recv_buffer_size(&socket, EVENT_BYTES)?;
        }
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Self { socket, buffer: vec![0; READ_BYTES_MAX] })
    }

    /// Reads the changes that have arrived. Returns false if the kernel dropped changes.
    pub(super) fn read(&mut self, each: Each<'_>) -> bool {
        let mut complete = true;
        for _ in 0..READS_MAX {
            match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((read, _)) => {
                    messages(&self.buffer[..read], each);
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => complete = false,
                Err(_) => break,
            }
        }
        complete
    }
}

/// Requests all tables. Each table comes after the tables that it refers to.
pub(super) fn dump(each: Each<'_>) -> io::Result<()> {
    let routes = |family| {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        RouteNetlinkMessage::GetRoute(message)
    };
    let questions = [
        RouteNetlinkMessage::GetLink(LinkMessage::default()),
        RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        routes(AddressFamily::Inet),
        routes(AddressFamily::Inet6),
        RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
    ];
    ask(&questions, each)
}

pub(super) fn ask(questions: &[RouteNetlinkMessage], each: Each<'_>) -> io::Result<()> {
    let socket = socket_with(Family::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, ROUTE)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut buffer = vec![0; READ_BYTES_MAX];
    for question in questions {
        for _ in 0..DUMPS_MAX {
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_REQUEST | NLM_F_DUMP;
            let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question.clone()));
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            send(&socket, &bytes, SendFlags::empty())?;
            if answer(&socket, &mut buffer, each)? {
                break;
            }
        }
    }
    Ok(())
}

/// Reads a reply to its end. Returns false if the tables changed meanwhile.
fn answer(socket: &OwnedFd, buffer: &mut [u8], each: Each<'_>) -> io::Result<bool> {
    let mut consistent = true;
    loop {
        let (read, _) = match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        let mut interrupted = false;
        let done = messages(&buffer[..read], &mut |message, flags| {
            interrupted |= flags & NLM_F_DUMP_INTR != 0;
            each(message, flags);
        });
        consistent &= !interrupted;
        if done {
            return Ok(consistent);
        }
    }
}

/// Parses a datagram. Returns true if the datagram ends a reply.
fn messages(mut bytes: &[u8], each: Each<'_>) -> bool {
    while let Some(length) = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let Some(message) = bytes.get(..length).filter(|message| !message.is_empty()) else { break };
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(NetlinkMessage::into_parts) {
            Ok((header, NetlinkPayload::InnerMessage(message))) => each(message, header.flags),
            Ok((_, NetlinkPayload::Done(_) | NetlinkPayload::Error(_))) => return true,
            Ok(_) => {}
            // Newer kernels send messages that this program does not know.
            Err(error) => tracing::debug!("a message of the kernel's is not understood: {error}"),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}
