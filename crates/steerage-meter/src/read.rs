//! Reads the data that the meter needs from a packet.
//!
//! Plain packets (nearly all packets) have a fast path without loops. All other packets are read by
//! the dissector. Tests check that the fast path and the dissector return the same result for plain
//! packets.

use std::net::{SocketAddrV4, SocketAddrV6};

use steerage::flow::{self, Dissection, End, HeaderKind, Layers};
use steerage::{
    FlowKey, LinkType,
    flow::FlowParts,
    flow::wire::{be16, be32, be64, be128, ethernet, ethertype, ipv4, ipv6, protocol, tcp, udp, vlan},
};

use super::flow::Seen;
use super::key::{Directed, Key};
use super::tcp::Segment;

const IPV4_TYPE: [u8; 2] = ethertype::IPV4.to_be_bytes();

/// Reads a plain packet. Returns `None` if the packet is not plain.
///
/// A plain packet has an Ethernet header with at most one VLAN tag, or no link header. The IP
/// header of a plain packet has no options or extension headers, and a plain packet is not a
/// fragment. A plain packet has a complete TCP or UDP header, and no tunnel.
///
/// The function `plain` writes the fields of `seen` in place, one by one. If `plain` returned a
/// copy of `seen`, the copy would use wider loads than the writes before it, and such loads have to
/// wait until the writes are complete. A measurement showed that this wait takes a third of the
/// whole time for a packet.
#[inline(always)]
pub(super) fn plain(frame: &[u8], link: LinkType, layers: Layers, seen: &mut Seen) -> Option<()> {
    if link == LinkType::ETHERNET { plain_ethernet(frame, layers, seen) } else { plain_raw(frame, link, layers, seen) }
}

/// Like [`plain`], for Ethernet. The most common case (Ethernet with IPv4) has its own function,
/// because code for rarer cases would use registers that the common case needs.
#[inline(always)]
pub(super) fn plain_ethernet(frame: &[u8], layers: Layers, seen: &mut Seen) -> Option<()> {
    let head: Option<&[u8; ethernet::BYTES + 1]> = frame.first_chunk();
    match head {
        Some(head) if head[12..] == [IPV4_TYPE[0], IPV4_TYPE[1], ipv4::PLAIN] => {
            plain_ipv4(&frame[ethernet::BYTES..], layers, seen)
        }
        _ => plain_behind_ethernet(frame, layers, seen),
    }
}

/// Like [`plain`], for link types without a link header.
#[inline(never)]
fn plain_raw(frame: &[u8], link: LinkType, layers: Layers, seen: &mut Seen) -> Option<()> {
    match frame.first()? >> 4 {
        4 if link == LinkType::RAW => plain_ipv4(frame, layers, seen),
        6 if link == LinkType::RAW => plain_ipv6(frame, layers, seen),
        _ => None,
    }
}

/// Like [`plain`], for Ethernet headers that are followed by a VLAN tag or by IPv6.
#[inline(never)]
fn plain_behind_ethernet(frame: &[u8], layers: Layers, seen: &mut Seen) -> Option<()> {
    let head: &[u8; ethernet::BYTES + vlan::BYTES] = frame.first_chunk()?;
    match be16(head, 12) {
        ethertype::IPV6 => plain_ipv6(&frame[ethernet::BYTES..], layers, seen),
        ethertype::VLAN => {
            let packet = &frame[ethernet::BYTES + vlan::BYTES..];
            match be16(head, 16) {
                ethertype::IPV4 => plain_ipv4(packet, layers, seen),
                ethertype::IPV6 => plain_ipv6(packet, layers, seen),
                _ => None,
            }?;
            seen.vlans[0] = be16(head, 14) & vlan::ID;
            Some(())
        }
        _ => None,
    }
}

