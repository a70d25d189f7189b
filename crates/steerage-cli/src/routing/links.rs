//! The kernel's links and addresses, read once.

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
    /// The Ethernet address, if it has one.
    pub(crate) mac: Option<[u8; 6]>,
    /// The longest IP packet, in bytes.
    pub(crate) mtu: usize,
}

/// All links and their addresses.
#[derive(Debug, Default)]
pub(crate) struct LinkTable {
    links: Vec<Link>,
    /// Each address with its network, and the index of its link.
    addresses: Vec<(IpNet, u32)>,
}

impl LinkTable {
    /// Reads the links and addresses from the kernel.
    pub(crate) fn read() -> io::Result<Self> {
        let mut table = Self::default();
        let questions = [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        ];
        netlink::ask(&questions, &mut |message, _| match message {
            RouteNetlinkMessage::NewLink(message) => table.links.push(of(&message)),
            RouteNetlinkMessage::NewAddress(message) => {
                let index = message.header.index;
                // On a point-to-point link, `Address` is the other end's address and `Local` our own.
                let attributes = message.attributes.iter().filter_map(|attribute| match attribute {
                    AddressAttribute::Local(address) => Some((true, *address)),
                    AddressAttribute::Address(address) => Some((false, *address)),
                    _ => None,
                });
                let own = attributes.max_by_key(|(is_local, _)| *is_local);
                let net = own.and_then(|(_, address)| IpNet::new(address, message.header.prefix_len).ok());
                table.addresses.extend(net.map(|net| (net, index)));
            }
            _ => {}
        })?;
        Ok(table)
    }

    /// The link called `name`.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The networks of the link's addresses.
    pub(crate) fn networks(&self, link: &Link) -> Vec<IpNet> {
        self.addresses.iter().filter(|(_, index)| *index == link.index).map(|(net, _)| *net).collect()
    }

    /// The name of the link that has this address.
    pub(crate) fn owner(&self, address: &IpAddr) -> Option<&str> {
        let (_, index) = self.addresses.iter().find(|(net, _)| net.addr() == *address)?;
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
