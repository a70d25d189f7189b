//! Compares flow keys with those of the crate `etherparse`, which builds and parses the frames.

use std::net::{SocketAddrV4, SocketAddrV6};

use etherparse::{
    Ethernet2Header, Icmpv4Type, Icmpv6Type, IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header,
    Ipv4Options, Ipv6ExtensionSlice, Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader,
    Ipv6RoutingExtensions, NetSlice, PacketBuilder, PacketBuilderStep, SlicedPacket, TransportSlice, VlanId,
};
use proptest::{collection::vec, option, prelude::*};
use steerage::FlowKey;
use steerage::LinkType;
use steerage::flow::wire::sctp;
use steerage::flow::{self, Layers};

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn flow_key(frame: &[u8]) -> Option<FlowKey> {
    let found = flow::dissect(frame, LinkType::ETHERNET, Layers::Inner).flow();
    assert_eq!(flow::flow_key(frame, LinkType::ETHERNET, Layers::Inner), found);
    found
}

/// etherparse reads neither SCTP nor first fragments. This function reads the ports of SCTP packets
/// and first fragments from bytes 1 to 4 of the IP payload, and the identifier of a fragmented ICMP
/// echo from bytes 5 and 6.
fn expected(frame: &[u8]) -> FlowKey {
    let sliced = SlicedPacket::from_ethernet(frame).expect("what etherparse has built, it can read");
    let net = sliced.net.as_ref().expect("all generated frames hold IP");
    let payload = net.ip_payload_ref().expect("all generated frames hold IP");
    let is_first = match net {
        NetSlice::Ipv4(ip) => ip.header().fragments_offset() == IpFragOffset::ZERO,
        NetSlice::Ipv6(ip) => !ip.extensions().clone().into_iter().any(|extension| {
            matches!(extension, Ipv6ExtensionSlice::Fragment(header) if header.fragment_offset() != IpFragOffset::ZERO)
        }),
        NetSlice::Arp(_) => unreachable!("all generated frames hold IP"),
    };
    let pair = |at: usize| u16::from_be_bytes([payload.payload[at], payload.payload[at + 1]]);
    let ports = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
            Icmpv4Type::EchoRequest(echo) => (echo.id, echo.id),
            _ => (0, 0),
        },
        Some(TransportSlice::Icmpv6(icmp)) => match icmp.icmp_type() {
            Icmpv6Type::EchoRequest(echo) => (echo.id, echo.id),
            _ => (0, 0),
        },
        None if is_first => match payload.ip_number {
            IpNumber::TCP | IpNumber::UDP | IpNumber::SCTP => (pair(0), pair(2)),
            IpNumber::ICMP | IpNumber::IPV6_ICMP => (pair(4), pair(4)),
            _ => (0, 0),
        },
        None => (0, 0),
    };
    match net {
        NetSlice::Ipv4(ip) => {
            let source = SocketAddrV4::new(ip.header().source_addr(), ports.0);
            let destination = SocketAddrV4::new(ip.header().destination_addr(), ports.1);
            FlowKey::v4(source, destination, payload.ip_number.0)
        }
        NetSlice::Ipv6(ip) => {
            let source = SocketAddrV6::new(ip.header().source_addr(), ports.0, 0, 0);
            let destination = SocketAddrV6::new(ip.header().destination_addr(), ports.1, 0, 0);
            FlowKey::v6(source, destination, payload.ip_number.0)
        }
        NetSlice::Arp(_) => unreachable!("all generated frames hold IP"),
    }
}

