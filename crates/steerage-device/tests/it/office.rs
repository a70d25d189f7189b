//! The profile `office` of synthetic traffic. Checks its frames with an independent parser, their
//! times, and the elephant.

use std::collections::HashMap;

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use steerage::Timestamp;
use steerage::device::Polled;
use steerage::testing::QueueTester;
use steerage_device::open;
use steerage_device::synthetic::parse_payload;

use crate::common::drain_headed;

/// The flow of a frame by addresses and ports, and the kinds of its headers.
type Parsed = ((String, String), PacketHeadersOf);

/// The protocol, whether it is IPv6, and whether the frame has a VLAN tag.
type PacketHeadersOf = (&'static str, bool, bool);

/// Parses a frame, and checks its lengths and checksums.
fn parsed(frame: &[u8]) -> Parsed {
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let (transport, data) = (packet.transport.unwrap(), packet.payload.slice());
    let mut summed = transport.clone();
    let l4_bytes = transport.header_len() + data.len();
    let (from, to, v6) = match packet.net.unwrap() {
        NetHeaders::Ipv4(header, _) => {
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(usize::from(header.total_len), header.header_len() + l4_bytes);
            summed.update_checksum_ipv4(&header, data).unwrap();
            (format!("{:?}", header.source), format!("{:?}", header.destination), false)
        }
        NetHeaders::Ipv6(header, _) => {
            assert_eq!(usize::from(header.payload_length), l4_bytes);
            summed.update_checksum_ipv6(&header, data).unwrap();
            (format!("{:?}", header.source), format!("{:?}", header.destination), true)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(summed, transport);
    let (protocol, source, destination) = match transport {
        TransportHeader::Udp(udp) => ("udp", udp.source_port, udp.destination_port),
        TransportHeader::Tcp(tcp) => ("tcp", tcp.source_port, tcp.destination_port),
        other => panic!("{other:?}"),
    };
    let ends = (format!("{from}:{source}"), format!("{to}:{destination}"));
    (ends, (protocol, v6, !packet.link_exts.is_empty()))
}

#[test]
fn frames_are_valid_and_times_rise() {
    let queue = open("synthetic:profile=office,packets=20000").unwrap().queues.remove(0);
    assert!(queue.capabilities().can_wait);
    let (mut last, mut kinds, mut flows) = (0, HashMap::new(), HashMap::new());
    for (header, frame) in drain_headed(queue) {
        let header = header.expect("it has a time");
        assert!(header.nanos >= last && header.wire_len as usize == frame.len());
        last = header.nanos;
        assert!(frame.len() <= 1518 && parse_payload(&frame).is_none());
        let ((from, to), kind) = parsed(&frame);
        *kinds.entry(kind).or_insert(0) += 1;
        *flows.entry((from, to)).or_insert(0_usize) += frame.len();
    }
    assert_eq!(kinds.values().sum::<u32>(), 20_000);
    assert_eq!(kinds.len(), 8, "UDP and TCP, over IPv4 and IPv6, with and without a tag: {kinds:?}");
    // Every conversation has both directions, except those that the end cut off.
    let one_way = flows.keys().filter(|(from, to)| !flows.contains_key(&(to.clone(), from.clone()))).count();
    assert!(one_way <= 5, "{one_way} of {}", flows.len());
    let (largest, total) = (flows.values().max().unwrap(), flows.values().sum::<usize>());
    assert!(largest * 2 > total, "the elephant: {largest} of {total}");
}

/// The same seed generates the same frames, in polls of any size. A different seed generates
/// different ones.
#[test]
fn the_seed_decides() {
    let by = |seed: u64, budget| {
        let input = open(&format!("synthetic:profile=office,packets=3000,seed={seed}")).unwrap();
        let mut tester = QueueTester::new(input.queues.into_iter().next().unwrap()).unwrap();
        let mut all = Vec::new();
        loop {
            let (polled, frames) = tester.poll(Timestamp::ZERO, budget).unwrap();
            all.extend(frames);
            if polled == Polled::Ended {
                return all;
            }
        }
    };
    let first = by(1, 64);
    assert_eq!(first.len(), 3000);
    assert!(first == by(1, 64) && first == by(1, 7));
    assert!(first != by(2, 64));
}
