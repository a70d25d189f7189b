use crate::flow_key::FlowKey;
use proptest::prelude::*;

use super::ports::{TO, TO_OR_FROM};
use super::{Dissection, End, HeaderKind, Layers, dissect, flow_key, plain};
use crate::limits::{FLOW_HEADERS_MAX, IP_LAYERS_MAX, IPV6_EXTENSIONS_MAX, MPLS_LABELS_MAX, VLAN_TAGS_MAX};
use crate::link_type::LinkType;
use crate::wire::{ethertype, port, protocol};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const STATIONS: &str = "link 02:00:00:00:00:01 > 02:00:00:00:00:02";
const UDP: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
const DESTINATION_TO_UDP: [u8; 8] = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0];
const FLOW4: &str = "udp 10.0.0.1:40000 > 10.0.0.2:53";
const FLOW6: &str = "udp [fd00::1]:40000 > [fd00::2]:53";

fn eth(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    [&MACS, &ethertype.to_be_bytes()[..], packet].concat()
}

fn tagged(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> = tags.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 5]].concat()).collect();
    [&MACS, &tags[..], &ethertype.to_be_bytes(), packet].concat()
}

fn v4_full(protocol: u8, flags_and_offset: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let [high, low] = flags_and_offset.to_be_bytes();
    let len = (20 + options.len() + payload.len()) as u16;
    let [len_high, len_low] = len.to_be_bytes();
    let version = 0x45 + (options.len() / 4) as u8;
    let header = [version, 0, len_high, len_low, 0, 9, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header, options, payload].concat()
}

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    v4_full(protocol, 0, &[], payload)
}

fn outer4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = v4(protocol, payload);
    packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    packet
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    (packet[0], packet[6]) = (0x60, next);
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    (packet[8], packet[23]) = (0xfd, 1);
    (packet[24], packet[39]) = (0xfd, 2);
    packet.extend(payload);
    packet
}

fn udp_to(port: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xc0, 0x01], &port.to_be_bytes()[..], &[0, 0, 0, 0], payload].concat()
}

fn ethernet(frame: &[u8]) -> Dissection {
    dissect(frame, LinkType::ETHERNET, Layers::Inner)
}

fn shown(frame: &[u8]) -> String {
    let found = ethernet(frame);
    assert_eq!(flow_key(frame, LinkType::ETHERNET, Layers::Inner), found.flow());
    found.key.to_string()
}

fn shown4(protocol: u8, payload: &[u8]) -> String {
    shown(&eth(ethertype::IPV4, &v4(protocol, payload)))
}

fn shown6(next: u8, payload: &[&[u8]]) -> String {
    shown(&eth(ethertype::IPV6, &v6(next, &payload.concat())))
}

#[test]
fn ipv4() {
    let frame = |flags, options: &[u8], payload: &[u8]| eth(0x0800, &v4_full(17, flags, options, payload));
    assert_eq!(shown(&frame(0, &[], &UDP)), FLOW4);
    assert_eq!(shown(&frame(0x4000, &[], &UDP)), FLOW4, "don't fragment");
    assert_eq!(shown(&frame(0, &[1; 40], &UDP)), FLOW4, "options");
    assert_eq!(shown(&frame(0, &[], &UDP[..4])), FLOW4, "cut after the ports");
    assert_eq!(shown(&frame(0, &[], &UDP[..3])), "udp 10.0.0.1 > 10.0.0.2");
    assert_eq!(shown(&frame(0, &[1; 40], &[])[..40]), "udp 10.0.0.1 > 10.0.0.2", "cut options");
    assert_eq!(shown4(protocol::SCTP, &UDP), "sctp 10.0.0.1:40000 > 10.0.0.2:53");
    assert_eq!(shown4(protocol::ESP, &UDP), "esp 10.0.0.1 > 10.0.0.2");
    let authenticated = [&[protocol::UDP, 4], &[0; 22][..], &UDP].concat();
    assert_eq!(shown4(protocol::AUTHENTICATION, &authenticated), FLOW4);
}

#[test]
fn ipv6() {
    assert_eq!(shown6(protocol::UDP, &[&UDP]), FLOW6);
    assert_eq!(shown6(protocol::UDP, &[&UDP[..2]]), "udp fd00::1 > fd00::2");
    assert_eq!(shown6(protocol::NOTHING, &[]), "protocol-59 fd00::1 > fd00::2");
    for kind in [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION, protocol::SHIM6] {
        assert_eq!(shown6(kind, &[&DESTINATION_TO_UDP, &UDP]), FLOW6);
        let long = [&[protocol::UDP, 2][..], &[0; 22]].concat();
        assert_eq!(shown6(kind, &[&long, &UDP]), FLOW6);
        assert_eq!(shown6(kind, &[&long[..7]]), format!("protocol-{kind} fd00::1 > fd00::2"), "cut");
    }
    let more = [protocol::DESTINATION, 0, 1, 4, 0, 0, 0, 0];
    let chain = |len: usize| shown6(protocol::DESTINATION, &[&more.repeat(len - 1), &DESTINATION_TO_UDP, &UDP]);
    assert_eq!(chain(IPV6_EXTENSIONS_MAX), FLOW6);
    assert_eq!(chain(IPV6_EXTENSIONS_MAX + 1), "protocol-60 fd00::1 > fd00::2");
}