/// Undoes an error of etherparse 0.19, which takes the wrong bits for the offset and for the
/// more-fragments flag of an IPv6 fragment header. By RFC 8200, 4.5, the offset is in the upper
/// bits, and more-fragments is the lowest bit.
fn on_the_wire(mut frame: Vec<u8>) -> Vec<u8> {
    let mut place = None;
    if let Ok(SlicedPacket { net: Some(NetSlice::Ipv6(ip)), .. }) = SlicedPacket::from_ethernet(&frame) {
        for extension in ip.extensions().clone() {
            if let Ipv6ExtensionSlice::Fragment(header) = extension {
                place = Some(header.slice().as_ptr() as usize - frame.as_ptr() as usize + 3);
            }
        }
    }
    if let Some(byte) = place.and_then(|at| frame.get_mut(at)) {
        *byte = (*byte & 0x1f) << 3 | *byte >> 7;
    }
    frame
}

#[derive(Clone, Debug)]
enum Upper {
    Tcp(u16, u16),
    Udp(u16, u16),
    Echo,
    Raw(u8),
}

/// The UDP ports of tunnel protocols, which etherparse does not parse. Random payload may look like
/// a tunnel.
const TUNNEL_PORTS: [u16; 4] = [GTP_U, VXLAN, GENEVE, MPLS];
const GTP_U: u16 = 2152;
const VXLAN: u16 = 4789;
const GENEVE: u16 = 6081;
const MPLS: u16 = 6635;

fn upper() -> impl Strategy<Value = Upper> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(source, destination)| Upper::Tcp(source, destination)),
        any::<(u16, u16)>()
            .prop_filter("a tunnel's port", |(_, destination)| !TUNNEL_PORTS.contains(destination))
            .prop_map(|(source, destination)| Upper::Udp(source, destination)),
        Just(Upper::Echo),
        // SCTP, ESP, OSPF and an unassigned protocol, whose packets etherparse does not parse.
        prop::sample::select(vec![132, 50, 89, 200]).prop_map(Upper::Raw),
    ]
}

fn fragment() -> impl Strategy<Value = (IpFragOffset, bool)> {
    let offset = prop_oneof![2 => Just(0), 1 => 0..0x2000_u16];
    (offset, any::<bool>()).prop_map(|(offset, more)| (IpFragOffset::try_new(offset).unwrap(), more))
}

fn ipv4() -> impl Strategy<Value = IpHeaders> {
    let unfragmented = Just((IpFragOffset::ZERO, false));
    let fragment = prop_oneof![2 => unfragmented, 1 => fragment()];
    (any::<([u8; 4], [u8; 4], bool)>(), 0..=10_usize, fragment).prop_map(
        |((source, destination, dont_fragment), option_words, (fragment_offset, more_fragments))| {
            let options = Ipv4Options::try_from(&[1; 40][..4 * option_words]).unwrap();
            let header = Ipv4Header {
                source,
                destination,
                dont_fragment,
                more_fragments,
                fragment_offset,
                options,
                time_to_live: 64,
                ..Ipv4Header::default()
            };
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        },
    )
}

fn extension() -> impl Strategy<Value = Ipv6RawExtHeader> {
    (0..=8_usize, any::<[u8; 70]>())
        .prop_map(|(eights, bytes)| Ipv6RawExtHeader::new_raw(IpNumber::UDP, &bytes[..6 + 8 * eights]).unwrap())
}

fn ipv6() -> impl Strategy<Value = IpHeaders> {
    let routing = (extension(), option::of(extension()))
        .prop_map(|(routing, final_destination_options)| Ipv6RoutingExtensions { routing, final_destination_options });
    let extensions = (option::of(extension()), option::of(extension()), option::of(routing), option::of(fragment()));
    (any::<([u8; 16], [u8; 16])>(), extensions).prop_map(
        |((source, destination), (hop_by_hop_options, destination_options, mut routing, fragment))| {
            let fragment = fragment.map(|(offset, more)| Ipv6FragmentHeader::new(IpNumber::UDP, offset, more, 1));
            // etherparse also reads the IPv6 options after the fragment header. A flow key cannot
            // depend on options that later fragments do not have.
            if let (Some(routing), true) = (&mut routing, fragment.is_some()) {
                routing.final_destination_options = None;
            }
            let header = Ipv6Header { source, destination, hop_limit: 64, ..Ipv6Header::default() };
            let extensions = Ipv6Extensions {
                hop_by_hop_options,
                destination_options,
                routing,
                fragment,
                ..Ipv6Extensions::default()
            };
            IpHeaders::Ipv6(header, extensions)
        },
    )
}

