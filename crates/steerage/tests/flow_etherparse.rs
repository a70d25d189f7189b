//! Flow keys against `etherparse`, which builds the frames and takes them apart in its own way.

use etherparse::{
    Ethernet2Header, IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6Extensions,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, NetSlice, PacketBuilder,
    PacketBuilderStep, SlicedPacket, TransportSlice, VlanId,
};
use proptest::{collection::vec, option, prelude::*};
use steerage::flow::{flow_key, link_key};
use steerage_mem::hash::{FlowKey, FlowParts};

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Of the header; the shortest payload, so that what the raw protocols hold can be one.
const SCTP_LEN: usize = 12;

/// What the frame should be known by, as etherparse reads it. (It reads no SCTP; the ports are its first four bytes.)
fn expected(frame: &[u8]) -> FlowKey {
    let sliced = SlicedPacket::from_ethernet(frame).expect("what etherparse has built, it can read");
    let net = sliced.net.as_ref().expect("all generated frames hold IP");
    let payload = net.ip_payload_ref().expect("all generated frames hold IP");
    let ports = match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        None if payload.ip_number == IpNumber::SCTP && !payload.fragmented => match *payload.payload {
            [a, b, c, d, ..] => (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
            _ => (0, 0),
        },
        _ => (0, 0),
    };
    match net {
        NetSlice::Ipv4(ip) => {
            let [source, destination] = [ip.header().source(), ip.header().destination()].map(u32::from_be_bytes);
            FlowKey::v4((source, ports.0), (destination, ports.1), payload.ip_number.0)
        }
        NetSlice::Ipv6(ip) => {
            let [source, destination] = [ip.header().source(), ip.header().destination()].map(u128::from_be_bytes);
            FlowKey::v6((source, ports.0), (destination, ports.1), payload.ip_number.0)
        }
        NetSlice::Arp(_) => unreachable!("all generated frames hold IP"),
    }
}

/// What stands above IP.
#[derive(Clone, Debug)]
enum Upper {
    Tcp(u16, u16),
    Udp(u16, u16),
    Echo,
    Raw(u8),
}

fn upper() -> impl Strategy<Value = Upper> {
    prop_oneof![
        any::<(u16, u16)>().prop_map(|(source, destination)| Upper::Tcp(source, destination)),
        any::<(u16, u16)>().prop_map(|(source, destination)| Upper::Udp(source, destination)),
        Just(Upper::Echo),
        // SCTP, GRE, ESP, OSPF and an unassigned number: what etherparse takes for a payload.
        prop::sample::select(vec![132, 47, 50, 89, 200]).prop_map(Upper::Raw),
    ]
}

/// Offset in units of eight bytes, and whether more fragments follow.
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

/// An options header of up to 9 * 8 bytes; what it holds is arbitrary, since nothing should read it.
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
            // Behind a fragment header etherparse reads on into the options, as far as the first fragment has them. A
            // later fragment has none, so a key that all share cannot depend on them: flow.rs tests that case.
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
        Upper::Echo if is_v4 => ip.icmpv4_echo_request(1, 2).write(&mut frame, payload),
        Upper::Echo => ip.icmpv6_echo_request(1, 2).write(&mut frame, payload),
        Upper::Raw(protocol) => ip.write(&mut frame, IpNumber(protocol), payload),
    }
    .expect("headers that fit together");
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_etherparse(
        tags in 0..=2_u8,
        ip in prop_oneof![ipv4(), ipv6()],
        upper in upper(),
        payload in vec(any::<u8>(), SCTP_LEN..64),
        padding in 0..20_usize,
    ) {
        let mut frame = build(tags, ip, &upper, &payload);
        let key = expected(&frame);
        prop_assert_eq!(flow_key(&frame), Some(key));

        frame.resize(frame.len() + padding, 0);
        prop_assert_eq!(flow_key(&frame), Some(key), "padded");

        let is_ip = if matches!(key.parts(), FlowParts::V4 { .. }) { 0x0800 } else { 0x86dd };
        prop_assert_eq!(link_key(&frame), FlowKey::link(SOURCE, DESTINATION, is_ip));
    }

    /// Wherever a frame is cut, what is left is a flow with the same addresses or no flow.
    #[test]
    fn a_cut_frame_keeps_its_addresses(
        tags in 0..=2_u8,
        ip in prop_oneof![ipv4(), ipv6()],
        upper in upper(),
        payload in vec(any::<u8>(), SCTP_LEN..20),
    ) {
        let addresses = |key: FlowKey| match key.parts() {
            FlowParts::V4 { source, destination, .. } => (u128::from(source.0), u128::from(destination.0)),
            FlowParts::V6 { source, destination, .. } => (source.0, destination.0),
            other => panic!("{other:?} is no flow"),
        };
        let frame = build(tags, ip, &upper, &payload);
        let whole = addresses(expected(&frame));
        for len in 0..frame.len() {
            if let Some(key) = flow_key(&frame[..len]) {
                prop_assert_eq!(addresses(key), whole, "cut to {}", len);
            }
        }
    }
}