#[test]
fn fragments() {
    let frame = |flags| ethernet(&eth(0x0800, &v4_full(17, flags, &[], &UDP)));
    let first = frame(0x2000);
    assert_eq!(first.key.to_string(), FLOW4);
    for (flags, offset, more) in [(0x2001, 8, true), (0x0001, 8, false), (0x1fff, 65528, false)] {
        let later = frame(flags);
        assert_eq!((later.key.to_string().as_str(), later.end), ("udp 10.0.0.1 > 10.0.0.2", End::LaterFragment));
        let fragment = later.fragment().unwrap();
        assert_eq!((fragment.id, fragment.offset, fragment.bytes, fragment.more), (9, offset, 8, more));
        assert_eq!(fragment.datagram, first.fragment().unwrap().datagram);
    }
    let header = |offset: [u8; 2]| [protocol::DESTINATION, 0, offset[0], offset[1], 0, 0, 0, 1];
    let frame = |offset| eth(0x86dd, &v6(protocol::FRAGMENT, &[header(offset), DESTINATION_TO_UDP, UDP].concat()));
    let first = ethernet(&frame([0, 1]));
    assert_eq!((first.key.to_string().as_str(), first.fragment().unwrap().bytes), (FLOW6, 16));
    for offset in [[0, 9], [0, 8], [0xff, 0xf8]] {
        let later = ethernet(&frame(offset));
        assert_eq!(later.key.to_string(), "protocol-60 fd00::1 > fd00::2");
        assert_eq!(later.fragment().unwrap().datagram, first.fragment().unwrap().datagram);
    }
    assert_eq!(ethernet(&frame([0, 6])).fragment(), None, "reserved bits do not make a fragment");
    assert_eq!(shown(&frame([0, 6])), FLOW6);
}

#[test]
fn fragments_in_fragments() {
    let inner = v4_full(17, 0x0002, &[], &UDP);
    let mut outer = outer4(protocol::IPV4, &inner);
    outer[6] = 0x20;
    let found = ethernet(&eth(0x0800, &outer));
    assert_eq!(
        found.fragments.map(|f| f.map(|f| (f.ip_offset, f.offset, f.more))),
        [Some((14, 0, true)), Some((34, 16, false))]
    );
    assert_eq!(found.fragment().map(|f| f.ip_offset), Some(34));
}

