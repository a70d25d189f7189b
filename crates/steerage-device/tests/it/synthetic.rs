use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled};
use steerage_device::open;
use steerage_device::synthetic::{Kind, RING, parse_payload};

use steerage_fixtures::queues::drain;

use crate::common::testers;

fn frames(spec: &str) -> Vec<Vec<u8>> {
    open(spec).unwrap().queues.into_iter().flat_map(|queue| drain(queue).0).collect()
}

/// An independent parser checks the frame. Returns the source address and port.
fn check(frame: &[u8], kind: Kind) -> (IpAddr, u16) {
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    assert_eq!(!packet.link_exts.is_empty(), kind == Kind::Vlan);
    let (transport, data) = (packet.transport.unwrap(), packet.payload.slice());
    let mut summed = transport.clone();
    let (from, l4_bytes) = match packet.net.unwrap() {
        NetHeaders::Ipv4(header, _) => {
            assert!(matches!(kind, Kind::Udp4 | Kind::Tcp4 | Kind::Vlan));
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            summed.update_checksum_ipv4(&header, data).unwrap();
            (IpAddr::from(header.source), usize::from(header.total_len) - header.header_len())
        }
        NetHeaders::Ipv6(header, _) => {
            assert!(matches!(kind, Kind::Udp6 | Kind::Tcp6));
            summed.update_checksum_ipv6(&header, data).unwrap();
            (IpAddr::from(header.source), usize::from(header.payload_length))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(summed, transport);
    assert_eq!(l4_bytes, transport.header_len() + data.len(), "the frame is filled");
    match transport {
        TransportHeader::Udp(udp) => {
            assert!(!matches!(kind, Kind::Tcp4 | Kind::Tcp6));
            assert_eq!(usize::from(udp.length), l4_bytes);
            (from, udp.source_port)
        }
        TransportHeader::Tcp(tcp) => {
            assert!(matches!(kind, Kind::Tcp4 | Kind::Tcp6));
            (from, tcp.source_port)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_is_valid_at_every_size() {
    for kind in Kind::ALL {
        for size in [64, 65, 70, 90, 96, 97, 128, 1499, 1514, 9018] {
            let all = frames(&format!("synthetic:mix={kind},size={size},packets=500,flows=50"));
            assert_eq!(all.len(), 500);
            for frame in all {
                assert_eq!(frame.len(), size.max(kind.frame_bytes_min()));
                check(&frame, kind);
                assert!(parse_payload(&frame).is_some());
            }
        }
    }
}

#[test]
fn frames_are_the_same_in_several_buffers() {
    let spec = "synthetic:mix=udp4+tcp6,size=1000,packets=500,flows=50,queues=2";
    for buffer in [128, 999, 1000, 9018] {
        let in_buffers = format!("{spec},buffer={buffer}");
        assert!(frames(spec) == frames(&in_buffers), "{buffer}");
        let mut tester = testers(open(&in_buffers).unwrap()).remove(0);
        tester.poll(Timestamp::ZERO, 16).unwrap();
        assert_eq!(tester.chained(), if buffer < 1000 { 16 } else { 0 });
        assert_eq!(tester.pages_out(), 0);
    }
}

#[test]
fn flows_keep_to_themselves() {
    let kinds = [Kind::Udp4, Kind::Tcp4, Kind::Udp6, Kind::Tcp6, Kind::Vlan];
    let input = open("synthetic:mix=udp4+tcp4+udp6+tcp6+vlan,flows=1000,packets=50000,queues=3").unwrap();
    let mut addresses = HashMap::new();
    let mut per_kind = [0; 5];
    for (i, queue) in input.queues.into_iter().enumerate() {
        for frame in drain(queue).0 {
            let (flow, _) = parse_payload(&frame).unwrap();
            assert_eq!(flow as usize % 3, i);
            let kind = flow as usize / 3 % 5;
            let place = check(&frame, kinds[kind]);
            if addresses.insert(flow, place) != Some(place) {
                per_kind[kind] += 1;
            }
        }
    }
    assert_eq!(addresses.len(), 1000, "every flow came, and each was counted once");
    // The queues have 334, 333 and 333 flows, to which they assign the five kinds in turn.
    assert_eq!(per_kind, [201, 201, 201, 199, 198]);
    let distinct: HashSet<_> = addresses.values().map(|(address, _)| address).collect();
    assert_eq!(distinct.len(), 1000);
}

#[test]
fn numbers_of_a_flow_rise_by_one() {
    for spec in
        ["synthetic:flows=100,packets=20000", "synthetic:flows=100,packets=20000,zipf=1.2,queues=4,mix=tcp4+udp6"]
    {
        let mut next: HashMap<u32, u64> = HashMap::new();
        for frame in frames(spec) {
            let (flow, number) = parse_payload(&frame).unwrap();
            let next = next.entry(flow).or_default();
            assert_eq!(number, *next, "flow {flow}");
            *next += 1;
        }
        assert_eq!(next.values().sum::<u64>(), 20_000);
    }
}

#[test]
fn segments_of_a_tcp_flow_continue_each_other() {
    let mut expected = 1u32;
    for frame in frames("synthetic:flows=1,mix=tcp4,size=1514,packets=1000") {
        let packet = PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(TransportHeader::Tcp(tcp)) = packet.transport else { panic!("{packet:?}") };
        assert_eq!(tcp.sequence_number, expected);
        expected = expected.wrapping_add(packet.payload.slice().len() as u32);
    }
}

#[test]
fn the_seed_decides() {
    let spec = "synthetic:flows=1000,packets=5000,zipf=1,mix=udp4+tcp6,queues=2,seed=";
    let by = |seed: u64, budget: usize| {
        let mut all = Vec::new();
        for mut tester in testers(open(&format!("{spec}{seed}")).unwrap()) {
            loop {
                let (polled, frames) = tester.poll(Timestamp::ZERO, budget).unwrap();
                all.extend(frames);
                if polled == Polled::Ended {
                    break;
                }
            }
        }
        all
    };
    let first = by(1, 64);
    assert_eq!(first.len(), 5000);
    assert!(first == by(1, 64) && first == by(1, 7));
    assert!(first != by(2, 64));
}

#[test]
fn packets_are_as_many_as_asked_for_over_all_queues() {
    for (queues, packets) in [(1, 1), (2, 1), (3, 100), (7, 99_999), (64, 1_000)] {
        for zipf in [0.0, 1.0, 10.0] {
            let spec = format!("synthetic:queues={queues},packets={packets},zipf={zipf},flows=1000");
            assert_eq!(frames(&spec).len(), packets, "{spec}");
        }
    }
}

#[test]
fn the_first_flow_of_zipf_is_the_largest() {
    let mut counts = vec![0u32; 1000];
    for frame in frames("synthetic:zipf=1,flows=1000,packets=100000,queues=2") {
        counts[parse_payload(&frame).unwrap().0 as usize] += 1;
    }
    // The weights of the flows are 1, 1/2, 1/3 and so on down to 1/1000. Their sum is 7.485.
    let expected = |flow: usize| 100_000.0 / 7.485 / (flow + 1) as f64;
    for flow in [0, 1, 2, 9] {
        let ratio = f64::from(counts[flow]) / expected(flow);
        assert!((0.9..1.1).contains(&ratio), "flow {flow}: {} packets", counts[flow]);
    }
}

fn rated(spec: &str) -> QueueTester {
    testers(open(spec).unwrap()).remove(0)
}

#[test]
fn a_live_source_follows_the_clock() {
    let mut tester = rated("synthetic:rate=1000000");
    assert!(!tester.queue().capabilities().can_wait);
    let start = Timestamp::from_nanos(5_000);
    let (polled, frames) = tester.poll(start, 64).unwrap();
    assert_eq!((polled, frames.len()), (Polled::NotBefore(start + Duration::from_micros(1)), 1));
    // No frame is due one nanosecond too early. After 10 us, 10 frames are due.
    assert!(tester.poll(start + Duration::from_nanos(999), 64).unwrap().1.is_empty());
    let (polled, frames) = tester.poll(start + Duration::from_micros(10), 64).unwrap();
    assert_eq!((polled, frames.len()), (Polled::NotBefore(start + Duration::from_micros(11)), 10));
    let later = start + Duration::from_micros(110);
    assert_eq!(tester.poll(later, 64).unwrap().0, Polled::More);
    assert_eq!(tester.poll(later, 64).unwrap().1.len(), 36);
    assert_eq!(tester.lost(), 0);
    assert!(tester.poll(Timestamp::ZERO, 64).unwrap().1.is_empty());
}

#[test]
fn what_finds_the_ring_full_is_lost_and_counted() {
    let mut tester = rated("synthetic:rate=1000000,packets=20000,flows=10");
    let mut received = tester.poll(Timestamp::ZERO, 64).unwrap().1.len() as u64;
    let late = Timestamp::ZERO + Duration::from_millis(10);
    let mut all = Vec::new();
    loop {
        let (polled, frames) = tester.poll(late, 64).unwrap();
        received += frames.len() as u64;
        all.extend(frames);
        if polled != Polled::More {
            break;
        }
    }
    assert_eq!((received, tester.lost()), (1 + RING, 10_000 - RING));
    let end = late + Duration::from_secs(1);
    loop {
        let (polled, frames) = tester.poll(end, 64).unwrap();
        received += frames.len() as u64;
        all.extend(frames);
        if polled == Polled::Ended {
            break;
        }
    }
    assert_eq!(received + tester.lost(), 20_000);
    // Lost frames are not numbered, so the numbers of the received frames have no gap.
    let mut last: HashMap<u32, u64> = HashMap::new();
    for (flow, number) in all.iter().map(|frame| parse_payload(frame).unwrap()) {
        assert!(last.insert(flow, number).is_none_or(|last| number == last + 1));
    }
}

#[test]
fn queues_share_the_rate_in_full() {
    for spec in ["synthetic:rate=999983,queues=3", "synthetic:rate=999983,queues=5,zipf=1,flows=100"] {
        let mut frames = 0;
        let queues = testers(open(spec).unwrap());
        let count = queues.len() as u64;
        for mut tester in queues {
            // Each queue delivers its share of the rate, rounded down, plus the frame that is due
            // at time zero.
            for micros in (0..=1_000_000).step_by(100) {
                let now = Timestamp::ZERO + Duration::from_micros(micros);
                while tester.poll_and_count(now, 64).map(|(polled, n)| (frames += n as u64, polled).1).unwrap()
                    == Polled::More
                {}
            }
            assert_eq!(tester.lost(), 0);
        }
        assert!((999_983..=999_983 + count).contains(&frames), "{spec}: {frames}");
    }
}

#[test]
fn held_pages_stop_a_source_that_can_wait_and_fill_the_ring_of_a_live_one() {
    for (spec, lost) in [("synthetic", 0), ("synthetic:rate=1000000", 1_000_001 - 256 - RING)] {
        let mut tester = rated(spec);
        tester.hold_frames();
        let now = |i: u64| Timestamp::ZERO + Duration::from_micros(i * 1000);
        let frames: usize = (0..=1000).map(|i| tester.poll_and_count(now(i), 64).unwrap().1).sum();
        assert_eq!(frames, 256, "as many as the tester has pages");
        assert_eq!(tester.lost(), lost);
        tester.release_frames();
        assert_eq!(tester.poll_and_count(now(1000), 64).unwrap().1, 64);
    }
}
