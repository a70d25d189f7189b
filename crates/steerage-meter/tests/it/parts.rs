//! If the parts of a recording are metered separately and joined, their flows are those of the
//! whole recording.

use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use proptest::prelude::*;
use steerage::WallTime;
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};
use steerage::flow::wire::{FrameBuilder, ipv4::MORE_FRAGMENTS, protocol};
use steerage::testing::{Frame, HandlerTester};
use steerage_meter::{
    Column, Edges, EdgesError, FlowEnd, FlowRecord, FlowWriter, MeterOptions, Metered, Metering, OtherTimeouts,
    PartEdges, Values,
};

const MS: u64 = 1_000_000;
const START: u64 = 1_700_000_000_000 * MS;

/// The number of packets in a batch. Flows time out only between batches.
const BATCH: usize = 3;

fn options(clock: Option<Duration>) -> MeterOptions {
    let (active, active_by_clock) = (clock.unwrap_or(Duration::MAX), clock.is_some());
    MeterOptions { active, active_by_clock, names: true, flows_max: 256, ..MeterOptions::default() }
}

fn meter(
    frames: &[Frame],
    metering: impl FnOnce(steerage_meter::Exporter) -> Metering,
) -> (Vec<FlowRecord>, steerage_meter::MeterReport) {
    let records = Arc::<Mutex<Vec<FlowRecord>>>::default();
    let to = Arc::clone(&records);
    let take = move |some: &[FlowRecord]| {
        to.lock().unwrap().extend_from_slice(some);
        Ok(())
    };
    let writer = FlowWriter::pass_to("a test", take, || {}).unwrap();
    let metering = metering(writer.exporter(true));
    let mut tester = HandlerTester::new(move |_cpu| metering.meter());
    frames.chunks(BATCH).for_each(|batch| drop(tester.handle(batch.iter().cloned())));
    let report = tester.finish().report;
    writer.finish(Vec::new()).unwrap();
    let records = std::mem::take(&mut *records.lock().unwrap());
    (records, report)
}

fn whole(frames: &[Frame], clock: Option<Duration>) -> Vec<FlowRecord> {
    let (mut records, report) = meter(frames, |exporter| Metering::new(options(clock), Some(exporter)));
    records.extend(Metered::of([report], 0).1.into_records());
    records
}

fn part(frames: &[Frame]) -> (Edges, Vec<FlowRecord>) {
    part_by(frames, None)
}

fn part_by(frames: &[Frame], clock: Option<Duration>) -> (Edges, Vec<FlowRecord>) {
    let (mut records, report) = meter(frames, |exporter| Metering::of_part(options(clock), Some(exporter)));
    let (edges, more) = report.edges().expect("the meter of a part");
    records.extend(more);
    (edges, records)
}

fn bytes(edges: &Edges) -> Vec<u8> {
    PartEdges { first: 7, last: 9, edges: edges.clone() }.to_bytes()
}

fn read(bytes: &[u8]) -> Edges {
    let mut parts = PartEdges::read(bytes).unwrap();
    assert_eq!(parts.len(), 1);
    let part = parts.remove(0);
    assert_eq!(part.name(), "parts 7 to 9");
    part.edges
}

fn rows(records: &[FlowRecord]) -> Vec<String> {
    let row = |record: &FlowRecord| {
        format!(
            "{:?} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            (record.kind(), record.source(), record.destination()),
            (record.first().as_nanos() - START) / MS,
            (record.last().as_nanos() - START) / MS,
            record.forth(),
            record.back(),
            record.tcp_flags(),
            record.vlans(),
            record.tunnel(),
            record.icmp(),
            record.names(),
        )
    };
    let mut rows: Vec<String> = records.iter().map(row).collect();
    rows.sort();
    rows
}