#[test]
fn header_kinds_are_in_their_places() {
    assert!(HeaderKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
}

#[test]
fn tags_and_labels() {
    let packet = v6(protocol::UDP, &UDP);
    for tags in [&[][..], &[0x8100], &[0x88a8], &[0x9100, 0x8100], &[0x88a8, 0x8100], &[0x8100, 0x8100]] {
        let found = ethernet(&tagged(tags, ethertype::IPV6, &packet));
        assert_eq!(found.key.to_string(), FLOW6);
        assert_eq!(found.vlans.iter().flatten().collect::<Vec<_>>(), vec![&5; tags.len()]);
    }
    for count in [3, VLAN_TAGS_MAX] {
        let found = ethernet(&tagged(&vec![0x8100; count], ethertype::IPV6, &packet));
        assert_eq!((found.key.to_string().as_str(), found.vlans), (FLOW6, [Some(5); 2]));
    }
    let deep = tagged(&[0x8100; VLAN_TAGS_MAX + 1], ethertype::IPV6, &packet);
    assert_eq!((shown(&deep), ethernet(&deep).end), (format!("{STATIONS} 0x8100"), End::TooDeep));

    let labels = |count: usize| [[0, 1, 0x20, 64].repeat(count - 1), vec![0, 1, 0x31, 64]].concat();
    for count in [1, 2, MPLS_LABELS_MAX] {
        let found = ethernet(&eth(ethertype::MPLS, &[labels(count), packet.clone()].concat()));
        assert_eq!(found.key.to_string(), FLOW6);
        assert_eq!(found.tunnel.map(|tunnel| (tunnel.kind, tunnel.id)), Some((HeaderKind::Mpls, Some(0x13))));
    }
    assert_eq!(ethernet(&eth(ethertype::MPLS, &labels(MPLS_LABELS_MAX + 1))).end, End::TooDeep);
    let pseudowire = eth(ethertype::MPLS, &[labels(2), vec![0; 20]].concat());
    assert_eq!(shown(&pseudowire), "bytes 0200000000010200000000020000001200000013");
}

#[test]
fn no_ip() {
    assert_eq!(shown(&eth(0x0806, &[])), format!("{STATIONS} 0x0806"));
    assert_eq!(shown(&tagged(&[0x8100], 0x0806, &[])), format!("{STATIONS} 0x0806"));
    assert_eq!(shown(&tagged(&[0x8100], 0x0806, &[])[..16]), format!("{STATIONS} 0x8100"));
    for length in [0, 38, 1497, 0x05ff] {
        let frame = eth(length, &[0x42, 0x42, 3]);
        assert_eq!(
            (shown(&frame), ethernet(&frame).end),
            (format!("{STATIONS} 0x0004"), End::UnknownLlc),
            "a length, no type"
        );
    }
    assert_eq!(shown(&eth(0x0800, &v4(17, &[]))[..33]), format!("{STATIONS} 0x0800"));
    assert_eq!(shown(&MACS[..3]), "bytes 020000");
    assert_eq!(shown(&[]), "bytes ");
    for version_and_len in [0x44, 0x55, 0x65] {
        let mut wrong = eth(0x0800, &v4(17, &UDP));
        wrong[14] = version_and_len;
        assert_eq!(shown(&wrong), format!("{STATIONS} 0x0800"));
        assert_eq!(ethernet(&wrong).end, End::Malformed);
    }
    let mut wrong = eth(0x86dd, &v6(17, &UDP));
    wrong[14] = 0x45;
    assert_eq!(shown(&wrong), format!("{STATIONS} 0x86dd"));
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &v4(17, &UDP)[..]].concat();
    assert_eq!(shown(&eth(snap.len() as u16, &snap)), FLOW4);
}

#[test]
fn icmp_queries_go_by_identifier_both_ways() {
    for kind in [8, 0] {
        assert_eq!(shown4(1, &[kind, 0, 0, 0, 0x12, 0x34, 0, 1]), "icmp 10.0.0.1:4660 > 10.0.0.2:4660");
    }
    for kind in [128, 129] {
        assert_eq!(shown6(58, &[&[kind, 0, 0, 0, 0, 7, 0, 1]]), "icmp6 [fd00::1]:7 > [fd00::2]:7");
    }
    assert_eq!(shown4(1, &[9, 0, 0, 0, 0x12, 0x34, 0, 1]), "icmp 10.0.0.1 > 10.0.0.2", "router advertisement");
    assert_eq!(shown6(58, &[&[135, 0, 0, 0, 0, 7, 0, 1]]), "icmp6 fd00::1 > fd00::2", "neighbour solicitation");
}

#[test]
fn cut_headers_are_read_as_far_as_they_go() {
    let header = [&[0x9c, 0x40, 0, 53, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x13, 1, 0][..], &[0; 4]].concat();
    let cut = |protocol: u8, header: &[u8]| ethernet(&eth(0x0800, &v4(protocol, header)));
    for length in 0..=20 {
        let found = cut(protocol::TCP, &header[..length]);
        assert_eq!(found.tcp_flags, (length >= 14).then_some(0x13), "{length}");
        assert_eq!(found.payload_offset.is_some(), length == 20, "{length}");
        assert_eq!(found.end == End::Complete, length == 20, "{length}");
    }
    let echo = [8, 3, 0, 0, 0x12, 0x34, 0, 1];
    for length in 0..=8 {
        let found = cut(protocol::ICMP, &echo[..length]);
        assert_eq!(found.icmp, (length >= 2).then_some((8, 3)), "{length}");
        let ports = if length >= 6 { ":4660" } else { "" };
        assert_eq!(found.key.to_string(), format!("icmp 10.0.0.1{ports} > 10.0.0.2{ports}"), "{length}");
    }
}