#[inline(always)]
fn plain_ipv4(packet: &[u8], layers: Layers, seen: &mut Seen) -> Option<()> {
    let header: &[u8; ipv4::BYTES + udp::BYTES] = packet.first_chunk()?;
    let (protocol, stated) = (header[9], be16(header, 2));
    let (addresses, ports) = (be64(header, 12), be32(header, ipv4::BYTES));
    if header[0] != ipv4::PLAIN || be16(header, 6) & ipv4::FRAGMENT != 0 || stated == 0 {
        return None;
    }
    let tcp_flags = transport(
        packet,
        ipv4::BYTES,
        stated.into(),
        protocol,
        ((ports >> 16) as u16, ports as u16),
        layers,
        &mut seen.segment,
    )?;
    let flow = Key::v4_of_words(addresses, ports, protocol);
    seen.fill(flow, stated.into(), tcp_flags);
    Some(())
}

#[inline(always)]
fn plain_ipv6(packet: &[u8], layers: Layers, seen: &mut Seen) -> Option<()> {
    let header: &[u8; ipv6::BYTES + udp::BYTES] = packet.first_chunk()?;
    let (protocol, payload) = (header[6], be16(header, 4));
    let (from_port, to_port) = (be16(header, ipv6::BYTES), be16(header, ipv6::BYTES + 2));
    if header[0] >> 4 != 6 {
        return None;
    }
    let stated = ipv6::BYTES as u32 + u32::from(payload);
    let tcp_flags = transport(packet, ipv6::BYTES, stated, protocol, (from_port, to_port), layers, &mut seen.segment)?;
    let flow = Key::v6((be128(header, 8), from_port), (be128(header, 24), to_port), protocol);
    seen.fill(flow, stated, tcp_flags);
    Some(())
}

/// The TCP flags. Stores the TCP segment in `segment`. For UDP, the returned flags are 0, and no
/// segment is stored. Returns `None` for all other protocols and for tunnels. The parameter
/// `stated` is the packet's length according to its IP header, in bytes.
#[inline(always)]
fn transport(
    packet: &[u8],
    at: usize,
    stated: u32,
    protocol: u8,
    (from, to): (u16, u16),
    layers: Layers,
    segment: &mut Segment,
) -> Option<u16> {
    match protocol {
        protocol::TCP => {
            let header: &[u8; tcp::BYTES] = packet.get(at..)?.first_chunk()?;
            *segment = self::segment(header.first_chunk()?, stated.saturating_sub(at as u32));
            Some(be16(header, 12) & tcp::FLAGS)
        }
        protocol::UDP if layers == Layers::Outer || !flow::is_tunnel(from, to) => {
            segment.is_there = false;
            Some(0)
        }
        _ => None,
    }
}

/// Reads a TCP segment. `header` is the TCP header up to the end of the window field, so that this
/// function can also read a header that was cut off after the window field.
#[inline(always)]
fn segment(header: &[u8; 16], bytes: u32) -> Segment {
    Segment {
        is_there: true,
        sequence: be32(header, 4),
        acknowledged: be32(header, 8),
        window: be16(header, 14),
        bytes: bytes.saturating_sub(u32::from(header[12] >> 4) * 4),
    }
}

/// Reads the TCP segment in any frame. Returns `None` for a fragment, for a packet that an ICMP
/// error quotes, and for a header that was cut off before the end of the window field.
fn segment_of(frame: &[u8], found: &Dissection, ip_bytes: u32) -> Option<Segment> {
    let ip = found.ip.filter(|ip| ip.protocol == protocol::TCP && !found.is_quoted && found.fragment().is_none())?;
    let at = found.transport_offset?;
    let header = frame.get(at as usize..)?.first_chunk()?;
    Some(segment(header, (ip.offset + ip_bytes).saturating_sub(at)))
}

/// Extracts the meter's data from the dissection of a frame. `wire_len` is the frame's length on
/// the wire, in bytes. If the packet is a fragment, the caller must assign it to its flow.
pub(super) fn dissected(frame: &[u8], wire_len: usize, found: &Dissection) -> Seen {
    let flow = flow_of(frame, found);
    let ip_bytes = found.ip.map_or(0, |ip| {
        // If the IP header does not contain the packet's length, the packet ends at the end of the
        // frame.
        ip.stated_bytes.unwrap_or_else(|| (wire_len as u32).saturating_sub(ip.offset))
    });
    let segment = segment_of(frame, found, ip_bytes).unwrap_or_default();
    let mut seen = Seen { ip_bytes, tcp_flags: found.tcp_flags.unwrap_or(0), segment, ..Seen::of(flow) };
    for (place, id) in seen.vlans.iter_mut().zip(found.vlans) {
        *place = id.unwrap_or(*place);
    }
    seen.icmp = found.icmp.map_or(0, |(kind, code)| u16::from_be_bytes([kind, code]));
    seen.tunnel = found.tunnel.map(|tunnel| tunnel.kind);
    seen.tunnel_id = found.tunnel.and_then(|tunnel| tunnel.id);
    seen
}

