//! Generic netlink: families that have names, such as `ethtool`. Kernels without a family report that it is missing.

use std::io;

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_ACK, NetlinkSerializable};
use rustix::net::netlink::GENERIC;

use crate::attributes::{find, number, text_attribute};
use crate::socket::Socket;

/// The command, the version, and two unused bytes.
const HEADER_BYTES: usize = 4;
/// All commands in use have this version.
const VERSION: u8 = 1;

/// The family that knows the numbers of families: linux/genetlink.h.
const CONTROLLER: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// A socket for requests to one family.
#[derive(Debug)]
pub(crate) struct Family {
    socket: Socket,
    number: u16,
}

impl Family {
    /// Opens a socket, and asks for the family's number.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let mut family = Self { socket: Socket::for_requests(Some(GENERIC), true)?, number: CONTROLLER };
        let reply = family.request(CTRL_CMD_GETFAMILY, vec![text_attribute(CTRL_ATTR_FAMILY_NAME, name)])?;
        family.number = find(&reply, CTRL_ATTR_FAMILY_ID)
            .and_then(number)
            .and_then(|number| number.try_into().ok())
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(family)
    }

    /// Sends a command with these attributes. Returns the attributes of the reply, none if the command has no reply but
    /// its success.
    pub(crate) fn request(&mut self, command: u8, attributes: Vec<DefaultNla>) -> io::Result<Vec<u8>> {
        let mut reply = Vec::new();
        let request = Request { family: self.number, command, attributes };
        self.socket.request(request, NLM_F_ACK, &mut |message| {
            reply = message.body.get(HEADER_BYTES..).unwrap_or_default().to_vec();
        })?;
        Ok(reply)
    }
}

struct Request {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl NetlinkSerializable for Request {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER_BYTES + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER_BYTES].copy_from_slice(&[self.command, VERSION, 0, 0]);
        self.attributes.as_slice().emit(&mut buffer[HEADER_BYTES..]);
    }
}