#[test]
fn icmp_errors_go_by_what_they_quote() {
    let turned4 = "udp 10.0.0.2:53 > 10.0.0.1:40000";
    for kind in [3, 4, 5, 11, 12] {
        let error = [&[kind, 0, 0, 0, 0, 0, 0, 0], &v4(17, &UDP)[..]].concat();
        let found = ethernet(&eth(0x0800, &outer4(1, &error)));
        assert_eq!((found.key.to_string().as_str(), found.is_quoted), (turned4, true));
        assert_eq!(found.ip.map(|ip| (ip.offset, ip.protocol)), Some((14, 1)), "the error's own header");
    }
    let quote = |inner: &[u8]| shown(&eth(0x0800, &outer4(1, &[&[3, 0, 0, 0, 0, 0, 0, 0], inner].concat())));
    assert_eq!(quote(&v4(6, &UDP)), "tcp 10.0.0.2:53 > 10.0.0.1:40000", "eight bytes of TCP are all there is");
    assert_eq!(quote(&v4(1, &[8, 0, 0, 0, 0, 7, 0, 0])), "icmp 10.0.0.2:7 > 10.0.0.1:7");
    assert_eq!(quote(&v4(47, &[0, 0, 8, 0])), "gre 10.0.0.2 > 10.0.0.1", "a tunnel's error belongs to the tunnel");
    assert_eq!(quote(&v4_full(17, 1, &[], &UDP)), "udp 10.0.0.2 > 10.0.0.1", "a later fragment");
    assert_eq!(quote(&v4(17, &UDP)[..19]), "icmp 192.0.2.1 > 192.0.2.2", "cut");
    let error = [&[1, 0, 0, 0, 0, 0, 0, 0], &v6(17, &UDP)[..]].concat();
    assert_eq!(shown6(58, &[&error]), "udp [fd00::2]:53 > [fd00::1]:40000");
}

type Told = (HeaderKind, Option<u32>);

#[test]
fn tunnels() {
    let (inner4, inner6) = (v4(17, &UDP), v6(17, &UDP));
    let bridged = eth(0x86dd, &inner6);
    let gre = |flags: u16, ethertype: u16, rest: &[u8]| [&flags.to_be_bytes(), &ethertype.to_be_bytes(), rest].concat();
    let key = [0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0, 1];
    let pptp = [&[0, 30, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 3, 0, 0x21], &inner4[..]].concat();
    let vxlan = [&[8, 0, 0, 0, 0, 0x12, 0x34, 0], &bridged[..]].concat();
    let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4], &bridged[..]].concat();
    let gtp = [&[0x30, 255, 0, 28, 0, 0, 0, 9], &inner6[..]].concat();
    let gtp_extended = [&[0x34, 255, 0, 28, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0, 0, 0], &inner4[..]].concat();
    let cases: [(u8, Vec<u8>, &str, Option<Told>); 14] = [
        (protocol::IPV4, inner4.clone(), FLOW4, None),
        (protocol::IPV6, inner6.clone(), FLOW6, None),
        (protocol::ETHERNET, bridged.clone(), FLOW6, None),
        (protocol::ETHERIP, [&[0x30, 0], &bridged[..]].concat(), FLOW6, Some((HeaderKind::EtherIp, None))),
        (protocol::MPLS, [&[0, 0, 0x51, 64], &inner4[..]].concat(), FLOW4, Some((HeaderKind::Mpls, Some(5)))),
        (47, gre(0, 0x0800, &inner4), FLOW4, Some((HeaderKind::Gre, None))),
        (47, gre(0xb000, 0x86dd, &[&key, &inner6[..]].concat()), FLOW6, Some((HeaderKind::Gre, Some(40)))),
        (47, gre(0x2000, 0x6558, &[&key[4..8], &bridged].concat()), FLOW6, Some((HeaderKind::Gre, Some(40)))),
        (47, gre(0x3081, 0x880b, &pptp), FLOW4, Some((HeaderKind::Gre, Some(5)))),
        (17, udp_to(port::VXLAN, &vxlan), FLOW6, Some((HeaderKind::Vxlan, Some(0x1234)))),
        (17, udp_to(port::GENEVE, &geneve), FLOW6, Some((HeaderKind::Geneve, Some(7)))),
        (17, udp_to(port::GTP_U, &gtp), FLOW6, Some((HeaderKind::GtpU, Some(9)))),
        (17, udp_to(port::GTP_U, &gtp_extended), FLOW4, Some((HeaderKind::GtpU, Some(9)))),
        (17, udp_to(port::MPLS, &[&[0, 0, 0x51, 64], &inner6[..]].concat()), FLOW6, Some((HeaderKind::Mpls, Some(5)))),
    ];
    for (protocol, payload, flow, tunnel) in cases {
        let frame = eth(0x0800, &outer4(protocol, &payload));
        let found = ethernet(&frame);
        assert_eq!((shown(&frame).as_str(), found.end), (flow, End::Complete), "{protocol} {found:?}");
        assert_eq!(found.tunnel.map(|tunnel| (tunnel.kind, tunnel.id)), tunnel);
        let inner = dissect(&eth(0x86dd, &v6(protocol, &payload)), LinkType::ETHERNET, Layers::Inner);
        assert_eq!(inner.key.to_string(), flow, "over IPv6");
        let outer = dissect(&frame, LinkType::ETHERNET, Layers::Outer);
        let expected = if protocol == 17 {
            FlowKey::v4_bits((0xc000_0201, 0xc001), (0xc000_0202, u16::from_be_bytes([payload[2], payload[3]])), 17)
        } else {
            FlowKey::v4_bits((0xc000_0201, 0), (0xc000_0202, 0), protocol)
        };
        assert_eq!((outer.key, outer.ip.map(|ip| ip.offset)), (expected, Some(14)));
        assert_eq!(flow_key(&frame, LinkType::ETHERNET, Layers::Outer), Some(expected));
    }
}