#[derive(Clone, Debug)]
struct Step {
    flow: u16,
    is_reply: bool,
    flags: u16,
    sequence: u32,
    vlan: Option<u16>,
    pause: u64,
    late: u64,
    fragments: Vec<usize>,
    first: First,
    has_name: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Before,
    Between,
    Never,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop::sample::select(vec![ACK, ACK, ACK, ACK, SYN, SYN | ACK, FIN | ACK, FIN | ACK, RST]);
    // Pauses close to the timeouts of 2 s and 60 s, with and without `LATE_MAX`.
    let pause = prop::sample::select(vec![
        0, 0, 1, 100, 500, 900, 1500, 1999, 2000, 2500, 2999, 3000, 3500, 9000, 30_000, 57_000, 59_000, 59_999, 60_000,
        60_500, 61_000, 62_500, 130_000,
    ]);
    let late = prop_oneof![3 => Just(0), 1 => 0u64..1000, 1 => 900u64..1000];
    let vlan = prop::option::weighted(0.2, 1u16..3);
    let sequence = prop::sample::select(vec![10u32, 11, 500]);
    let fragments = prop_oneof![Just(Vec::new()), prop::collection::vec(0usize..4, 1..4)];
    let first = prop::sample::select(vec![First::Before, First::Before, First::Before, First::Between, First::Never]);
    let first = (first, prop::bool::weighted(0.3));
    let step = (0u16..6, any::<bool>(), flags, sequence, vlan, pause, late, fragments, first);
    let step = step.prop_map(|(flow, is_reply, flags, sequence, vlan, pause, late, fragments, first)| Step {
        flow,
        is_reply,
        flags,
        sequence,
        vlan,
        pause,
        late,
        fragments,
        first: first.0,
        has_name: first.1,
    });
    prop::collection::vec(step, 1..60)
}

const DNS: u16 = 5;

fn dns_message(id: u16, is_response: bool, name: u8) -> Vec<u8> {
    let flags = if is_response { 0x8183 } else { 0x0100 };
    let header = [id, flags, 1, 0, 0, 0].map(u16::to_be_bytes).concat();
    [&header[..], &[1, b'A' + name, 0, 0, 1, 0, 1]].concat()
}

fn frames(steps: &[Step]) -> Vec<Frame> {
    let mut now = START + 1000 * MS;
    let mut frames = Vec::new();
    let mut later: Vec<(usize, Vec<u8>)> = Vec::new();
    for (nth, step) in steps.iter().enumerate() {
        now += step.pause * MS;
        let is_dns = step.flow == DNS;
        let (host, server) = (([10, 0, 0, 1], 1000 + step.flow), ([192, 0, 2, 1], if is_dns { 53 } else { 443 }));
        let (from, to) = if step.is_reply { (server, host) } else { (host, server) };
        let tag = |builder| step.vlan.into_iter().fold(builder, FrameBuilder::vlan);
        let (protocol, header, packet) = if step.flow >= 3 {
            (protocol::UDP, 8, FrameBuilder::udp(from, to))
        } else {
            let segment = FrameBuilder::tcp(from, to).flags(step.flags).sequence(step.sequence);
            (protocol::TCP, 20, segment.acknowledgement(step.sequence))
        };
        let mut due = Vec::new();
        if step.fragments.is_empty() || is_dns {
            let payload = match step.has_name {
                false => b"data".to_vec(),
                true if is_dns => dns_message(step.sequence as u16, step.is_reply, nth as u8),
                true => format!("GET / HTTP/1.1\r\nHost: {nth}\r\n\r\n").into_bytes(),
            };
            due.push(tag(packet).frame(&payload));
        } else {
            let id = nth as u16;
            let last = step.fragments.len() as u16 - 1;
            let mut rest = step.fragments.iter().zip(0..).map(|(after, at)| {
                let ip = tag(FrameBuilder::ip(from.0, to.0, protocol));
                (nth + after, later_fragment(ip, id, (3 + at, at < last)))
            });
            // The later fragments of a SYN never overtake its first fragment.
            let is_syn = step.flow < 3 && step.flags == SYN;
            if step.first == First::Between && !is_syn {
                due.extend(rest.next().map(|(_, frame)| frame));
            }
            if step.first != First::Never {
                due.push(first_fragment(tag(packet), id, &[0; 24][header..]));
            }
            later.extend(rest);
        }
        let (of_step, rest): (Vec<_>, Vec<_>) = later.into_iter().partition(|(after, _)| *after <= nth);
        later = rest;
        due.extend(of_step.into_iter().map(|(_, frame)| frame));
        let time = WallTime::from_nanos(now - step.late * MS);
        frames.extend(due.into_iter().map(|frame| Frame::new(frame).with_time(time)));
    }
    frames
}