/// Returns the flow of a frame. An ICMP error belongs to a flow from the error's sender to its
/// receiver. ICMP errors that quote packets of different flows belong to different flows.
fn flow_of(frame: &[u8], found: &Dissection) -> Directed {
    if !found.is_flow {
        // If steerage does not support a link type, steering assigns all frames of the link type to
        // one flow without addresses.
        if found.end == End::UnknownLink && found.headers().len() == 0 {
            return Key::other();
        }
        let is_mpls = found.tunnel.is_some_and(|tunnel| tunnel.kind == HeaderKind::Mpls);
        return if is_mpls && matches!(found.key.parts(), FlowParts::Bytes { len: 20, .. }) {
            Key::mpls(&found.key)
        } else {
            Key::of(&found.key)
        };
    }
    match found
        .ip
        .filter(|_| found.is_quoted)
        .and_then(|ip| carrier(frame, ip.offset as usize, ip.version, ip.protocol))
    {
        Some(error) => {
            let flow = Key::of(&error);
            Directed { key: flow.key.marked(&found.key.both_directions()), ..flow }
        }
        None => Key::of(&found.key),
    }
}

fn carrier(frame: &[u8], at: usize, version: u8, protocol: u8) -> Option<FlowKey> {
    let packet = frame.get(at..)?;
    Some(match version {
        4 => {
            let header: &[u8; ipv4::BYTES] = packet.first_chunk()?;
            let end = |at| SocketAddrV4::new(be32(header, at).into(), 0);
            FlowKey::v4(end(12), end(16), protocol)
        }
        _ => {
            let header: &[u8; ipv6::BYTES] = packet.first_chunk()?;
            let end = |at| SocketAddrV6::new(be128(header, at).into(), 0, 0, 0);
            FlowKey::v6(end(8), end(24), protocol)
        }
    })
}

