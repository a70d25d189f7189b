//! Tests segments of a flow that are merged before the handler gets them: [`Builder::coalesce`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use steerage::flow::offload::{Offload, OffloadKind};
use steerage::flow::wire::checksum::{adjusted, finish_transport, fold, sum};
use steerage::flow::wire::{FrameBuilder, be16, ethernet, ipv4, put, tcp, udp};
use steerage::testing::{self, Frame};
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, Output, Snapshot, TxId,
    device::{
        Blocks, Capabilities, Claim, Completions, FrameHeader, OFFLOAD_BYTES, Opened, Outgoing, Polled, Region,
        RxQueue, Sent, TxCapabilities, TxQueue,
    },
    packet::Verdict,
    stats::DropReason,
};
use steerage_fixtures::{assert_at_rest, quiet_panics};

const BLOCK_BYTES: usize = 1 << 20;
const IP_AT: usize = ethernet::BYTES;
const UDP_AT: usize = IP_AT + ipv4::BYTES;

struct Source {
    frames: Vec<(Vec<u8>, Option<Offload>)>,
    next: usize,
    claim: Option<Claim>,
    lends: bool,
}

impl RxQueue for Source {
    fn capabilities(&self) -> Capabilities {
        if self.lends { Capabilities::blocks(2048).can_wait() } else { Capabilities::pages(2048).can_wait() }
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        if !self.lends {
            return Ok(Opened::default());
        }
        let (blocks, claim) = Blocks::map(1, BLOCK_BYTES).unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let polled = self.frames[self.next..].iter().take(budget);
        if polled.len() == 0 {
            return Ok(Polled::Ended);
        }
        self.next += polled.len();
        for (frame, offload) in polled {
            let wire_len = frame.len() as u32;
            let header = FrameHeader { nanos: 5, wire_len, link: LinkType::ETHERNET.0, interface: 3 };
            let Some(claim) = &self.claim else {
                let mut page = out.take_page().expect("pages for a poll");
                let bytes = out.page_mut(&mut page);
                bytes[112..128].copy_from_slice(&header.to_bytes());
                bytes[128..128 + frame.len()].copy_from_slice(frame);
                out.push(steerage::device::Completion::new(page, 128, frame.len()).with_header(), frame.len());
                continue;
            };
            let mut lending = out.lending(claim, 0, BLOCK_BYTES).unwrap();
            lending.bytes()[OFFLOAD_BYTES..][..frame.len()].copy_from_slice(frame);
            assert!(match offload {
                Some(offload) => lending.push_offload(OFFLOAD_BYTES, frame.len(), (header, *offload), None),
                None => lending.push(OFFLOAD_BYTES, frame.len(), header),
            });
        }
        Ok(Polled::More)
    }
}

/// A handler that accepts merged packets and splits them into frames.
#[derive(Clone, Default)]
struct Whole {
    frames: Arc<Mutex<Vec<Vec<u8>>>>,
    packets: Arc<Mutex<usize>>,
}

impl TxQueue for Whole {
    fn capabilities(&self) -> TxCapabilities {
        let mut can = TxCapabilities::default();
        can.merged = true;
        can
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let mut frames = self.frames.lock().unwrap();
            *self.packets.lock().unwrap() += 1;
            let before = frames.len() as u64;
            match packet.offload() {
                Some(offload) => {
                    let total: usize = packet.segments().map(<[u8]>::len).sum();
                    assert_eq!((packet.received().total_len, packet.received().wire_len), (total, total));
                    frames.extend(packet.parts(&offload).map(|part| [part.header(), part.payload()].concat()));
                }
                None => frames.push(packet.segments().flatten().copied().collect()),
            }
            assert_eq!(frames.len() as u64 - before, packet.frames());
            sent.packets += packet.frames();
        }
        Ok(sent)
    }
}

/// A handler that decrements the TTL as a router does. The handler adds a link header if `adds` is
/// set.
#[derive(Default)]
struct Route {
    packets: u64,
    adds: bool,
    panics: bool,
}

