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

/// Reads a plain packet, with code that has no loops. The dissector reads the few other packets.
///
/// A plain packet has an Ethernet header with at most one VLAN tag, or no link header; an IP header
/// without options, extension headers or fragmentation; and a complete TCP or UDP header without a
/// tunnel.
///
/// Writes the fields of `seen` in place. If `seen` were returned, the caller would read the copy
/// with wider loads, which must wait for the stores: a third of the time for a packet, as measured.
#[inline(always)]
pub(super) fn plain(frame: &[u8], link: LinkType, layers: Layers, seen: &mut Seen) -> Option<()> {
    if link == LinkType::ETHERNET { plain_ethernet(frame, layers, seen) } else { plain_raw(frame, link, layers, seen) }
}

/// Reads only Ethernet with IPv4 here, because code for rarer cases would use registers that this
/// function needs.
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

#[inline(never)]
fn plain_raw(frame: &[u8], link: LinkType, layers: Layers, seen: &mut Seen) -> Option<()> {
    match frame.first()? >> 4 {
        4 if link == LinkType::RAW => plain_ipv4(frame, layers, seen),
        6 if link == LinkType::RAW => plain_ipv6(frame, layers, seen),
        _ => None,
    }
}

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
    // The length 0 states no length.
    if header[0] >> 4 != 6 || payload == 0 {
        return None;
    }
    let stated = ipv6::BYTES as u32 + u32::from(payload);
    let tcp_flags = transport(packet, ipv6::BYTES, stated, protocol, (from_port, to_port), layers, &mut seen.segment)?;
    let flow = Key::v6((be128(header, 8), from_port), (be128(header, 24), to_port), protocol);
    seen.fill(flow, stated, tcp_flags);
    Some(())
}

/// Returns the TCP flags (0 for UDP). Returns `None` for other protocols and for tunnels. `stated`
/// is the packet's length according to its IP header.
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

/// `header` ends with the window field, because a capture may have cut off the rest of the TCP
/// header.
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

fn segment_of(frame: &[u8], found: &Dissection, ip_bytes: u32) -> Option<Segment> {
    let ip = found.ip.filter(|ip| ip.protocol == protocol::TCP && !found.is_quoted && found.fragment().is_none())?;
    let at = found.transport_offset?;
    let header = frame.get(at as usize..)?.first_chunk()?;
    Some(segment(header, (ip.offset + ip_bytes).saturating_sub(at)))
}

/// `wire_len` is the frame's length on the wire. The caller must assign a fragment to its flow.
pub(super) fn dissected(frame: &[u8], wire_len: usize, found: &Dissection) -> Seen {
    let flow = flow_of(frame, found);
    let ip_bytes = found.ip.map_or(0, |ip| {
        // If the IP header states no length, the packet ends with the frame.
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

/// ICMP errors are flows between their sender and receiver. If the quoted packets belong to
/// different flows, so do the ICMP errors.
fn flow_of(frame: &[u8], found: &Dissection) -> Directed {
    if !found.is_flow {
        // Steering assigns all frames of an unsupported link type to one flow without addresses.
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
    use std::net::IpAddr;

    use proptest::prelude::*;

    use steerage::flow::wire::FrameBuilder;

    use super::*;

    fn both(frame: &[u8], link: LinkType, layers: Layers) -> (Option<Seen>, Seen) {
        let slow = dissected(frame, frame.len(), &dissect(frame, link, layers));
        (plainly(frame, link, layers), slow)
    }

    fn plainly(frame: &[u8], link: LinkType, layers: Layers) -> Option<Seen> {
        let flow = Key::v6((1, 2), (3, 4), 5);
        let mut seen = Seen { vlans: [7; 2], tunnel: Some(HeaderKind::Gre), tunnel_id: Some(6), ..Seen::of(flow) };
        plain(frame, link, layers, &mut seen).map(|()| seen)
    }

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
        // The tunnel ports are those of docs/flows.md. Three of the tunnel ports also indicate a
        // tunnel as source ports.
        assert_eq!(plain_ports(&udp4, Layers::Inner), 65_536 - 13);
        assert_eq!(plain_ports(&from, Layers::Inner), 65_536 - 3);
        for frame in (0..=u16::MAX).flat_map(|port| [udp4(port), from(port)]) {
            let (plain, slow) = both(&frame, LinkType::ETHERNET, Layers::Inner);
            assert!(plain.is_none_or(|plain| plain == slow), "{:?}", &frame[34..38]);
        }
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let kinds = (any::<[bool; 4]>(), any::<[u8; 80]>());
        let frame = kinds.prop_map(|([tagged, six, tcp, unstated], random)| {
            let protocol = if tcp { protocol::TCP } else { protocol::UDP };
            let mut packet = random.to_vec();
            if unstated {
                packet[if six { 4..6 } else { 2..4 }].fill(0);
            }
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

    #[test]
    fn a_packet_without_a_stated_length_ends_with_its_frame() {
        let frame = |six: bool| {
            let ends = if six {
                [[0xfd; 16], [0xfe; 16]].map(IpAddr::from)
            } else {
                [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from)
            };
            let mut frame = FrameBuilder::tcp((ends[0], 1), (ends[1], 2)).flags(tcp::ACK).frame(b"data");
            frame[if six { 18..20 } else { 16..18 }].fill(0);
            frame
        };
        for (six, header) in [(false, ipv4::BYTES), (true, ipv6::BYTES)] {
            let (plain, seen) = both(&frame(six), LinkType::ETHERNET, Layers::Inner);
            assert!(plain.is_none_or(|plain| plain == seen));
            assert_eq!((seen.ip_bytes as usize, seen.segment.bytes), (header + tcp::BYTES + 4, 4));
        }
        // After an IPv6 header whose next header is none, the rest of the frame is padding.
        let mut nothing = frame(true);
        nothing[20] = protocol::NOTHING;
        assert_eq!(both(&nothing, LinkType::ETHERNET, Layers::Inner).1.ip_bytes as usize, ipv6::BYTES);
    }

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