#[test]
fn tags_of_backbone_and_customer() {
    let customer = tagged(&[0x8100], 0x0800, &v4(17, &UDP));
    let mut frame = tagged(&[0x88a8], ethertype::BACKBONE, &[&[0, 0, 0, 9], &customer[..]].concat());
    frame[15] = 1;
    assert_eq!((shown(&frame).as_str(), ethernet(&frame).vlans), (FLOW4, [Some(1), Some(5)]));
}

#[test]
fn links_that_are_not_read() {
    for frame in [&[][..], &[7; 60], &eth(0x0800, &v4(17, &UDP))] {
        let found = dissect(frame, LinkType(127), Layers::Inner);
        assert_eq!((found.key, found.end), (FlowKey::link([0; 6], [0; 6], 0), End::UnknownLink));
    }
    let cisco = [&[0x0f, 0, 8, 0][..], &v4(17, &UDP)].concat();
    for link in [LinkType::PPP, LinkType::PPP_HDLC, LinkType::C_HDLC] {
        assert_eq!(dissect(&cisco, link, Layers::Inner).key.to_string(), FLOW4);
    }
}

#[test]
fn mirrors_and_backbones() {
    let (inner4, inner6) = (v4(17, &UDP), v6(17, &UDP));
    let bridged = eth(0x86dd, &inner6);
    let gre = |flags: u16, kind: u16, rest: &[&[u8]]| {
        [&flags.to_be_bytes()[..], &kind.to_be_bytes(), &rest.concat()].concat()
    };
    let sequence = [0, 0, 0, 9];
    let erspan_2 = [0x10, 5, 0x01, 0x55, 0, 0, 0, 1];
    let erspan_3 = |flags: [u8; 2]| [&[0x20, 5, 0x01, 0x55, 0, 0, 0, 1, 0, 0][..], &flags].concat();
    let erspan = Some((HeaderKind::Erspan, Some(0x155)));
    let teredo_indications = [&[0, 1, 2, 3][..], &[7; 5], &[8; 8], &[0], &[0, 0], &[1; 6]].concat();
    let capwap = |words: u8, flags: u8| {
        [&[0, words << 3, 0x42 | flags >> 4, flags << 4, 0, 0, 0, 0][..], &[9; 8][..4 * usize::from(words) - 8]]
            .concat()
    };
    let tags = [10, 1, 0xff, 0, 13, 4, 1, 2, 3, 4, 1];
    let tzsp = |kind: u8, holds: u8| [&[1, kind, 0, holds][..], &tags, &bridged].concat();
    let cases: [(u8, Vec<u8>, &str, Option<Told>); 14] = [
        (47, gre(0, 0x88be, &[&bridged]), FLOW6, Some((HeaderKind::Gre, None))),
        (47, gre(0x1000, 0x88be, &[&sequence, &erspan_2, &bridged]), FLOW6, erspan),
        (47, gre(0x1000, 0x22eb, &[&sequence, &erspan_3([0, 0]), &bridged]), FLOW6, erspan),
        (47, gre(0x1000, 0x22eb, &[&sequence, &erspan_3([0, 1]), &[3; 8], &bridged]), FLOW6, erspan),
        (47, gre(0x1000, 0x22eb, &[&sequence, &erspan_3([0x08, 0]), &inner4]), FLOW4, erspan),
        (47, gre(0, 0x883e, &[&inner4]), FLOW4, Some((HeaderKind::Wccp, None))),
        (47, gre(0, 0x883e, &[&[0, 1, 2, 3], &inner4]), FLOW4, Some((HeaderKind::Wccp, None))),
        (
            17,
            udp_to(port::GRE, &gre(0x2000, 0x0800, &[&[0, 0, 0, 3], &inner4])),
            FLOW4,
            Some((HeaderKind::Gre, Some(3))),
        ),
        (17, udp_to(port::TEREDO, &inner6), FLOW6, Some((HeaderKind::Teredo, None))),
        (
            17,
            udp_to(port::TEREDO, &[&teredo_indications[..], &inner6].concat()),
            FLOW6,
            Some((HeaderKind::Teredo, None)),
        ),
        (17, udp_to(port::CAPWAP, &[capwap(2, 0), bridged.clone()].concat()), FLOW6, Some((HeaderKind::Capwap, None))),
        (17, udp_to(port::CAPWAP, &[capwap(4, 0), bridged.clone()].concat()), FLOW6, Some((HeaderKind::Capwap, None))),
        (17, udp_to(port::TZSP, &tzsp(0, 1)), FLOW6, Some((HeaderKind::Tzsp, None))),
        (17, udp_to(port::TZSP, &tzsp(1, 1)), FLOW6, Some((HeaderKind::Tzsp, None))),
    ];
    for (protocol, payload, flow, tunnel) in cases {
        let frame = eth(0x0800, &outer4(protocol, &payload));
        let found = ethernet(&frame);
        assert_eq!((shown(&frame).as_str(), found.end), (flow, End::Complete), "{protocol} {found:?}");
        assert_eq!(found.tunnel.map(|tunnel| (tunnel.kind, tunnel.id)), tunnel);
        // The key of a frame that is cut off is the inner flow, the inner addresses without ports,
        // or the outer flow.
        for len in 34..frame.len() {
            let cut = shown(&frame[..len]);
            assert!(
                cut == flow || cut.contains(" 192.0.2.") || cut.contains("10.0.0.1 >") || cut.contains("fd00::1 >"),
                "{cut}"
            );
        }
    }
    // A Teredo or CAPWAP server sends its packets to any port of a client.
    for port in [port::TEREDO, port::CAPWAP] {
        let payload = if port == port::TEREDO { inner6.clone() } else { [capwap(2, 0), bridged.clone()].concat() };
        let mut udp = udp_to(50000, &payload);
        udp[..2].copy_from_slice(&port.to_be_bytes());
        assert_eq!(shown4(17, &udp), FLOW6);
    }
    for (port, payload, end) in [
        (port::TZSP, tzsp(0, 18), End::UnknownPayload),
        (port::TZSP, tzsp(4, 1), End::Complete),
        (port::TZSP, [&[1, 0, 0, 1][..], &[0; 40]].concat(), End::TooDeep),
        (port::CAPWAP, [capwap(2, 0x10), bridged.clone()].concat(), End::UnknownPayload),
        (port::CAPWAP, [capwap(2, 0x08), bridged.clone()].concat(), End::UnknownPayload),
        (port::CAPWAP, vec![1; 40], End::Encrypted),
        (port::TEREDO, vec![0x45; 40], End::UnknownPayload),
    ] {
        let frame = eth(0x0800, &outer4(17, &udp_to(port, &payload)));
        assert_eq!((shown(&frame), ethernet(&frame).end), (format!("udp 192.0.2.1:49153 > 192.0.2.2:{port}"), end));
    }

    let backbone = tagged(&[0x88a8], ethertype::BACKBONE, &[&[0, 0x01, 0x23, 0x45], &bridged[..]].concat());
    let found = ethernet(&backbone);
    assert_eq!((found.key.to_string().as_str(), found.end), (FLOW6, End::Complete));
    assert_eq!(found.tunnel.map(|tunnel| (tunnel.kind, tunnel.id)), Some((HeaderKind::Backbone, Some(0x12345))));
    assert_eq!(found.vlans, [Some(5), None], "the tags of the outermost frame");
    let macsec = |flags: u8, rest: &[&[u8]]| {
        ethernet(&eth(ethertype::MACSEC, &[&[flags, 0, 0, 0, 0, 1], &rest.concat()[..]].concat()))
    };
    for (flags, sender) in [(0x00, &[][..]), (0x20, &[2; 8])] {
        let clear = macsec(flags, &[sender, &[0x08, 0], &inner4]);
        assert_eq!((clear.key.to_string().as_str(), clear.end), (FLOW4, End::Complete));
        let secret = macsec(flags | 0x0c, &[sender, &[0x08, 0], &inner4]);
        assert_eq!((secret.key.to_string(), secret.end), (format!("{STATIONS} 0x88e5"), End::Encrypted));
    }
}

