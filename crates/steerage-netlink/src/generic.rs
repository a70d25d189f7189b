//! Generic netlink: each family of requests has a name, such as `ethtool`.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_ACK, parse_u16};
use rustix::net::netlink::GENERIC;

use crate::attributes::{find, serialized, text_attribute};
use crate::socket::Socket;

/// The length of the header of generic netlink: the command, the version, and two unused bytes.
const HEADER_BYTES: usize = 4;
const VERSION: u8 = 1;

/// The number of the family that maps the names of families to numbers (linux/genetlink.h).
const CONTROLLER: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

#[derive(Debug)]
pub(crate) struct Family {
    socket: Socket,
    number: u16,
}

impl Family {
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        let mut family = Self { socket: Socket::open(Some(GENERIC), 0)?, number: CONTROLLER };
        let reply = family.request(CTRL_CMD_GETFAMILY, &[text_attribute(CTRL_ATTR_FAMILY_NAME, name)])?;
        let number = find(&reply, CTRL_ATTR_FAMILY_ID).and_then(|number| parse_u16(number).ok());
        family.number = number.ok_or(io::ErrorKind::InvalidData)?;
        Ok(family)
    }

    /// Returns the attributes of the reply. The list is empty if the kernel only confirms the
    /// request.
    pub(crate) fn request(&mut self, command: u8, attributes: &[DefaultNla]) -> io::Result<Vec<u8>> {
        let body = [&[command, VERSION, 0, 0], &serialized(attributes)[..]].concat();
        let mut reply = Vec::new();
        self.socket.request(self.number, NLM_F_ACK, &body, &mut |message| {
            reply = message.body.get(HEADER_BYTES..).unwrap_or_default().to_vec();
        })?;
        Ok(reply)
    }
}
