//! Reads the state of an interface and follows its changes through rtnetlink (RFC 3549).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use super::sys::{self, Queues};

const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
/// The hooks of an interface that can hold a program (`enum xdp_mode`): in the driver, after the
/// driver, and in the card. Each has the attribute that reports the program's number, and the flag
/// that names the hook in requests (`XDP_FLAGS_*`).
const PLACES: [(u16, u32); 3] = [(5, 1 << 2), (6, 1 << 1), (7, 1 << 3)];
const NLA_F_NESTED: u16 = 1 << 15;
/// The multicast group that receives every change of a link.
const RTMGRP_LINK: u32 = 1;
const IFF_UP: u32 = 1;
/// Message and interface headers: `struct nlmsghdr`, `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;

/// The longest message. It contains the statistics of a link and of a hundred virtual functions.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of messages that are read before the answer.
const MESSAGES_MAX: usize = 64;

pub(super) const ETHERNET: u16 = 1;

/// An interface, as the kernel last reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    /// An `ARPHRD_` number.
    pub(super) hardware: u16,
    pub(super) up: bool,
    /// The longest packet that the interface sends, without the link header.
    pub(super) mtu: usize,
    /// The attached XDP program, if any.
    pub(super) program: Option<Occupant>,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupant {
    /// The program's number.
    pub(super) id: u32,
    /// The program's hook: a flag of [`PLACES`].
    pub(super) place: u32,
}

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Now(Interface),
    Deleted,
}

/// A socket that asks the kernel about interfaces, or receives their changes.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Netlink {
    fn open(groups: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | if groups == 0 { SockFlag::empty() } else { SockFlag::SOCK_NONBLOCK };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self { socket: fd, buffer: vec![0; MESSAGE_BYTES_MAX].into() })
    }

    /// A socket that receives changes and never waits for them.
    pub(super) fn listening() -> io::Result<Self> {
        Self::open(RTMGRP_LINK)
    }

    /// The interface with that name.
    pub(super) fn look(name: &str) -> io::Result<Interface> {
        let mut netlink = Self::open(0)?;
        let mut named = name.as_bytes().to_vec();
        named.push(0);
        send(netlink.socket.as_raw_fd(), &message(RTM_GETLINK, 0, IFLA_IFNAME, &named), MsgFlags::empty())?;
        netlink.answer()?.ok_or_else(|| io::Error::other("the kernel did not answer"))
    }

    /// Removes the program that is attached at that hook of the interface without a link.
    pub(super) fn detach(interface: u32, place: u32) -> io::Result<()> {
        Self::set_program(interface, -1, place)
    }

    /// Attaches the program with that descriptor, or none for -1, at that hook without a link. The
    /// hook must be named. Otherwise the kernel chooses the driver's hook if the driver supports
    /// XDP, and removes no program from the hook after the driver.
    pub(super) fn set_program(interface: u32, program: i32, place: u32) -> io::Result<()> {
        let mut netlink = Self::open(0)?;
        let mut asked = attribute(IFLA_XDP_FD, &program.to_ne_bytes());
        asked.extend(attribute(IFLA_XDP_FLAGS, &place.to_ne_bytes()));
        let request = message(RTM_SETLINK, interface, IFLA_XDP | NLA_F_NESTED, &asked);
        send(netlink.socket.as_raw_fd(), &request, MsgFlags::empty())?;
        netlink.answer().map(drop)
    }

    /// Waits for the answer to a request. The answer is an interface or a success.
    fn answer(&mut self) -> io::Result<Option<Interface>> {
        for _ in 0..MESSAGES_MAX {
            let bytes = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            for (kind, body) in messages(&self.buffer[..bytes]) {
                match kind {
                    RTM_NEWLINK => return Ok(interface(body)),
                    NLMSG_ERROR => {
                        return match word(body, 0).unwrap_or(0) as i32 {
                            0 => Ok(None),
                            error => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    _ => {}
                }
            }
        }
        Err(io::Error::other("the kernel did not answer"))
    }

    /// The last change of the interface since the last call, if there was one. `Err` means that
    /// changes may have been missed.
    pub(super) fn changes(&mut self, index: u32) -> io::Result<Option<Change>> {
        let mut last = None;
        loop {
            let bytes = match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(bytes) => bytes,
                Err(nix::errno::Errno::EAGAIN) => return Ok(last),
                Err(error) => return Err(error.into()),
            };
            for (kind, body) in messages(&self.buffer[..bytes]) {
                let Some(told) = interface(body).filter(|told| told.index == index) else { continue };
                match kind {
                    RTM_NEWLINK => last = Some(Change::Now(told)),
                    RTM_DELLINK => return Ok(Some(Change::Deleted)),
                    _ => {}
                }
            }
        }
    }
}

/// The number of queues of an interface. If the driver does not report it, the number is 1 of each
/// kind.
pub(super) fn queues(name: &str) -> Queues {
    let said = Netlink::open(0).ok().and_then(|netlink| sys::queues(netlink.as_fd(), name));
    said.unwrap_or(Queues { receive: 1, send: 1 })
}

fn message(kind: u16, interface: u32, attribute_kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = attribute(attribute_kind, value);
    let bytes = (HEADER_BYTES + INFO_BYTES + attribute.len()) as u32;
    let mut message = bytes.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | if kind == RTM_GETLINK { 0 } else { NLM_F_ACK }).to_ne_bytes());
    message.extend([0; HEADER_BYTES - 8 + 4]);
    message.extend(interface.to_ne_bytes());
    message.resize(HEADER_BYTES + INFO_BYTES, 0);
    message.extend(attribute);
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut attribute = (4 + value.len() as u16).to_ne_bytes().to_vec();
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// Splits received bytes into messages, each with its type.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        let body = bytes.get(HEADER_BYTES..len)?;
        let kind = half(bytes, 4)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Splits a message into attributes, each with its type.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(half(bytes, 0)?);
        let value = bytes.get(4..len)?;
        let kind = half(bytes, 2)? & !NLA_F_NESTED;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn interface(body: &[u8]) -> Option<Interface> {
    let (mut mtu, mut program) = (0, None);
    for (kind, value) in attributes(body.get(INFO_BYTES..)?) {
        match kind {
            IFLA_MTU => mtu = word(value, 0)? as usize,
            IFLA_XDP => {
                let of_place = |(kind, id)| {
                    let (_, place) = PLACES.into_iter().find(|(attribute, _)| *attribute == kind)?;
                    Some(Occupant { id: word(id, 0).filter(|id| *id > 0)?, place })
                };
                program = attributes(value).find_map(of_place);
            }
            _ => {}
        }
    }
    Some(Interface { index: word(body, 4)?, hardware: half(body, 2)?, up: word(body, 8)? & IFF_UP != 0, mtu, program })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|half| half.try_into().ok()).map(u16::from_ne_bytes)
}