fn first_fragment(datagram: FrameBuilder, id: u16, data: &[u8]) -> Vec<u8> {
    datagram.with_ip(|ip| (ip.identification, ip.fragment) = (id, MORE_FRAGMENTS)).frame(data)
}

fn later_fragment(ip: FrameBuilder, id: u16, (offset, more): (u16, bool)) -> Vec<u8> {
    let flags = if more { MORE_FRAGMENTS } else { 0 };
    ip.with_ip(|ip| (ip.identification, ip.fragment) = (id, flags | offset)).frame(b"fragment")
}

/// Few test cases, because a recording has up to 17 parts, each with its own meter.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

/// proptest writes the seed (to `tests/proptest-regressions`) only after shrinking.
fn config() -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 2000, ..ProptestConfig::with_cases(cases()) }
}

/// Prints the case before it is shrunk, so that the case is not lost if the test is stopped.
#[expect(clippy::print_stderr, reason = "the case would be lost")]
fn print_first_failure(case: impl FnOnce() -> String) {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| eprintln!("parts_are_the_whole fails for {}", case()));
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn parts_are_the_whole(
        steps in steps(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
        tree in prop::collection::vec(any::<prop::sample::Index>(), 16),
        clock in prop::option::of(prop::sample::select(vec![1, 3, 60, 300])),
    ) {
        let clock = clock.map(Duration::from_secs);
        let frames = frames(&steps);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(frames.len() + 1)).collect();
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([frames.len()]);
        let begins = [0].into_iter().chain(cuts.iter().copied());
        let mut records = Vec::new();
        let mut parts: Vec<Edges> = begins.zip(ends).map(|(begin, end)| {
            let (edges, more) = part_by(&frames[begin..end], clock);
            records.extend(more);
            edges
        }).collect();
        // Adjacent parts, passed as bytes as between processes, are joined in random order.
        for at in tree.iter().take(parts.len() - 1) {
            let at = at.index(parts.len() - 1);
            let later = read(&bytes(&parts.remove(at + 1)));
            let mut joined = read(&bytes(&parts[at]));
            records.extend(joined.join(later).unwrap());
            parts[at] = joined;
        }
        prop_assert_eq!(parts.len(), 1);
        records.extend(parts.remove(0).finish());
        let (joined, whole) = (rows(&records), rows(&whole(&frames, clock)));
        if joined != whole {
            print_first_failure(|| format!("{:?}", (&steps, &cuts, &tree, clock)));
        }
        prop_assert_eq!(joined, whole);
    }
}

fn at(second: u64, from_client: bool, flags: u16) -> Frame {
    let (client, server) = (([10, 0, 0, 1], 1000), ([192, 0, 2, 1], 443));
    let (from, to) = if from_client { (client, server) } else { (server, client) };
    let builder = FrameBuilder::tcp(from, to).flags(flags).sequence(7).acknowledgement(8);
    Frame::new(builder.frame(b"")).with_time(WallTime::from_nanos(START + second * 1000 * MS))
}

fn udp(second: u64, fragment: Option<(u16, u16, bool)>) -> Frame {
    let (from, to) = (([10, 0, 0, 1], 1000), ([192, 0, 2, 1], 53));
    let frame = match fragment {
        None => FrameBuilder::udp(from, to).frame(b"data"),
        Some((id, 0, _)) => first_fragment(FrameBuilder::udp(from, to), id, b""),
        Some((id, offset, more)) => later_fragment(FrameBuilder::ip(from.0, to.0, protocol::UDP), id, (offset, more)),
    };
    Frame::new(frame).with_time(WallTime::from_nanos(START + second * 1000 * MS))
}