fn build(tags: u8, ip: IpHeaders, upper: &Upper, payload: &[u8]) -> Vec<u8> {
    let ethernet: PacketBuilderStep<Ethernet2Header> = PacketBuilder::ethernet2(SOURCE, DESTINATION);
    let is_v4 = matches!(ip, IpHeaders::Ipv4(..));
    let id = VlanId::try_new(5).unwrap();
    let ip = match tags {
        0 => ethernet.ip(ip),
        1 => ethernet.single_vlan(id).ip(ip),
        _ => ethernet.double_vlan(id, id).ip(ip),
    };
    let mut frame = Vec::new();
    match *upper {
        Upper::Tcp(source, destination) => ip.tcp(source, destination, 1, 1024).write(&mut frame, payload),
        Upper::Udp(source, destination) => ip.udp(source, destination).write(&mut frame, payload),
        Upper::Echo if is_v4 => ip.icmpv4_echo_request(0x1234, 2).write(&mut frame, payload),
        Upper::Echo => ip.icmpv6_echo_request(0x1234, 2).write(&mut frame, payload),
        Upper::Raw(protocol) => ip.write(&mut frame, IpNumber(protocol), payload),
    }
    .expect("headers that fit together");
    frame
}

#[derive(Clone, Copy, Debug)]
enum Tunnel {
    IpInIp,
    Gre { words: usize },
    GreBridged,
    Vxlan,
    Geneve { words: usize },
    GtpU { options: bool },
    Mpls { labels: usize },
}

fn tunnel() -> impl Strategy<Value = Tunnel> {
    prop_oneof![
        Just(Tunnel::IpInIp),
        (0..=3_usize).prop_map(|words| Tunnel::Gre { words }),
        Just(Tunnel::GreBridged),
        Just(Tunnel::Vxlan),
        (0..=63_usize).prop_map(|words| Tunnel::Geneve { words }),
        any::<bool>().prop_map(|options| Tunnel::GtpU { options }),
        (1..=5_usize).prop_map(|labels| Tunnel::Mpls { labels }),
    ]
}

/// Outer IP headers are not fragmented, because a later fragment does not show that it belongs to a
/// tunnel. Outer IPv6 headers have few extension headers, so that three nested tunnels do not
/// exceed the maximum number of headers.
fn outer_ip() -> impl Strategy<Value = IpHeaders> {
    (prop_oneof![ipv4(), ipv6()]).prop_map(|mut ip| {
        match &mut ip {
            IpHeaders::Ipv4(header, _) => {
                (header.more_fragments, header.fragment_offset) = (false, IpFragOffset::ZERO);
            }
            IpHeaders::Ipv6(_, extensions) => {
                let destination_options = extensions.destination_options.take();
                *extensions = Ipv6Extensions { destination_options, ..Ipv6Extensions::default() };
            }
        }
        ip
    })
}

fn ip_offset(frame: &[u8]) -> usize {
    let is_tag = |at: usize| matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]);
    (12..).step_by(4).find(|at| !is_tag(*at)).map_or(0, |at| at + 2)
}

