//! Generic netlink: each family of requests has a name, such as `ethtool`.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_ACK, parse_u16};
use rustix::net::netlink::GENERIC;

use crate::attributes::{find, serialized, text_attribute};
use crate::socket::Socket;

/// The length of the header of generic netlink: the command, the version, and two unused bytes.
const HEADER_BYTES: usize = 4;
const VERSION: u8 = 1;

#[derive(Debug)]
pub(crate) struct Family {
    socket: Socket,
    number: u16,
}

impl Family {
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        // The controller is the family that maps the names of families to numbers.
        let mut family = Self { socket: Socket::open(Some(GENERIC), 0)?, number: libc::GENL_ID_CTRL as u16 };
        let named = text_attribute(libc::CTRL_ATTR_FAMILY_NAME as u16, name);
        let reply = family.request(libc::CTRL_CMD_GETFAMILY as u8, &[named])?;
        let number = find(&reply, libc::CTRL_ATTR_FAMILY_ID as u16).and_then(|number| parse_u16(number).ok());
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