fn rows_of_parts(frames: &[Frame], cuts: &[usize]) -> Vec<String> {
    let begins = [0].into_iter().chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([frames.len()]);
    let mut parts = begins.zip(ends).map(|(begin, end)| part(&frames[begin..end]));
    let ((mut first, mut records), (mut rest, more)) = (parts.next().unwrap(), parts.next().unwrap());
    records.extend(more);
    for (edges, more) in parts {
        records.extend(more);
        records.extend(rest.join(edges).unwrap());
    }
    records.extend(first.join(rest).unwrap());
    records.extend(first.finish());
    rows(&records)
}

/// Late packets before and after the middle part make a pause in this part seem up to 2 s longer.
#[test]
fn late_packets_on_both_sides_of_a_pause_keep_a_flow() {
    let frame = |millis: u64, port: u16| {
        let frame = FrameBuilder::udp(([10, 0, 0, 1], port), ([192, 0, 2, 1], 53)).frame(b"data");
        Frame::new(frame).with_time(WallTime::from_nanos(START + millis * MS))
    };
    // The meter checks flows at multiples of about two seconds.
    for start in (0..2200).step_by(200) {
        let others = [61_300; 3].map(|millis| frame(start + millis, 8));
        let frames =
            [&[frame(start + 1000, 7), frame(start + 100, 7)][..], &others, &[frame(start + 60_900, 7)]].concat();
        let whole = rows(&whole(&frames, None));
        assert_eq!(whole.len(), 2);
        assert_eq!(rows_of_parts(&frames, &[1, 5]), whole, "{start}");
        assert_eq!(rows_of_parts(&frames, &[1, 2, 5]), whole, "{start}");
    }
}

/// The middle part has neither the beginning nor the end of the datagram.
#[test]
fn fragments_after_a_cut_are_in_the_flow_of_their_first_one() {
    let frames = [
        udp(0, None),
        udp(1, Some((7, 0, true))),
        udp(2, Some((7, 1, true))),
        udp(3, Some((8, 1, true))),
        udp(4, Some((7, 2, false))),
        udp(5, Some((8, 2, false))),
        udp(20, Some((7, 3, false))),
        udp(31, Some((7, 4, false))),
    ];
    let whole = rows(&whole(&frames, None));
    // The UDP flow, two fragments without a first fragment, and a fragment that came too late.
    assert_eq!(whole.len(), 3);
    assert!(whole.iter().any(|row| row.contains("10.0.0.1:1000") && row.contains("packets: 5")), "{whole:?}");
    for cuts in [[2, 4], [2, 5], [3, 4], [2, 6], [3, 7], [4, 6], [1, 2]] {
        assert_eq!(rows_of_parts(&frames, &cuts), whole, "{cuts:?}");
    }
}

/// The first fragment is missing. The other fragments, 40 s apart, are one flow.
#[test]
fn fragments_long_after_the_beginning_do_not_wait() {
    let fragment = |second, offset| udp(second, Some((9, offset, true)));
    let frames = [udp(0, None), fragment(20, 1), udp(55, None), fragment(60, 2), fragment(100, 3)];
    let whole = rows(&whole(&frames, None));
    assert_eq!(whole.len(), 2);
    for cuts in [[2, 2], [1, 2], [2, 3], [2, 4]] {
        assert_eq!(rows_of_parts(&frames, &cuts), whole, "{cuts:?}");
    }
}

/// The fragment divides a pause that would exceed the timeout.
#[test]
fn a_fragment_of_an_earlier_datagram_keeps_a_flow_from_ending() {
    let before = [udp(0, Some((7, 0, true))), udp(1, None), udp(25, Some((7, 1, false)))];
    // The meter checks timeouts between batches.
    let others = vec![at(65, true, ACK); 200];
    let frames = [&before[..], &others, &[udp(70, None), udp(80, None)]].concat();
    let whole = whole(&frames, None);
    assert_eq!(whole.iter().map(|record| record.forth().packets).collect::<Vec<_>>(), [5, 200]);
    for cuts in [[1, 1], [1, 2], [1, 3], [1, 100], [1, 204], [2, 3]] {
        assert_eq!(rows_of_parts(&frames, &cuts), rows(&whole), "{cuts:?}");
    }
}