impl Handler for Route {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        self.packets += batch.len() as u64;
        for (nth, mut packet) in batch.iter_mut().enumerate() {
            assert!(!(self.panics && nth == 1), "a planted panic");
            assert_eq!((packet.interface(), packet.wire_len()), (Some(3), packet.total_len()));
            let data = packet.data_mut().unwrap();
            if data[IP_AT] >> 4 == 4 {
                let word = be16(data, IP_AT + 8);
                let checksum = adjusted(be16(data, IP_AT + 10), word, word - 0x100);
                data[IP_AT + 8] -= 1;
                put(data, IP_AT + 10, checksum.to_be_bytes());
            } else {
                data[IP_AT + 7] -= 1;
            }
            if self.adds {
                packet.prepend(4).unwrap().fill(0xee);
                packet.set_link(LinkType::RAW);
            }
            packet.transmit(TxId(0));
        }
    }

    fn finish(self, _: &mut Cpu) -> u64 {
        self.packets
    }
}

struct Ran {
    snapshot: Snapshot,
    /// Packets that handlers got.
    handled: u64,
    sent: Vec<Vec<u8>>,
    /// Packets that the output got.
    outgoing: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct How {
    coalesce: bool,
    lends: bool,
    whole: bool,
    adds: bool,
    panics: bool,
}

fn run(frames: &[(Vec<u8>, Option<Offload>)], how: How) -> Ran {
    let source = Source { frames: frames.to_vec(), next: 0, claim: None, lends: how.lends };
    let (recorded, records) = testing::output();
    let whole = Whole::default();
    let kept = whole.clone();
    let output = match how.whole {
        true => Output::new("whole", "test", move |_| Ok(Box::new(kept.clone()) as Box<dyn TxQueue>)),
        false => recorded,
    };
    let builder = Builder::new().virtual_cpus(1).check_order(true).coalesce(how.coalesce).output(output);
    let builder = builder.input(Input::new("source", "test", vec![Box::new(source)]));
    let instance = builder.build(move |_| Route { adds: how.adds, panics: how.panics, packets: 0 }).unwrap();
    let outcome = instance.start().unwrap().join();
    assert_at_rest(&outcome.snapshot);
    let handled = outcome.reports.iter().map(|(_, packets)| packets).sum();
    let packets = records.packets();
    let sent = match how.whole {
        true => whole.frames.lock().unwrap().clone(),
        false => packets.iter().map(|packet| packet.bytes.clone()).collect(),
    };
    assert!(packets.iter().all(|packet| packet.wire_len == packet.bytes.len()));
    let outgoing = if how.whole { *whole.packets.lock().unwrap() } else { sent.len() };
    Ran { snapshot: outcome.snapshot, handled, sent, outgoing }
}

/// Groups frames by addresses and ports. If "don't fragment" is set, the IPv4 identification has no
/// meaning (RFC 6864), and the frames of a split packet get increasing identifications.
fn by_flow(frames: &[Vec<u8>], skip: usize) -> HashMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut flows: HashMap<_, Vec<_>> = HashMap::new();
    for frame in frames {
        let ip = &frame[skip + IP_AT..];
        let flow = if ip[0] >> 4 == 4 { [&ip[9..10], &ip[12..24]].concat() } else { [&ip[6..7], &ip[8..44]].concat() };
        let mut frame = frame.clone();
        let ip = &mut frame[skip + IP_AT..];
        if ip[0] >> 4 == 4 {
            assert_eq!(fold(sum(&ip[..20], 0)), 0xffff, "the checksum of the header");
            if be16(ip, 6) & ipv4::DONT_FRAGMENT != 0 {
                ip[4..6].fill(0);
                ip[10..12].fill(0);
            }
        }
        flows.entry(flow).or_default().push(frame);
    }
    flows
}

#[derive(Clone, Debug)]
struct Flow {
    kind: u8,
    size: usize,
    counts: usize,
    flags: Vec<u16>,
}

fn flow() -> impl Strategy<Value = Flow> {
    let flags = prop_oneof![8 => Just(tcp::ACK), 1 => Just(tcp::ACK | tcp::PSH), 1 => Just(tcp::ACK | tcp::FIN)];
    (0_u8..5, 1_usize..1400, 1_usize..40, prop::collection::vec(flags, 40))
        .prop_map(|(kind, size, counts, flags)| Flow { kind, size, counts, flags })
}