#[test]
fn unknown_payload_leaves_the_outer_flow() {
    let outer = "udp 192.0.2.1:49153 > 192.0.2.2:4789";
    let frame = |payload: &[u8]| shown(&eth(0x0800, &outer4(17, &udp_to(port::VXLAN, payload))));
    assert_eq!(frame(&[]), outer);
    assert_eq!(frame(&[0; 60]), outer, "not VXLAN after all");
    assert_eq!(frame(&[&[8, 0, 0, 0, 0, 0, 1, 0], &eth(0x0806, &[0; 28])[..]].concat()), outer, "ARP");
    assert_eq!(frame(&[&[8, 0, 0, 0, 0, 0, 1, 0], &eth(0x0800, &v4(17, &UDP))[..33]].concat()), outer, "cut");
}

#[test]
fn nesting_ends_at_the_limits() {
    let nest = |count| (1..count).fold(v4(17, &UDP), |inner, _| outer4(protocol::IPV4, &inner));
    assert_eq!(shown(&eth(0x0800, &nest(IP_LAYERS_MAX))), FLOW4);
    let deeper = ethernet(&eth(0x0800, &nest(IP_LAYERS_MAX + 1)));
    assert_eq!((deeper.key.to_string().as_str(), deeper.end), ("protocol-4 192.0.2.1 > 192.0.2.2", End::TooDeep));
    let bridges = ethernet(&eth(ethertype::BRIDGED, &eth(ethertype::BRIDGED, &[]).repeat(2 * FLOW_HEADERS_MAX)));
    assert_eq!((bridges.end, bridges.headers().len()), (End::TooDeep, FLOW_HEADERS_MAX));
}