/// The fragment shortens a pause of its flow, but the part after the cut cannot know the fragment's
/// flow.
#[test]
fn a_fragment_keeps_a_closed_connection() {
    let of_tcp = |millis: u64, frame: Vec<u8>| Frame::new(frame).with_time(WallTime::from_nanos(START + millis * MS));
    let (from, to) = (([10, 0, 0, 1], 1000), ([192, 0, 2, 1], 443));
    let segment = |millis, flags| of_tcp(millis, FrameBuilder::tcp(from, to).flags(flags).sequence(7).frame(b""));
    let first = |millis| of_tcp(millis, first_fragment(FrameBuilder::tcp(from, to).sequence(7), 5, b"data"));
    let rest =
        |millis, at| of_tcp(millis, later_fragment(FrameBuilder::ip(from.0, to.0, protocol::TCP), 5, (at, true)));
    let frames = [
        first(0),
        segment(10, RST),
        rest(1900, 3),
        segment(3800, ACK),
        rest(5000, 4),
        segment(6900, ACK),
        segment(9900, ACK),
    ];
    let whole = whole(&frames, None);
    assert_eq!(whole.iter().map(|record| record.forth().packets).collect::<Vec<_>>(), [6, 1]);
    for first in 0..=frames.len() {
        for second in first..=frames.len() {
            assert_eq!(rows_of_parts(&frames, &[first, second]), rows(&whole), "{first} {second}");
        }
    }
}

/// The last packet belongs to the record that a fragment begins, but the fragment's flow is known
/// only with the first fragment of its datagram.
#[test]
fn a_fragment_that_waits_begins_a_record() {
    let of_tcp =
        |second: u64, frame: Vec<u8>| Frame::new(frame).with_time(WallTime::from_nanos(START + second * 1000 * MS));
    let (from, to) = (([10, 0, 0, 1], 1000), ([192, 0, 2, 1], 443));
    let segment = |second, flags| of_tcp(second, FrameBuilder::tcp(from, to).flags(flags).sequence(7).frame(b""));
    let first = of_tcp(0, first_fragment(FrameBuilder::tcp(from, to).sequence(7), 5, b"data"));
    let rest = of_tcp(5, later_fragment(FrameBuilder::ip(from.0, to.0, protocol::TCP), 5, (3, false)));
    let frames = [segment(0, RST), first, rest, udp(42, None), segment(43, ACK)];
    let whole = whole(&frames, None);
    let mut packets: Vec<_> = whole.iter().map(|record| record.forth().packets).collect();
    packets.sort_unstable();
    assert_eq!(packets, [1, 2, 2]);
    for cuts in [[0, 2, 4], [0, 1, 4], [0, 3, 4], [1, 2, 4]] {
        assert_eq!(rows_of_parts(&frames, &cuts), rows(&whole), "{cuts:?}");
    }
}