pub(super) fn dissect(frame: &[u8], link: LinkType, layers: Layers) -> Dissection {
    flow::dissect(frame, link, layers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use steerage::flow::wire::FrameBuilder;

    use super::*;

    fn both(frame: &[u8], link: LinkType, layers: Layers) -> (Option<Seen>, Seen) {
        let slow = dissected(frame, frame.len(), &dissect(frame, link, layers));
        (plainly(frame, link, layers), slow)
    }

    fn plainly(frame: &[u8], link: LinkType, layers: Layers) -> Option<Seen> {
        // Before the call of `plain`, `seen` contains old values, which must not remain in the
        // result.
        let flow = Key::v6((1, 2), (3, 4), 5);
        let mut seen = Seen { vlans: [7; 2], tunnel: Some(HeaderKind::Gre), tunnel_id: Some(6), ..Seen::of(flow) };
        plain(frame, link, layers, &mut seen).map(|()| seen)
    }

    /// Creates a UDP packet over IPv4 and Ethernet to this port. The payload of the UDP packet
    /// looks like a tunnel header and a packet inside the tunnel.
    fn udp4(port: u16) -> Vec<u8> {
        let mut payload = [0; 158];
        (payload[0], payload[8], payload[22]) = (0x08, ipv4::PLAIN, ipv4::PLAIN);
        FrameBuilder::udp(([10, 0, 0, 1], 0), ([10, 0, 0, 2], port)).frame(&payload)
    }

    #[test]
    fn all_ports_of_tunnels_are_known() {
        let from = |port: u16| {
            let mut frame = udp4(0);
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            frame
        };
        let plain_ports = |frame: &dyn Fn(u16) -> Vec<u8>, layers| {
            let plain = |port: &u16| plainly(&frame(*port), LinkType::ETHERNET, layers).is_some();
            (0..=u16::MAX).filter(plain).count()
        };
        assert_eq!(plain_ports(&udp4, Layers::Outer), 65_536);
        // docs/flows.md lists the ports of tunnels over UDP. For three of these ports, a packet
        // also counts as a tunnel packet if the port is its source port.
        assert_eq!(plain_ports(&udp4, Layers::Inner), 65_536 - 13);
        assert_eq!(plain_ports(&from, Layers::Inner), 65_536 - 3);
        for frame in (0..=u16::MAX).flat_map(|port| [udp4(port), from(port)]) {
            let (plain, slow) = both(&frame, LinkType::ETHERNET, Layers::Inner);
            assert!(plain.is_none_or(|plain| plain == slow), "{:?}", &frame[34..38]);
        }
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let kinds = (any::<[bool; 3]>(), any::<[u8; 80]>());
        let frame = kinds.prop_map(|([tagged, six, tcp], random)| {
            let protocol = if tcp { protocol::TCP } else { protocol::UDP };
            let mut packet = random.to_vec();
            if six {
                (packet[0], packet[6]) = (ipv6::PLAIN, protocol);
            } else {
                (packet[0], packet[6], packet[7], packet[9]) = (ipv4::PLAIN, 0x40, 0, protocol);
            }
            let ethertype = if six { ethertype::IPV6 } else { ethertype::IPV4 }.to_be_bytes();
            let tag = if tagged { vec![0x81, 0, 0x20, 5] } else { Vec::new() };
            [&random[..12], &tag, &ethertype, &packet].concat()
        });
        (frame, prop::option::of((0usize..60, any::<u8>())), 0usize..110).prop_map(|(mut frame, change, len)| {
            if let Some((at, byte)) = change {
                frame[at] = byte;
            }
            frame.truncate(len);
            frame
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_straight_line_agrees_with_the_dissector(frame in frames(), outer in any::<bool>()) {
            let layers = if outer { Layers::Outer } else { Layers::Inner };
            if let (Some(plain), slow) = both(&frame, LinkType::ETHERNET, layers) {
                prop_assert_eq!(plain, slow);
            }
            if let (Some(plain), slow) = both(frame.get(14..).unwrap_or_default(), LinkType::RAW, layers) {
                prop_assert_eq!(plain, slow);
            }
        }
    }

    /// If the capture has truncated a TCP header, only the header's complete fields are read.
    #[test]
    fn a_cut_header_has_its_numbers() {
        let segment = FrameBuilder::tcp(([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2)).sequence(7).acknowledgement(8);
        let frame = segment.flags(tcp::ACK).window(9).frame(b"data");
        let read = |bytes: usize| {
            let frame = &frame[..ethernet::BYTES + ipv4::BYTES + bytes];
            let found = dissect(frame, LinkType::ETHERNET, Layers::Inner);
            let seen = dissected(frame, 58, &found);
            (seen.segment, seen.tcp_flags)
        };
        let whole = Segment { is_there: true, sequence: 7, acknowledged: 8, window: 9, bytes: 4 };
        for bytes in 4..=24 {
            let segment = if bytes < 16 { Segment::default() } else { whole };
            let flags = if bytes < 14 { 0 } else { tcp::ACK };
            assert_eq!(read(bytes), (segment, flags), "{bytes}");
        }
    }

    #[test]
    fn links_that_are_not_read_have_no_addresses() {
        let seen = both(&udp4(53), LinkType(127), Layers::Inner).1;
        assert_eq!(seen.flow, Key::other());
    }

    #[test]
    fn the_straight_line_is_for_nearly_all() {
        let frame = udp4(53);
        assert!(plainly(&frame, LinkType::ETHERNET, Layers::Inner).is_some());
        assert!(plainly(&frame[14..], LinkType::RAW, Layers::Inner).is_some());
        assert!(plainly(&frame, LinkType::LINUX_SLL, Layers::Inner).is_none());
    }
}