fn frames_of(nth: usize, flow: &Flow) -> Vec<Vec<u8>> {
    let port = 1000 + nth as u16;
    let (v4, v6) = (([10, 0, 0, 1], [10, 0, 0, 2]), ([0xfd; 16], [0xfe; 16]));
    let mut sequence = 77_u32;
    let one = |at: usize, payload: &[u8], sequence: u32| match flow.kind {
        0 => FrameBuilder::tcp((v4.0, port), (v4.1, 80)).sequence(sequence).flags(flow.flags[at]).frame(payload),
        1 => FrameBuilder::tcp((v6.0, port), (v6.1, 80)).sequence(sequence).flags(flow.flags[at]).frame(payload),
        2 => FrameBuilder::udp((v6.0, port), (v6.1, 443)).frame(payload),
        3 => {
            let number = |ip: &mut steerage::flow::wire::IpHeader| (ip.identification, ip.fragment) = (at as u16, 0);
            FrameBuilder::udp((v4.0, port), (v4.1, 444)).with_ip(number).frame(payload)
        }
        // Damaged frames must arrive unchanged.
        _ => {
            let mut frame = FrameBuilder::udp((v4.0, port), (v4.1, 443)).frame(payload);
            let last = frame.len() - 1;
            frame[last] ^= u8::from(at % 3 == 0);
            frame
        }
    };
    let mut frames = Vec::new();
    for at in 0..flow.counts {
        let bytes = if at % 11 == 10 { flow.size.div_ceil(2) } else { flow.size };
        let payload: Vec<u8> = (0..bytes).map(|byte| (byte + at + nth) as u8).collect();
        frames.push(one(at, &payload, sequence));
        sequence = sequence.wrapping_add(bytes as u32);
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn merged_and_cut_is_the_same_as_unmerged(
        flows in prop::collection::vec(flow(), 1..12),
        picks in prop::collection::vec(any::<u8>(), 480),
        (lends, whole, adds) in any::<(bool, bool, bool)>(),
    ) {
        let mut left: Vec<_> = flows.iter().enumerate().map(|(nth, flow)| frames_of(nth, flow).into_iter().peekable()).collect();
        let mut frames = Vec::new();
        for pick in picks {
            left.retain_mut(|flow| flow.peek().is_some());
            if left.is_empty() {
                break;
            }
            let nth = usize::from(pick / 4) % left.len();
            frames.extend(left[nth].by_ref().take(usize::from(pick % 4) + 1).map(|frame| (frame, None)));
        }
        let how = How { lends, whole, adds, ..How::default() };
        let [plain, merged] = [false, true].map(|coalesce| run(&frames, How { coalesce, ..how }));
        let skip = if adds { 4 } else { 0 };
        prop_assert_eq!(by_flow(&plain.sent, skip), by_flow(&merged.sent, skip));
        prop_assert_eq!(plain.handled, frames.len() as u64);
        prop_assert!(merged.handled <= plain.handled);
        let counts = |ran: &Ran| (ran.snapshot.received(), ran.snapshot.verdicts().transmitted, ran.snapshot.outputs[0].packets);
        prop_assert_eq!(counts(&merged), counts(&plain));
        let outgoing = if whole { merged.handled } else { plain.handled };
        prop_assert_eq!(merged.outgoing as u64, outgoing);
    }
}

fn datagrams(count: usize) -> Vec<(Vec<u8>, Option<Offload>)> {
    let frame = |nth: usize| FrameBuilder::udp(([10, 0, 0, 1], 7), ([10, 0, 0, 2], 9)).frame(&[nth as u8; 100]);
    (0..count).map(|nth| (frame(nth), None)).collect()
}

/// One poll takes 64 frames, so a batch has 64 frames.
#[test]
fn a_batch_of_one_flow_is_one_packet() {
    for (lends, whole) in [(false, false), (false, true), (true, false), (true, true)] {
        let how = How { coalesce: true, lends, whole, ..How::default() };
        let ran = run(&datagrams(640), how);
        assert_eq!((ran.handled, ran.outgoing), (10, if whole { 10 } else { 640 }), "{how:?}");
        assert_eq!((ran.snapshot.received(), ran.snapshot.verdicts().transmitted), (640, 640), "{how:?}");
        assert_eq!(run(&datagrams(640), How { coalesce: false, ..how }).handled, 640);
    }
}

/// If a sender has left the checksum to its network card, steerage sends the frame with a correct
/// checksum. A frame that is wrongly marked as having a partial checksum stays unchanged.
#[test]
fn begun_checksums_are_finished() {
    let begun = |(frame, _): &(Vec<u8>, _), wrong: u16| {
        let mut frame = frame.clone();
        let pseudo = sum(&frame[IP_AT + 12..UDP_AT], 17 + (frame.len() - UDP_AT) as u64);
        put(&mut frame, UDP_AT + udp::CHECKSUM_AT, (fold(pseudo) ^ wrong).to_be_bytes());
        let header = [1, 0, 0, 0, 0, 0, UDP_AT as u8, 0, udp::CHECKSUM_AT as u8, 0];
        let offload = Offload::from_virtio(&header, &frame, LinkType::ETHERNET).unwrap().unwrap();
        assert_eq!(offload.kind(), OffloadKind::Single);
        (frame, Some(offload))
    };
    let is_right = |frame: &Vec<u8>| {
        let pseudo = sum(&frame[IP_AT + 12..UDP_AT], 17 + (frame.len() - UDP_AT) as u64);
        finish_transport(sum(&frame[UDP_AT..], pseudo)) % 0xffff == 0
    };
    let complete = datagrams(128);
    for whole in [false, true] {
        let how = How { coalesce: true, lends: true, whole, ..How::default() };
        // The frames are merged although partial and complete checksums alternate.
        let mixed =
            complete.iter().enumerate().map(|(nth, one)| if nth % 2 == 0 { begun(one, 0) } else { one.clone() });
        let ran = run(&mixed.collect::<Vec<_>>(), how);
        assert_eq!((ran.handled, ran.sent.len()), (2, 128));
        assert!(ran.sent.iter().all(is_right), "whole {whole}");
        let wrong: Vec<_> = complete.iter().map(|one| begun(one, 0x0101)).collect();
        assert_eq!(run(&wrong, how).handled, 128);
    }
}

#[test]
fn a_panic_loses_the_frames_of_the_packets_without_a_verdict() {
    quiet_panics();
    // Each batch becomes two packets of 32 frames each. The handler panics at the second packet.
    let other = FrameBuilder::udp(([10, 0, 0, 1], 8), ([10, 0, 0, 2], 9)).frame(&[1; 100]);
    let frames: Vec<_> = datagrams(320).into_iter().flat_map(|one| [one, (other.clone(), None)]).collect();
    let ran = run(&frames, How { coalesce: true, panics: true, ..How::default() });
    let dropped = ran.snapshot.dropped();
    assert_eq!((ran.snapshot.verdicts().transmitted, dropped.get(DropReason::HandlerPanicked)), (320, 320));
    assert_eq!(by_flow(&ran.sent, 0).len(), 1);
}

struct Looks;

impl Handler for Looks {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        assert_eq!((batch.len(), batch.iter_mut().len()), (1, 1));
        let others = batch.read_common(|_, _| panic!("a merged packet is not common"));
        assert!(others.contains(0));
        for mut packet in batch.iter_mut() {
            let offload = packet.offload().expect("it is a super-frame");
            assert_eq!((offload.kind(), offload.segment_bytes()), (OffloadKind::Udp, 100));
            assert_eq!((packet.total_len(), packet.data().len()), (42 + 64 * 100, 42));
            assert_eq!((packet.segments().count(), packet.parts().unwrap().len()), (65, 64));
            let payload: Vec<u8> = packet.segments().skip(1).map(|part| part[0]).collect();
            assert_eq!(payload, (0..64).collect::<Vec<u8>>());
            assert_eq!(packet.flow_key().unwrap().destination().unwrap().port(), 9);
            assert!(packet.append(1).is_err() && packet.linearise().is_err());
            let part = packet.parts().unwrap().nth(7).unwrap();
            assert_eq!(packet.keep_part(&part).unwrap()[42..], [7; 100]);
            let Err(packet) = packet.keep() else { panic!("a merged packet cannot be kept") };
            assert_eq!(packet.verdict(), Verdict::Consumed);
            packet.discard();
        }
    }

    fn finish(self, _: &mut Cpu) {}
}