/// The fragments have the gateways' addresses, and their flow has the addresses of hosts in the
/// tunnel.
#[test]
fn fragments_of_a_tunnel_keep_the_flow_in_it() {
    let inner = FrameBuilder::udp(([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 53)).packet(b"data");
    let outer = || FrameBuilder::ip([192, 0, 2, 1], [192, 0, 2, 2], protocol::IPV4);
    let at = |second: u64, frame| Frame::new(frame).with_time(WallTime::from_nanos(START + second * 1000 * MS));
    let plain = |second| at(second, outer().frame(&inner));
    let first = at(0, first_fragment(outer(), 5, &inner));
    let frames = [first, plain(1), at(28, later_fragment(outer(), 5, (4, false))), plain(70), plain(135)];
    let whole = whole(&frames, None);
    assert_eq!(whole.iter().map(|record| record.forth().packets).collect::<Vec<_>>(), [4, 1]);
    for first in 0..=frames.len() {
        for second in first..=frames.len() {
            assert_eq!(rows_of_parts(&frames, &[first, second]), rows(&whole), "{first} {second}");
        }
    }
}

#[test]
fn the_fragments_that_wait_are_limited() {
    let frames: Vec<Frame> = (0..20_000u32).map(|nth| udp(0, Some((nth as u16, 1, false)))).collect();
    let (edges, mut records) = part(&frames);
    let size = bytes(&edges).len();
    assert!((500_000..2_000_000).contains(&size), "{size} bytes");
    records.extend(edges.finish());
    assert_eq!(records.iter().map(|record| record.forth().packets).sum::<u64>(), 20_000);
}

/// The part after the cut cannot know that the connection was closed before.
#[test]
fn a_flow_that_was_closed_before_the_cut_ends_after_it() {
    let frames = [at(0, true, ACK), at(1, true, RST), at(2, false, ACK), at(12, false, ACK), at(22, false, ACK)];
    let (mut one, first) = part(&frames[..2]);
    let (two, second) = part(&frames[2..]);
    assert!(first.is_empty() && second.is_empty());
    // `join` returns no record of the first flow, because an earlier part may contain the flow's
    // beginning.
    assert!(one.join(two).unwrap().is_empty());
    let records = one.finish();
    assert_eq!(records.len(), 2);
    assert_eq!((records[0].forth().packets, records[0].back().packets), (2, 1));
    // The server, which sends first after the pause, is the source.
    assert_eq!((records[1].forth().packets, records[1].source()), (2, "192.0.2.1:443".to_owned()));
}

#[test]
fn finished_flows_leave_the_edges() {
    let (edges, records) = part(&[at(0, true, ACK), at(100, true, ACK), at(200, true, ACK), at(300, true, ACK)]);
    assert_eq!((records.len(), edges.flows()), (2, 1));
    assert_eq!(edges.finish().len(), 2);
}

#[test]
fn joined_flows_are_counted() {
    let (mut one, _) = part(&[at(0, true, ACK)]);
    let (two, _) = part(&[at(1, true, ACK)]);
    let (three, _) = part(&[]);
    one.join(three).unwrap();
    one.join(two).unwrap();
    assert_eq!(one.joined(), 1);
}

#[test]
fn other_bytes_and_other_timeouts_are_refused() {
    let fragments = [udp(6, Some((1, 1, true))), udp(6, Some((2, 0, true)))];
    let (mut edges, _) = part(&[&[at(0, true, ACK), at(5, false, SYN)], &fragments[..]].concat());
    let written = bytes(&edges);
    assert_eq!(bytes(&read(&written)), written);
    for cut in [1, 3, 4, 7, 8, 30, written.len() - 1] {
        assert!(PartEdges::read(&written[..cut]).is_err(), "{cut}");
    }
    for at in 0..written.len() {
        let mut changed = written.clone();
        changed[at] ^= 0xff;
        for part in PartEdges::read(&changed).into_iter().flatten() {
            drop(part.edges.finish());
        }
    }
    let others = MeterOptions { inactive: Duration::from_secs(9), ..options(None) };
    for others in [others, options(Some(Duration::from_secs(60)))] {
        let (_, report) = meter(&[at(0, true, ACK)], |exporter| Metering::of_part(others, Some(exporter)));
        assert_eq!(edges.join(report.edges().unwrap().0).unwrap_err(), OtherTimeouts);
    }
}

/// A flow is not stored as a piece for each pause, even if many pauses are longer than the timeout
/// of closed flows.
#[test]
fn a_connection_with_pauses_stays_small() {
    let frames: Vec<Frame> = (0..500).map(|n| at(10 * n, n % 2 == 0, ACK)).collect();
    let (edges, records) = part(&frames);
    assert!(records.is_empty());
    assert!(bytes(&edges).len() < 600, "{} bytes", bytes(&edges).len());
    assert_eq!(edges.finish().len(), 1);
}

#[test]
fn fin_of_one_side_before_the_cut_and_of_the_other_after_it_close_the_flow() {
    let frames = [at(0, true, FIN | ACK), at(1, false, FIN | ACK), at(7, true, ACK)];
    let (mut one, _) = part(&frames[..1]);
    let mut records = one.join(part(&frames[1..]).0).unwrap();
    records.extend(one.finish());
    assert_eq!(rows(&records), rows(&whole(&frames, None)));
    assert_eq!(records.len(), 2);
}

#[test]
fn the_clock_cuts_records_at_its_multiples() {
    let clock = Some(Duration::from_secs(60));
    // `START` is 20 s after a multiple of 60 s.
    let frames = [at(0, false, ACK), at(39, true, ACK), at(40, true, ACK), at(41, true, ACK), at(99, false, ACK)];
    let records = whole(&frames, clock);
    let shown = |records: &[FlowRecord]| -> Vec<_> {
        let seconds = |record: &FlowRecord| (record.first().as_nanos() - START) / (1000 * MS);
        let mut rows: Vec<_> = records.iter().map(|one| (seconds(one), one.forth().packets, one.source())).collect();
        rows.sort();
        rows
    };
    let server = || "192.0.2.1:443".to_owned();
    assert_eq!(shown(&records), [(0, 1, server()), (40, 1, server())]);
    assert_eq!(records.iter().filter(|record| record.end() == FlowEnd::Active).count(), 1);
    // Only the part of the recording before the cut shows which endpoint is the source.
    let (mut one, mut parts) = part_by(&frames[..1], clock);
    let (two, more) = part_by(&frames[1..], clock);
    parts.extend(more);
    parts.extend(one.join(two).unwrap());
    parts.extend(one.finish());
    assert_eq!(rows(&parts), rows(&records));
}

#[test]
fn the_rows_of_edges_are_all_needed() {
    let frames = [at(0, true, ACK), at(1, false, SYN), at(40, true, ACK)];
    let (edges, _) = part(&frames);
    let part = |first| PartEdges { first, last: first, edges: edges.clone() };
    let mut batch = PartEdges::columns();
    part(3).add_to(&mut batch, |_| {});
    PartEdges { edges: part_by(&[], None).0, ..part(4) }.add_to(&mut batch, |_| {});
    let column = |name: &str| batch.columns().iter().find(|column| column.name() == name).unwrap();
    assert!(batch.columns().iter().all(|column| column.rows() == 4), "three pieces, and a part without flows");
    let numbers = |column: &Column| match column.values() {
        Values::U8(values) => values.iter().map(|value| u64::from(*value)).collect(),
        Values::U32(values) => values.iter().map(|value| u64::from(*value)).collect(),
        Values::U64(values) => values.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(numbers(column("part_first")), [3, 3, 3, 4]);
    assert_eq!(numbers(column("begins_before")), [1, 0, 0, 0]);
    assert_eq!(numbers(column("follows_piece")), [0, 1, 1, 0]);
    assert_eq!(numbers(column("goes_on")), [0, 0, 1, 0]);
    assert_eq!(column("packets").absent(), 1);
    assert_eq!(numbers(column("sequence"))[0], 7);
    let Values::Bytes(ends, bytes) = column("state").values() else { panic!() };
    let state = |row: usize| &bytes[ends[row] as usize..ends[row + 1] as usize];
    let read = |rows: &[usize]| PartEdges::read(&rows.iter().flat_map(|row| state(*row).to_vec()).collect::<Vec<_>>());
    let parts = read(&[2, 3, 0, 1]).unwrap();
    assert_eq!(parts.iter().map(PartEdges::name).collect::<Vec<_>>(), ["part 3", "part 4"]);
    assert_eq!(rows(&parts[0].edges.clone().finish()), rows(&edges.clone().finish()));
    assert_eq!(read(&[0, 1, 2, 1]).unwrap_err(), EdgesError::Twice("part 3".to_owned()));
    let missing = read(&[0, 2, 3]).unwrap_err().to_string();
    assert_eq!(missing, "part 3: 1 of 3 rows of the edges are missing: give all rows");
}
