//! The entries of the kernel's tables: links, addresses, routes and neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_APPEND, ParseableParametrized, parse_u16};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    BondPortState, InfoBond, InfoBondPort, InfoData, InfoPortData, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    LinkXdp, Stats64,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::socket::Message;

/// A change in one of the kernel's tables: an entry is new, was deleted, or has a new state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table entry in its current state, or in its last state before its deletion.
    pub entry: Entry,
    /// False if the entry was deleted.
    pub is_there: bool,
}

/// An entry of one of the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A network interface.
    Link(Link),
    /// An IP address of this machine.
    Address(Address),
    /// A route.
    Route(Route),
    /// A neighbour.
    Neighbour(Neighbour),
}

/// A network interface. In a message about a change, the kernel may omit fields (`None`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The interface's number in its network namespace.
    pub index: u32,
    /// The interface's name, such as `eth0`.
    pub name: Option<String>,
    /// The kind of virtual interface, such as `veth`, `tun` or `bond` (`ip link add type`).
    pub kind: Option<String>,
    /// The type of the link headers, as an `ARPHRD_` number of linux/if_arp.h. Ethernet is 1.
    pub hardware: u16,
    /// True if the interface is up (`IFF_UP`).
    pub up: bool,
    /// True if the interface has a carrier and can pass packets.
    pub running: bool,
    /// The length of the longest packet that the interface sends, without the link header.
    pub mtu: Option<usize>,
    /// The link address. An Ethernet address has 6 bytes.
    pub address: Option<Vec<u8>>,
    /// The index of the bond or bridge of which the interface is a port.
    pub controller: Option<u32>,
    /// True if the interface is an unused port of a bond, which ignores packets from such ports.
    pub is_backup: bool,
    /// Only for bonds: the milliseconds without a link after which the bond stops using a port.
    pub down_delay: Option<u32>,
    /// The attached XDP programs.
    pub programs: Vec<XdpProgram>,
    /// The statistics of the interface since it was created.
    pub statistics: Option<Box<Stats64>>,
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    /// The ID of the program for bpf(2).
    pub id: u32,
    /// The hook at which the program is attached.
    pub place: XdpPlace,
}

/// A hook of an interface for one XDP program. The values are `XDP_FLAGS_...` of linux/if_link.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum XdpPlace {
    /// The hook in the driver (`xdpdrv`, native mode).
    Driver = 1 << 2,
    /// The hook after the driver, where packets have kernel metadata (`xdpgeneric`, skb mode).
    Generic = 1 << 1,
    /// The hook in the network card (`xdpoffload`).
    Card = 1 << 3,
}

/// An IP address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The index of the link that has this address.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// The length of the network prefix in bits.
    pub prefix_bits: u8,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The number of the routing table: 254 is `main`.
    pub table: u32,
    /// The destination prefix, and its length in bits.
    pub prefix: (IpAddr, u8),
    /// The metric. The kernel uses the route with the lowest metric to a prefix.
    pub metric: u32,
    /// The action for packets that match the route, such as forwarding or rejecting.
    pub kind: RouteType,
    /// The next hops. Each flow uses one of the next hops.
    pub hops: Vec<NextHop>,
    /// True if the route encapsulates packets in another header.
    pub encapsulates: bool,
    /// True if the route applies only to packets with a certain type of service or source address,
    /// or if it is the kernel's copy of another route for a single destination.
    pub is_special: bool,
    /// True if the change adds `hops` to an existing route.
    pub is_appended: bool,
}

/// A next hop of a [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The index of the link to this next hop.
    pub link: u32,
    /// The address of the next router, or `None` if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The weight, which determines the share of the flows.
    pub weight: u16,
}

/// A neighbour: another machine on the same link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the link to the neighbour.
    pub link: u32,
    /// The neighbour's address.
    pub address: IpAddr,
    /// The neighbour's link address, if it is known.
    pub link_address: Option<Vec<u8>>,
    /// The state in the kernel, such as reachable or failed.
    pub state: NeighbourState,
    /// True if the kernel replies in place of the neighbour (proxy ARP).
    pub is_proxy: bool,
}

impl Change {
    /// `None` if the message contains no table entry, or an entry of another protocol than IP.
    pub(crate) fn from_message(message: Message<'_>) -> Option<Self> {
        use RouteNetlinkMessage as Kernel;
        // Ignore errors: a newer kernel may send messages that the netlink crate cannot parse.
        let parsed = Kernel::parse_with_param(message.body, message.kind)
            .inspect_err(|error| tracing::debug!("a message of the kernel is not understood: {error}"))
            .ok()?;
        let is_there = !matches!(
            &parsed,
            Kernel::DelLink(_) | Kernel::DelAddress(_) | Kernel::DelRoute(_) | Kernel::DelNeighbour(_)
        );
        let entry = match parsed {
            Kernel::NewLink(link) | Kernel::DelLink(link) => Entry::Link(Link::new(link, message.body)?),
            Kernel::NewAddress(address) | Kernel::DelAddress(address) => Entry::Address(Address::new(&address)?),
            Kernel::NewRoute(route) | Kernel::DelRoute(route) => Entry::Route(Route::new(&route, message.flags)?),
            Kernel::NewNeighbour(it) | Kernel::DelNeighbour(it) => Entry::Neighbour(Neighbour::new(it)?),
            _ => return None,
        };
        Some(Self { entry, is_there })
    }
}

