//! What the kernel knows of its links and addresses, asked for once.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};

use super::netlink;

/// A link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    index: u32,
    name: String,
    /// Where it has an Ethernet address.
    pub(crate) mac: Option<[u8; 6]>,
    /// Of IP packets, in bytes.
    pub(crate) mtu: usize,
}

/// All links, and whose address is where.
#[derive(Debug, Default)]
pub(crate) struct Known {
    links: Vec<Link>,
    /// Each with its network, and the link's number.
    addresses: Vec<(IpNet, u32)>,
}

impl Known {
    /// Asks.
    pub(crate) fn ask() -> io::Result<Self> {
        let mut known = Self::default();
        let questions = [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        ];
        netlink::ask(&questions, &mut |message, _| match message {
            RouteNetlinkMessage::NewLink(message) => known.links.push(of(&message)),
            RouteNetlinkMessage::NewAddress(message) => {
                let index = message.header.index;
                // Of a link to one other host the local address stands apart from the other's.
                let attributes = message.attributes.iter().filter_map(|attribute| match attribute {
                    AddressAttribute::Local(address) => Some((true, *address)),
                    AddressAttribute::Address(address) => Some((false, *address)),
                    _ => None,
                });
                let own = attributes.max_by_key(|(is_local, _)| *is_local);
                let net = own.and_then(|(_, address)| IpNet::new(address, message.header.prefix_len).ok());
                known.addresses.extend(net.map(|net| (net, index)));
            }
            _ => {}
        })?;
        Ok(known)
    }

    /// The link of that name.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The networks that the link has addresses in.
    pub(crate) fn networks(&self, link: &Link) -> Vec<IpNet> {
        self.addresses.iter().filter(|(_, index)| *index == link.index).map(|(net, _)| *net).collect()
    }

    /// The name of the link whose address it is.
    pub(crate) fn owner(&self, address: &IpAddr) -> Option<&str> {
        let (_, index) = self.addresses.iter().find(|(known, _)| known.addr() == *address)?;
        self.links.iter().find(|link| link.index == *index).map(|link| link.name.as_str())
    }
}

fn of(message: &LinkMessage) -> Link {
    let mut link = Link { index: message.header.index, ..Link::default() };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu as usize,
            LinkAttribute::Address(address) => link.mac = address.as_slice().try_into().ok(),
            _ => {}
        }
    }
    link
}
