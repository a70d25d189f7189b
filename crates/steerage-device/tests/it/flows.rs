//! What the dissector reads of real captures, against what tshark says of them.
#![expect(clippy::print_stderr, reason = "the test says how much it compared")]

use std::net::IpAddr;

use steerage::flow::protocol;
use steerage::flow::{self, Layers};
use steerage_device::capture::Capture;
use steerage_fixtures::tshark::{PAYLOAD, captures, tshark};

use crate::common::drain_with_links;

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

/// What a frame is known by, in tshark's words.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    /// Of TCP, UDP and SCTP, else of ICMP the identifier twice; 0 where there is none.
    ports: (u16, u16),
}

fn number(text: &str) -> u16 {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u16::from_str_radix(hex, 16)).expect("a number")
}

/// The innermost flow that tshark tells.
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
    // tshark shows the packet quoted by an error as it was sent; its key is turned, since the error comes back.
    let key = if found.is_quoted { found.key.reversed() } else { found.key };
    let (Some(source), Some(destination)) = (key.source(), key.destination()) else {
        return Known { addresses: None, protocol: None, ports: (0, 0) };
    };
    let (addresses, ports) = ((source.ip(), destination.ip()), (source.port(), destination.port()));
    Known { addresses: Some(addresses), protocol: key.protocol(), ports }
}

#[test]
fn innermost_flows_are_those_that_tshark_finds() {
    let (mut frames, mut with_flow, mut different) = (0, 0, Vec::new());
    for path in captures() {
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