/// Shortens a packet as a router does for an ICMP error.
struct Shortens;

impl Handler for Shortens {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            packet.truncate(300).unwrap();
            assert_eq!((packet.total_len(), packet.wire_len(), packet.offload()), (300, 300, None));
            assert_eq!(packet.linearise().unwrap().len(), 300);
            packet.prepend(28).unwrap().fill(9);
            packet.transmit(TxId(0));
        }
    }

    fn finish(self, _: &mut Cpu) {}
}

#[test]
fn a_packet_that_is_shortened_is_one_frame() {
    for (lends, whole) in [(false, false), (false, true), (true, false), (true, true)] {
        let source = Source { frames: datagrams(128), next: 0, claim: None, lends };
        let (recorded, records) = testing::output();
        let taken = Whole::default();
        let kept = taken.clone();
        let output = match whole {
            true => Output::new("whole", "test", move |_| Ok(Box::new(kept.clone()) as Box<dyn TxQueue>)),
            false => recorded,
        };
        let builder = Builder::new().virtual_cpus(1).coalesce(true).output(output);
        let builder = builder.input(Input::new("source", "test", vec![Box::new(source)]));
        let snapshot = builder.build(|_| Shortens).unwrap().start().unwrap().join().snapshot;
        assert_at_rest(&snapshot);
        assert_eq!((snapshot.verdicts().transmitted, snapshot.verdicts().discarded), (2, 126));
        let mut sent = taken.frames.lock().unwrap().clone();
        sent.extend(records.packets().into_iter().map(|packet| packet.bytes));
        for (nth, frame) in sent.iter().enumerate() {
            let first = 64 * nth as u8;
            let payload = [[first; 100], [first + 1; 100]].concat();
            assert_eq!(
                (frame.len(), &frame[28 + 42..28 + 242], &frame[28 + 242..]),
                (328, &payload[..], &[first + 2; 58][..])
            );
        }
        assert_eq!(sent.len(), 2);
    }
}

