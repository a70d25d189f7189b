//! Compares the dissector's results for real captures with the output of tshark.
#![expect(clippy::print_stderr, reason = "the test says how much it compared")]

use std::net::IpAddr;

use steerage::LinkType;
use steerage::flow::wire::{FrameBuilder, protocol};
use steerage::flow::{self, Layers};
use steerage_capture::Capture;
use steerage_fixtures::tshark::{PAYLOAD, all_captures, tshark};

use crate::common::{MAGICS, pcap, temporary};
use steerage_fixtures::queues::drain_with_links;

const FIELDS: [&str; 12] = [
    "frame.protocols",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "udp.port",
    "tcp.port",
    "sctp.port",
    "icmp.ident",
    "icmpv6.echo.identifier",
];

#[derive(Debug, PartialEq, Eq)]
struct Known {
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    /// For ICMP, both ports are the identifier. For a packet without ports, both ports are 0.
    ports: (u16, u16),
}

fn number(text: &str) -> u16 {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u16::from_str_radix(hex, 16)).expect("a number")
}

fn told(fields: &[String]) -> Known {
    let nothing = Known { addresses: None, protocol: None, ports: (0, 0) };
    let layers: Vec<&str> = fields[0].split(':').take_while(|layer| !PAYLOAD.contains(layer)).collect();
    let Some(at) = layers.iter().rposition(|layer| matches!(*layer, "ip" | "ipv6")) else { return nothing };
    let occurrence = |layer: &str| layers.iter().filter(|other| **other == layer).count().saturating_sub(1);
    let all = |field: usize| fields[field].split(',').filter(|text| !text.is_empty());
    let (source, destination, next) = if layers[at] == "ip" { (1, 2, 3) } else { (4, 5, 6) };
    let of_ip = |field: usize| all(field).nth(occurrence(layers[at]));
    let Some((source, destination)) = of_ip(source).zip(of_ip(destination)) else { return nothing };
    let address = |text: &str| text.parse().expect("an address");
    let upper = layers[at + 1..].iter().copied().find(|layer| !layer.starts_with("ipv6."));
    let pair = |field: usize, layer| {
        let mut ports = all(field).skip(2 * occurrence(layer));
        ports.next().zip(ports.next()).map_or((0, 0), |(from, to)| (number(from), number(to)))
    };
    let twice = |field: usize| all(field).next_back().map_or((0, 0), |id| (number(id), number(id)));
    let (protocol, ports) = match upper {
        Some("udp") => (protocol::UDP, pair(7, "udp")),
        Some("tcp") => (protocol::TCP, pair(8, "tcp")),
        Some("sctp") => (protocol::SCTP, pair(9, "sctp")),
        Some("icmp") => (protocol::ICMP, twice(10)),
        Some("icmpv6") => (protocol::ICMP6, twice(11)),
        _ => (of_ip(next).map_or(0, |text| number(text) as u8), (0, 0)),
    };
    Known { addresses: Some((address(source), address(destination))), protocol: Some(protocol), ports }
}

fn read(found: &flow::Dissection) -> Known {
    // The dissector reverses the flow key of a packet that an ICMP error quotes, because the ICMP
    // error goes in the opposite direction. tshark does not reverse it.
    let key = if found.is_quoted { found.key.reversed() } else { found.key };
    let (Some(source), Some(destination)) = (key.source(), key.destination()) else {
        return Known { addresses: None, protocol: None, ports: (0, 0) };
    };
    let (addresses, ports) = ((source.ip(), destination.ip()), (source.port(), destination.port()));
    Known { addresses: Some(addresses), protocol: key.protocol(), ports }
}

fn ipv4(host: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    FrameBuilder::ip([192, 0, 2, host], [192, 0, 2, 99], protocol).packet(payload)
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [from, to] = [7, 8].map(|host| [0x2001, 0, 0, host, 0, 0, 0, 0]);
    FrameBuilder::ip(from, to, next).packet(payload)
}

fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    [&[from, to, length, 0].map(u16::to_be_bytes).concat(), payload].concat()
}

fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8][..], &ethertype.to_be_bytes(), payload].concat()
}