impl Link {
    fn new(message: LinkMessage, body: &[u8]) -> Option<Self> {
        let header = message.header;
        // Ignore link messages about ports of a bridge: a port that leaves the bridge still exists.
        if header.interface_family != AddressFamily::Unspec {
            return None;
        }
        let mut link = Self {
            index: header.index,
            // The netlink crate drops unknown `ARPHRD_` numbers, so read the raw message.
            hardware: body.get(2..4).and_then(|hardware| parse_u16(hardware).ok())?,
            up: header.flags.contains(LinkFlags::Up),
            running: header.flags.contains(LinkFlags::Running),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = Some(name),
                LinkAttribute::Mtu(mtu) => link.mtu = Some(mtu as usize),
                LinkAttribute::Address(address) => link.address = Some(address),
                LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| link.add(info)),
                LinkAttribute::Stats64(statistics) => link.statistics = Some(Box::new(statistics)),
                LinkAttribute::Controller(index) => link.controller = Some(index).filter(|index| *index > 0),
                LinkAttribute::Xdp(xdp) => link.programs = xdp.iter().filter_map(XdpProgram::new).collect(),
                _ => {}
            }
        }
        Some(link)
    }

    fn add(&mut self, info: &LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = Some(kind.to_string()),
            LinkInfo::Data(InfoData::Bond(bond)) => {
                let delay = |info: &InfoBond| if let InfoBond::DownDelay(delay) = info { Some(*delay) } else { None };
                self.down_delay = bond.iter().find_map(delay);
            }
            LinkInfo::PortData(InfoPortData::BondPort(port)) => {
                self.is_backup = port.contains(&InfoBondPort::BondPortState(BondPortState::Backup));
            }
            _ => {}
        }
    }
}

impl XdpProgram {
    fn new(attribute: &LinkXdp) -> Option<Self> {
        let (id, place) = match attribute {
            LinkXdp::DrvProgId(id) => (*id, XdpPlace::Driver),
            LinkXdp::SkbProgId(id) => (*id, XdpPlace::Generic),
            LinkXdp::HwProgId(id) => (*id, XdpPlace::Card),
            _ => return None,
        };
        (id > 0).then_some(Self { id, place })
    }
}

impl Address {
    fn new(message: &AddressMessage) -> Option<Self> {
        let mut address = None;
        for attribute in &message.attributes {
            match attribute {
                // If a message has both attributes, `Local` is this machine's address, and
                // `Address` is the peer's.
                AddressAttribute::Local(local) => address = Some(*local),
                AddressAttribute::Address(other) => address = address.or(Some(*other)),
                _ => {}
            }
        }
        Some(Self { link: message.header.index, address: address?, prefix_bits: message.header.prefix_len })
    }
}

impl Route {
    fn new(message: &RouteMessage, flags: u16) -> Option<Self> {
        let header = &message.header;
        let any: IpAddr = match header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let mut route = Self {
            table: header.table.into(),
            prefix: (any, header.destination_prefix_length),
            metric: 0,
            kind: header.kind,
            hops: Vec::new(),
            encapsulates: false,
            is_special: header.tos != 0
                || header.source_prefix_length != 0
                || header.flags.contains(RouteFlags::Cloned),
            is_appended: flags & NLM_F_APPEND != 0,
        };
        let (mut link, mut only_gateway) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Table(number) => route.table = *number,
                RouteAttribute::Priority(number) => route.metric = *number,
                RouteAttribute::Destination(address) => route.prefix.0 = ip(address).unwrap_or(any),
                RouteAttribute::Oif(index) => link = Some(*index),
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops {
                        let gateway = hop.attributes.iter().find_map(gateway);
                        route.encapsulates |= hop.attributes.iter().any(|a| matches!(a, RouteAttribute::Encap(_)));
                        route.hops.push(NextHop {
                            link: hop.interface_index,
                            gateway,
                            weight: u16::from(hop.hops) + 1,
                        });
                    }
                }
                RouteAttribute::Encap(_) => route.encapsulates = true,
                other => only_gateway = gateway(other).or(only_gateway),
            }
        }
        route.hops.extend(link.map(|link| NextHop { link, gateway: only_gateway, weight: 1 }));
        Some(route)
    }
}

impl Neighbour {
    fn new(message: NeighbourMessage) -> Option<Self> {
        let (mut address, mut link_address) = (None, None);
        for attribute in message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(v6)),
                NeighbourAttribute::LinkLayerAddress(bytes) => link_address = Some(bytes),
                _ => {}
            }
        }
        let header = message.header;
        let is_proxy = header.flags.contains(NeighbourFlags::Proxy);
        Some(Self { link: header.ifindex, address: address?, link_address, state: header.state, is_proxy })
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}
