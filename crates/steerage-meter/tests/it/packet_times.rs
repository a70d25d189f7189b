//! A pcapng file with and without times: a Simple Packet Block has no timestamp.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use steerage::flow::wire::{FrameBuilder, ethernet, ipv4};
use steerage::{WallTime, flow::protocol};

use crate::meter_captures::{endless, meter};

/// The start of the recording: 2023-11-14 22:13:20 UTC.
const START: u64 = 1_700_000_000;

fn packet(port: u16, seconds: Option<u64>) -> (Option<u64>, Vec<u8>) {
    (seconds, FrameBuilder::udp(([10, 0, 0, 1], port), ([10, 0, 0, 2], 2)).frame(b"data"))
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let total = (padded as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &total, body, &vec![0; padded - body.len()], &total].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn capture(name: &str, packets: &[(Option<u64>, Vec<u8>)]) -> PathBuf {
    let section = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    let mut file = [section, block(1, &words(&[1, 0]))].concat();
    for (seconds, frame) in packets {
        let len = frame.len() as u32;
        file.extend(match seconds {
            Some(seconds) => {
                let micros = (START + seconds) * 1_000_000;
                block(6, &[words(&[0, (micros >> 32) as u32, micros as u32, len, len]), frame.clone()].concat())
            }
            None => block(3, &[words(&[len]), frame.clone()].concat()),
        });
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

fn flows(capture: &Path, cpus: usize) -> BTreeMap<u16, (usize, u64, u64, u64)> {
    let mut flows = BTreeMap::new();
    let seconds = |time: WallTime| (time.as_nanos() / 1_000_000_000).wrapping_sub(START);
    for record in meter(capture, endless(), cpus).1 {
        let port = record.key().source().unwrap().port();
        let (first, last) = (seconds(record.first()), seconds(record.last()));
        let flow = flows.entry(port).or_insert((0, 0, first, last));
        (flow.0, flow.1) = (flow.0 + 1, flow.1 + record.forth().packets);
        (flow.2, flow.3) = (flow.2.min(first), flow.3.max(last));
    }
    flows
}

#[test]
fn they_take_the_time_of_the_packet_before() {
    let mut packets = vec![packet(1, Some(0))];
    packets.extend((0..200).map(|_| packet(1, None)));
    let path = capture("one-time.pcapng", &packets);
    assert_eq!(flows(&path, 2), BTreeMap::from([(1, (1, 201, 0, 0))]));

    packets.extend((0..100).map(|_| packet(2, None)));
    packets.push(packet(3, Some(50)));
    packets.push(packet(2, None));
    let path = capture("two-times.pcapng", &packets);
    assert_eq!(flows(&path, 1), BTreeMap::from([(1, (1, 201, 0, 0)), (2, (1, 101, 0, 50)), (3, (1, 1, 50, 50))]));
}

#[test]
fn before_all_times_they_take_the_first() {
    let path = capture("late-time.pcapng", &[packet(1, None), packet(1, None), packet(1, Some(7))]);
    assert_eq!(flows(&path, 2), BTreeMap::from([(1, (1, 3, 7, 7))]));
}

#[test]
fn a_fragment_stays_with_its_datagram() {
    let (_, mut first) = packet(1, None);
    let mut later = first.clone();
    let fragment = ethernet::BYTES + 6;
    first.truncate(ethernet::BYTES + ipv4::BYTES + 8);
    first[ethernet::BYTES + 3] = (ipv4::BYTES + 8) as u8;
    first[fragment..fragment + 2].copy_from_slice(&ipv4::MORE_FRAGMENTS.to_be_bytes());
    later[fragment..fragment + 2].copy_from_slice(&1u16.to_be_bytes());
    assert_eq!(first[ethernet::BYTES + ipv4::PROTOCOL_AT], protocol::UDP);
    let path = capture("fragment-time.pcapng", &[(Some(0), first), (None, later)]);
    assert_eq!(flows(&path, 2), BTreeMap::from([(1, (1, 2, 0, 0))]));
}