/// Returns one tunnelled packet for each encapsulation, with tshark's name of the encapsulation.
fn taken_along() -> Vec<(&'static str, Vec<u8>)> {
    let (four, six) = (ipv4(1, 17, &udp(1025, 9, b"four")), ipv6(17, &udp(1026, 9, b"six.")));
    let (bridged, gre) = (ethernet(0x0800, &four), |head: &[u8], rest: &[u8]| ipv4(50, 47, &[head, rest].concat()));
    let sequence = [0, 0, 0, 1];
    let in_udp = |from, to, payload: &[u8]| ipv4(50, 17, &udp(from, to, payload));
    let erspan_3 = |last: u8| [0x20, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, last];
    let capwap = [&[0, 0x10, 0, 0, 0, 0, 0, 0][..], &bridged].concat();
    let tzsp = [&[1, 0, 0, 1, 10, 1, 0xd0, 0, 18, 1, 6, 1][..], &bridged].concat();
    let origin = [0, 0, 0x12, 0x34, 1, 2, 3, 4];
    let secure = |payload: &[u8]| [&[0x20, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 8, 0, 1][..], payload, &[0; 16]].concat();
    let ip = |packet: Vec<u8>| ethernet(0x0800, &packet);
    vec![
        ("erspan", ip(gre(&[0, 0, 0x88, 0xbe], &bridged))),
        ("erspan", ip(gre(&[0x10, 0, 0x88, 0xbe], &[&sequence, &[0x10, 0, 0, 5, 0, 0, 0, 0][..], &bridged].concat()))),
        ("erspan", ip(gre(&[0x10, 0, 0x22, 0xeb], &[&sequence, &erspan_3(0)[..], &bridged].concat()))),
        ("erspan", ip(gre(&[0x10, 0, 0x22, 0xeb], &[&sequence, &erspan_3(1)[..], &[0; 8], &bridged].concat()))),
        ("gre", ip(gre(&[0, 0, 0x88, 0x3e], &four))),
        ("gre", ip(gre(&[0, 0, 0x88, 0x3e], &[&[0, 1, 0, 0][..], &four].concat()))),
        ("gre", ip(in_udp(50_000, 4754, &[&[0, 0, 8, 0][..], &four].concat()))),
        ("teredo", ip(in_udp(50_000, 3544, &six))),
        ("teredo", ip(in_udp(3544, 50_000, &[&origin[..], &six].concat()))),
        ("capwap.data", ip(in_udp(50_000, 5247, &capwap))),
        ("capwap.data", ip(in_udp(5247, 50_000, &capwap))),
        ("tzsp", ip(in_udp(50_000, 37008, &tzsp))),
        ("ieee8021ah", ethernet(0x88e7, &[&[0, 0, 0, 7][..], &bridged].concat())),
        ("ieee8021ad", ethernet(0x88a8, &[&[0, 5, 0x88, 0xe7, 0, 0, 0, 7][..], &bridged].concat())),
        ("macsec", ethernet(0x88e5, &secure(&[&[8, 0][..], &four].concat()))),
        ("llc", ethernet(38, &[&[0x42, 0x42, 3][..], &[0; 43]].concat())),
    ]
}

#[test]
fn what_is_taken_along_is_what_tshark_finds() {
    let frames = taken_along();
    let packets: Vec<Vec<u8>> = frames.iter().map(|(_, frame)| frame.clone()).collect();
    let path = temporary("taken-along.pcap", &pcap(false, MAGICS[0], &packets));
    let all_told = tshark(&path, &FIELDS);
    std::fs::remove_file(path).unwrap();
    let Some(all_told) = all_told else { return };
    assert_eq!(all_told.len(), frames.len());
    let mut with_flow = 0;
    for ((name, frame), fields) in frames.iter().zip(&all_told) {
        assert!(fields[0].split(':').any(|layer| layer == *name), "{name}: {}", fields[0]);
        let found = flow::dissect(frame, LinkType::ETHERNET, Layers::Inner);
        assert_eq!(read(&found), told(fields), "{name}: {}: {found:?}", fields[0]);
        assert_eq!(flow::flow_key(frame, LinkType::ETHERNET, Layers::Inner), found.flow());
        with_flow += usize::from(found.is_flow);
    }
    assert_eq!(with_flow, frames.len() - 1, "all but spanning tree");
}

#[test]
fn innermost_flows_are_those_that_tshark_finds() {
    let (mut frames, mut with_flow, mut different) = (0, 0, Vec::new());
    for path in all_captures() {
        let Some(all_told) = tshark(&path, &FIELDS) else { return };
        let all_read = drain_with_links(Box::new(Capture::open(&path).expect("a capture")));
        assert_eq!(all_read.len(), all_told.len(), "{}", path.display());
        for (nth, ((frame, link), fields)) in all_read.iter().zip(&all_told).enumerate() {
            let found = flow::dissect(frame, *link, Layers::Inner);
            let (ours, theirs) = (read(&found), told(fields));
            frames += 1;
            with_flow += u32::from(found.is_flow);
            if ours != theirs {
                different.push(format!(
                    "{} frame {}: {ours:?}, tshark {theirs:?} {}",
                    path.display(),
                    nth + 1,
                    fields[0]
                ));
            }
        }
    }
    assert!(different.is_empty(), "{} of {frames}:\n{}", different.len(), different.join("\n"));
    eprintln!("{with_flow} flows in {frames} frames");
}
