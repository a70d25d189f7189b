//! The fast path of dissection: straight-line code for nearly every frame.

use crate::flow_key::FlowKey;
use crate::wire::{be16, be32, be128, ethernet, ethertype, ipv4, ipv6, protocol, vlan};

use super::dissection::Layers;
use super::ports;
use super::transport::PORTS_LEN;

/// Returns the flow key of a plain frame: Ethernet with at most one VLAN tag, IP without options,
/// extension headers or fragmentation, and TCP or UDP outside of tunnels.
#[inline(always)]
pub(crate) fn plain(frame: &[u8], layers: Layers) -> Option<FlowKey> {
    let head: &[u8; ethernet::BYTES + vlan::BYTES] = frame.first_chunk()?;
    let mut ethertype = be16(head, 12);
    let mut packet = frame.get(ethernet::BYTES..)?;
    if ethertype == ethertype::VLAN {
        ethertype = be16(head, 16);
        packet = packet.get(vlan::BYTES..)?;
    }
    match ethertype {
        ethertype::IPV4 => plain_ipv4(packet.first_chunk()?, layers),
        ethertype::IPV6 => plain_ipv6(packet.first_chunk()?, layers),
        _ => None,
    }
}

#[inline(always)]
pub(crate) fn plain_ip(packet: &[u8], layers: Layers) -> Option<FlowKey> {
    match packet.first()? >> 4 {
        4 => plain_ipv4(packet.first_chunk()?, layers),
        6 => plain_ipv6(packet.first_chunk()?, layers),
        _ => None,
    }
}

#[inline(always)]
fn plain_ipv4(header: &[u8; ipv4::BYTES + PORTS_LEN], layers: Layers) -> Option<FlowKey> {
    let (protocol, source, destination) = (header[9], be16(header, 20), be16(header, 22));
    let plain = header[0] == ipv4::PLAIN
        && be16(header, 6) & ipv4::FRAGMENT == 0
        && has_common_ports(protocol)
        && !(ports::may_be_tunnel(source, destination) && is_tunnel(protocol, source, destination, layers));
    plain.then(|| FlowKey::v4_bits((be32(header, 12), source), (be32(header, 16), destination), protocol))
}

#[inline(always)]
fn plain_ipv6(header: &[u8; ipv6::BYTES + PORTS_LEN], layers: Layers) -> Option<FlowKey> {
    let (protocol, source, destination) = (header[6], be16(header, 40), be16(header, 42));
    let plain = header[0] >> 4 == 6
        && has_common_ports(protocol)
        && !(ports::may_be_tunnel(source, destination) && is_tunnel(protocol, source, destination, layers));
    plain.then(|| FlowKey::v6_bits((be128(header, 8), source), (be128(header, 24), destination), protocol))
}

/// Returns true for TCP and UDP. SCTP is left to `walk`, because a comparison with this rare
/// protocol would cost time for every packet.
#[inline(always)]
fn has_common_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

/// `is_tunnel` is a separate function, so that its code is apart from the code for common packets.
#[cold]
#[inline(never)]
fn is_tunnel(protocol: u8, source: u16, destination: u16, layers: Layers) -> bool {
    protocol == protocol::UDP && ports::of_tunnel(source, destination).is_some() && layers == Layers::Inner
}