#[test]
fn other_links() {
    let (packet4, packet6) = (v4(17, &UDP), v6(17, &UDP));
    let cooked = |protocol: u16| [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &protocol.to_be_bytes()[..]].concat();
    let cooked2 = [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1], &[0; 2][..]].concat();
    let cases: [(LinkType, Vec<u8>, &[u8], &str); 22] = [
        (LinkType::RAW, vec![], &packet4, FLOW4),
        (LinkType::RAW, vec![], &packet6, FLOW6),
        (LinkType::RAW_BSD, vec![], &packet4, FLOW4),
        (LinkType::RAW_OPENBSD, vec![], &packet6, FLOW6),
        (LinkType::IPV4, vec![], &packet4, FLOW4),
        (LinkType::IPV6, vec![], &packet6, FLOW6),
        (LinkType::LINUX_SLL, cooked(0x86dd), &packet6, FLOW6),
        (LinkType::LINUX_SLL, [cooked(0x8100), vec![0, 5, 8, 0]].concat(), &packet4, FLOW4),
        (LinkType::LINUX_SLL2, cooked2, &packet4, FLOW4),
        (LinkType::PPP, vec![0, 0x21], &packet4, FLOW4),
        (LinkType::PPP, vec![0x57], &packet6, FLOW6),
        (LinkType::PPP, vec![0xff, 3, 0, 0x57], &packet6, FLOW6),
        (LinkType::PPP_HDLC, vec![0xff, 3, 0, 0x21], &packet4, FLOW4),
        (LinkType::PPP_HDLC, vec![0x0f, 0, 8, 0], &packet4, FLOW4),
        (LinkType::C_HDLC, vec![0x0f, 0, 8, 0], &packet4, FLOW4),
        (LinkType::C_HDLC, vec![0x8f, 0, 0x86, 0xdd], &packet6, FLOW6),
        (LinkType::LINUX_SLL, [&[0, 0, 3, 10, 0, 6][..], &[0; 8], &[0x86, 0xdd]].concat(), &packet6, FLOW6),
        (LinkType::LINUX_SLL2, [&[8, 0, 0, 0, 0, 0, 0, 1, 3, 10][..], &[0; 10]].concat(), &packet4, FLOW4),
        (LinkType::NULL, vec![2, 0, 0, 0], &packet4, FLOW4),
        (LinkType::NULL, vec![0, 0, 0, 30], &packet6, FLOW6),
        (LinkType::LOOP, vec![0, 0, 0, 24], &packet6, FLOW6),
        (LinkType::ETHERNET, [&MACS[..], &[0x88, 0x64, 0x11, 0, 0, 9, 0, 30, 0, 0x21]].concat(), &packet4, FLOW4),
    ];
    for (link, header, packet, flow) in cases {
        let frame = [&header[..], packet].concat();
        let found = dissect(&frame, link, Layers::Inner);
        assert_eq!((found.key.to_string().as_str(), found.end), (flow, End::Complete), "{link:?}");
        assert_eq!(found.ip.map(|ip| ip.offset as usize), Some(header.len()), "{link:?}");
        assert_eq!(flow_key(&frame, link, Layers::Inner), Some(found.key));
    }
    let netlink = [&[0, 0, 3, 0x38, 0, 6][..], &[0; 8], &[8, 0], &packet4].concat();
    let found = dissect(&netlink, LinkType::LINUX_SLL, Layers::Inner);
    assert_eq!((found.flow(), found.end), (None, End::UnknownLink));
    let loopback = [&[2, 0, 0, 0], &packet4[..]].concat();
    assert_eq!(dissect(&loopback, LinkType::LOOP, Layers::Inner).flow(), None, "only one order");
    let unknown = dissect(&packet4, LinkType(147), Layers::Inner);
    assert_eq!((unknown.flow(), unknown.end), (None, End::UnknownLink));
    assert_eq!(unknown.key, dissect(&packet6, LinkType(147), Layers::Inner).key, "they stay together");
}

