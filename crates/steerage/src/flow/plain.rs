//! The short cut: what nearly every frame is made of, in a straight line.

use steerage_mem::hash::{FlowKey, protocol};

use super::bytes::{be16, be32, be128};
use super::dissection::Layers;
use super::network::{IPV4_FRAGMENT, IPV4_LEN, IPV6_LEN};
use super::numbers::{ethertype, port};
use super::transport::PORTS_LEN;

/// Two addresses and an EtherType.
const ETHERNET_LEN: usize = 14;
const VLAN_TAG_LEN: usize = 4;
/// The upper bytes of the tunnels' ports lie in this range: one byte is enough to look at.
const PORT_HIGH_MIN: u8 = (port::MIN >> 8) as u8;
const PORT_HIGH_MAX: u8 = (port::MAX >> 8) as u8;
/// In that range, a bit for each upper byte that a tunnel's port has: other services in it then need no call.
const PORTS_HIGH: u32 = {
    let (mut bits, mut at) = (0, 0);
    while at < port::ALL.len() {
        bits |= 1 << ((port::ALL[at] >> 8) as u8 - PORT_HIGH_MIN);
        at += 1;
    }
    bits
};
/// First byte of an IPv4 header without options: version 4, five words of four bytes.
const IPV4_PLAIN: u8 = 0x45;

/// Ethernet, at most one tag, IP without options, extensions or fragments, TCP or UDP, no tunnel. `None` is "not so plain".
#[inline(always)]
pub(crate) fn plain(frame: &[u8], layers: Layers) -> Option<FlowKey> {
    let head: &[u8; ETHERNET_LEN + VLAN_TAG_LEN] = frame.first_chunk()?;
    let mut ethertype = be16(head, 12);
    let mut packet = frame.get(ETHERNET_LEN..)?;
    if ethertype == ethertype::VLAN {
        ethertype = be16(head, 16);
        packet = packet.get(VLAN_TAG_LEN..)?;
    }
    match ethertype {
        ethertype::IPV4 => plain_ipv4(packet.first_chunk()?, layers),
        ethertype::IPV6 => plain_ipv6(packet.first_chunk()?, layers),
        _ => None,
    }
}

/// The same for a frame that begins with IP.
#[inline(always)]
pub(crate) fn plain_ip(packet: &[u8], layers: Layers) -> Option<FlowKey> {
    match packet.first()? >> 4 {
        4 => plain_ipv4(packet.first_chunk()?, layers),
        6 => plain_ipv6(packet.first_chunk()?, layers),
        _ => None,
    }
}

#[inline(always)]
fn plain_ipv4(header: &[u8; IPV4_LEN + PORTS_LEN], layers: Layers) -> Option<FlowKey> {
    let (protocol, destination) = (header[9], be16(header, 22));
    let plain = header[0] == IPV4_PLAIN
        && be16(header, 6) & IPV4_FRAGMENT == 0
        && has_common_ports(protocol)
        && !may_be_tunnel(protocol, destination, layers);
    plain.then(|| FlowKey::v4((be32(header, 12), be16(header, 20)), (be32(header, 16), destination), protocol))
}

#[inline(always)]
fn plain_ipv6(header: &[u8; IPV6_LEN + PORTS_LEN], layers: Layers) -> Option<FlowKey> {
    let (protocol, destination) = (header[6], be16(header, 42));
    let plain = header[0] >> 4 == 6 && has_common_ports(protocol) && !may_be_tunnel(protocol, destination, layers);
    plain.then(|| FlowKey::v6((be128(header, 8), be16(header, 40)), (be128(header, 24), destination), protocol))
}

/// SCTP is left to the walk: it is rare enough not to cost the others a compare.
#[inline(always)]
fn has_common_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

/// One compare for nearly all: the tunnels' ports lie in a range that neither most services nor the clients' ports are in.
#[inline(always)]
fn may_be_tunnel(protocol: u8, destination: u16, layers: Layers) -> bool {
    let [high, _] = destination.to_be_bytes();
    let place = high.wrapping_sub(PORT_HIGH_MIN);
    place <= PORT_HIGH_MAX - PORT_HIGH_MIN && PORTS_HIGH >> place & 1 != 0 && is_tunnel(protocol, destination, layers)
}

/// A call, and so out of the way.
#[cold]
#[inline(never)]
fn is_tunnel(protocol: u8, destination: u16, layers: Layers) -> bool {
    protocol == protocol::UDP && port::is_tunnel(destination) && layers == Layers::Inner
}