fn wrap(frame: &[u8], tunnel: Tunnel, ip: IpHeaders, tags: u8) -> Vec<u8> {
    let packet = &frame[ip_offset(frame)..];
    let ethertype = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
    let udp = |port, payload: Vec<u8>| build(tags, ip.clone(), &Upper::Udp(50000, port), &payload);
    let raw = |protocol, payload: Vec<u8>| build(tags, ip.clone(), &Upper::Raw(protocol), &payload);
    match tunnel {
        Tunnel::IpInIp => raw(if packet[0] >> 4 == 4 { 4 } else { 41 }, packet.to_vec()),
        Tunnel::Gre { words } => {
            let flags = [[0x00, 0], [0x20, 0], [0x30, 0], [0xb0, 0]][words];
            raw(47, [&flags, &ethertype, &vec![0xa5; 4 * words][..], packet].concat())
        }
        Tunnel::GreBridged => raw(47, [&[0, 0, 0x65, 0x58], frame].concat()),
        Tunnel::Vxlan => udp(VXLAN, [&[8, 0, 0, 0, 1, 2, 3, 0], frame].concat()),
        Tunnel::Geneve { words } => {
            let header = [words as u8, 0, 0x65, 0x58, 1, 2, 3, 0];
            udp(GENEVE, [&header, &vec![0xa5; 4 * words][..], frame].concat())
        }
        Tunnel::GtpU { options } => {
            let flags = if options { 0x32 } else { 0x30 };
            let rest: &[u8] = if options { &[0, 1, 0, 0] } else { &[] };
            udp(GTP_U, [&[flags, 255, 0, 0, 1, 2, 3, 4], rest, packet].concat())
        }
        Tunnel::Mpls { labels } => {
            let mut stack = [0, 0x10, 0, 64].repeat(labels);
            stack[4 * labels - 2] = 1;
            udp(MPLS, [&stack, packet].concat())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_etherparse(
        tags in 0..=2_u8,
        ip in prop_oneof![ipv4(), ipv6()],
        upper in upper(),
        payload in vec(any::<u8>(), sctp::BYTES..64),
        padding in 0..20_usize,
    ) {
        let frame = build(tags, ip, &upper, &payload);
        let key = expected(&frame);
        let mut frame = on_the_wire(frame);
        prop_assert_eq!(flow_key(&frame), Some(key));

        frame.resize(frame.len() + padding, 0);
        prop_assert_eq!(flow_key(&frame), Some(key), "padded");
    }

    #[test]
    fn tunnels_agree_with_etherparse(
        tags in 0..=2_u8,
        ip in prop_oneof![ipv4(), ipv6()],
        upper in upper(),
        payload in vec(any::<u8>(), sctp::BYTES..64),
        tunnels in vec((tunnel(), outer_ip(), 0..=1_u8), 1..=3),
    ) {
        let frame = build(tags, ip, &upper, &payload);
        let innermost = expected(&frame);
        let mut frame = on_the_wire(frame);
        for (tunnel, ip, tags) in &tunnels {
            frame = wrap(&frame, *tunnel, ip.clone(), *tags);
        }
        prop_assert_eq!(flow_key(&frame), Some(innermost));

        let outermost = expected(&frame);
        prop_assert_eq!(flow::dissect(&frame, LinkType::ETHERNET, Layers::Outer).flow(), Some(outermost));
        prop_assert_eq!(flow::flow_key(&frame, LinkType::ETHERNET, Layers::Outer), Some(outermost));
        let raw = &frame[ip_offset(&frame)..];
        prop_assert_eq!(flow::flow_key(raw, LinkType::RAW, Layers::Inner), Some(innermost));
    }

    #[test]
    fn a_cut_frame_keeps_its_addresses(
        tags in 0..=2_u8,
        ip in prop_oneof![ipv4(), ipv6()],
        upper in upper(),
        payload in vec(any::<u8>(), sctp::BYTES..20),
    ) {
        let addresses = |key: FlowKey| [key.source(), key.destination()].map(|end| end.expect("a flow of IP").ip());
        let frame = build(tags, ip, &upper, &payload);
        let whole = addresses(expected(&frame));
        let frame = on_the_wire(frame);
        for len in 0..frame.len() {
            if let Some(key) = flow_key(&frame[..len]) {
                prop_assert_eq!(addresses(key), whole, "cut to {}", len);
            }
        }
    }
}