#[test]
fn lengths_flags_and_offsets() {
    let tcp = [&[0, 80, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0x61, 0x12], &[0; 10][..], b"data"].concat();
    let found = ethernet(&tagged(&[0x8100], 0x0800, &v4(6, &tcp)));
    assert_eq!((found.tcp_flags, found.transport_offset, found.payload_offset), (Some(0x112), Some(38), Some(62)));
    assert_eq!(found.ip.and_then(|ip| ip.stated_bytes), Some(48));
    let kinds: Vec<_> = found.headers().map(|header| (header.kind, header.offset)).collect();
    use HeaderKind::*;
    assert_eq!(kinds, [(Ethernet, 0), (Vlan, 14), (Ipv4, 18), (Tcp, 38)]);
    let found = ethernet(&eth(0x86dd, &v6(protocol::HOP_BY_HOP, &[&DESTINATION_TO_UDP[..], &UDP].concat())));
    assert_eq!(found.ip.map(|ip| (ip.version, ip.protocol, ip.stated_bytes)), Some((6, 17, Some(56))));
    assert_eq!((found.transport_offset, found.payload_offset), (Some(62), Some(70)));
    for (protocol, stated) in [(protocol::TCP, None), (protocol::HOP_BY_HOP, None), (protocol::NOTHING, Some(40))] {
        let mut packet = v6(protocol, &tcp);
        packet[4..6].fill(0);
        assert_eq!(ethernet(&eth(0x86dd, &packet)).ip.map(|ip| ip.stated_bytes), Some(stated), "{protocol}");
    }
}

fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(vec![0x08, 0x00, 0x45]),
        Just(vec![0x86, 0xdd, 0x60]),
        Just(vec![0x81, 0x00, 0, 5, 0x08, 0x00, 0x45]),
        Just(vec![0x88, 0xa8, 0, 5, 0x86, 0xdd, 0x60]),
        Just(vec![0x88, 0x47, 0, 0, 1, 1, 0x45]),
        Just(vec![]),
    ];
    let telling = prop::sample::select(vec![0u8, 1, 4, 6, 17, 41, 43, 44, 47, 58, 60, 132, 0x45, 0x60, 0x12, 0xb5]);
    let bytes = prop_oneof![any::<u8>(), telling, Just(0)];
    (start, prop::collection::vec(bytes, 0..200), any::<prop::sample::Index>(), 0..9_usize).prop_map(
        |(start, bytes, at, tunnel)| {
            let mut frame = [&MACS[..], &start, &bytes].concat();
            let port = [&TO[..], &TO_OR_FROM, &[53]].concat()[tunnel].to_be_bytes();
            let ports = 12 + start.len() - 1 + 20;
            let at = [ports + 2, ports, at.index(frame.len())][at.index(3)];
            if let Some(place) = frame.get_mut(at..at + 2) {
                place.copy_from_slice(&port);
            }
            frame
        },
    )
}

fn any_link() -> impl Strategy<Value = LinkType> {
    prop::sample::select(vec![0, 1, 9, 12, 14, 50, 101, 104, 108, 113, 147, 228, 229, 276]).prop_map(LinkType)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_are_read_in_bounds(frame in prop::collection::vec(any::<u8>(), 0..200), link in any_link()) {
        for layers in [Layers::Inner, Layers::Outer] {
            let found = dissect(&frame, link, layers);
            prop_assert!(found.headers().all(|header| (header.offset as usize) < frame.len()));
            prop_assert_eq!(flow_key(&frame, link, layers), found.flow());
        }
    }

    #[test]
    fn plain_is_only_a_short_cut(frame in frame_like(), len in 0..220_usize) {
        let frame = &frame[..len.min(frame.len())];
        for layers in [Layers::Inner, Layers::Outer] {
            let found = dissect(frame, LinkType::ETHERNET, layers);
            if let Some(key) = plain(frame, layers) {
                prop_assert_eq!(found.flow(), Some(key));
            }
            if let Some(packet) = frame.get(14..) {
                let found = dissect(packet, LinkType::RAW, layers);
                prop_assert_eq!(flow_key(packet, LinkType::RAW, layers), found.flow());
            }
        }
    }

    #[test]
    fn payload_does_not_matter(payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let v6 = v6(protocol::ROUTING, &[DESTINATION_TO_UDP, UDP].concat());
        for whole in [eth(0x0800, &v4(6, &UDP)), eth(0x86dd, &v6)] {
            let longer = [&whole[..], &payload].concat();
            prop_assert_eq!(ethernet(&longer).key, ethernet(&whole).key);
        }
    }
}