#[test]
fn a_handler_sees_a_super_frame() {
    for lends in [false, true] {
        let source = Source { frames: datagrams(64), next: 0, claim: None, lends };
        let builder = Builder::new().virtual_cpus(1).coalesce(true);
        let builder = builder.input(Input::new("source", "test", vec![Box::new(source)]));
        let snapshot = builder.build(|_| Looks).unwrap().start().unwrap().join().snapshot;
        assert_at_rest(&snapshot);
        assert_eq!((snapshot.verdicts().discarded, snapshot.dropped().total()), (64, 0));
    }
}

/// Merged packets that cannot be split for lack of pages are dropped and counted.
#[test]
fn without_pages_nothing_is_lost_unseen() {
    for kept_max in [0, 1, 7, 63] {
        let source = Source { frames: datagrams(640), next: 0, claim: None, lends: true };
        let (output, recorded) = testing::output();
        let builder = Builder::new().virtual_cpus(1).coalesce(true).kept_max(kept_max).output(output);
        let builder = builder.input(Input::new("source", "test", vec![Box::new(source)]));
        let snapshot =
            builder.build(|_| steerage_fixtures::handlers::SendAll).unwrap().start().unwrap().join().snapshot;
        assert_at_rest(&snapshot);
        let lost = snapshot.dropped().get(DropReason::TxFull);
        assert_eq!(snapshot.verdicts().transmitted + lost, 640);
        assert_eq!(recorded.packets().len() as u64, snapshot.verdicts().transmitted);
        assert_eq!(lost == 0, kept_max == 0, "{kept_max}");
        assert!(recorded.packets().iter().all(|packet: &Frame| packet.bytes.len() == 142));
    }
}
