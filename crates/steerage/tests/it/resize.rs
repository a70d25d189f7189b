//! The same changes to a packet and to a vector of bytes must give the same result.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, NoRoom, Output, Packet, TxId, WallTime,
    device::{
        Blocks, Capabilities, Claim, Completion, Completions, FrameHeader, Opened, Outgoing, Polled, Region, RxQueue,
        Sent, TxQueue,
    },
    limits::{HEADROOM, PAGE_BYTES_MIN},
    packet::Segments,
};

const FRAME: [u8; 60] = [7; 60];
const FRAMES: usize = 4;
const WIRE_LEN: usize = 100;
const NANOS: u64 = 1_000_000_007;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Pages,
    PagesWithHeader,
    Lent,
    Chained,
    ChainedWithHeader,
}

/// The range of the frame's bytes in each of its pages.
const PARTS: [std::ops::Range<usize>; 4] = [0..20, 20..20, 20..45, 45..60];

struct Frames(Lie, usize, Option<Arc<Region>>, Option<Claim>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        match self.0 {
            Lie::Lent => Capabilities::blocks(FRAME.len()),
            _ => Capabilities::pages(FRAME.len()).segments(PARTS.len()),
        }
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        if self.0 == Lie::Lent {
            let (blocks, claim) = Blocks::map(2, 4096).unwrap();
            self.3 = Some(claim);
            return Ok(Opened::lending(blocks));
        }
        self.2 = Some(Arc::clone(region));
        Ok(Opened::default())
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let header = FrameHeader { nanos: NANOS, wire_len: WIRE_LEN as u32, link: 1, interface: 3 };
        for _ in 0..self.1 {
            match self.0 {
                Lie::Lent => {
                    let mut lending = out.lending(self.3.as_ref().unwrap(), 1, 4096).unwrap();
                    lending.bytes()[16..76].copy_from_slice(&FRAME);
                    assert!(lending.push(16, FRAME.len(), header));
                }
                Lie::Chained | Lie::ChainedWithHeader => {
                    let mut pages = PARTS.map(|part| {
                        let mut page = out.take_page().unwrap();
                        let bytes = out.page_mut(&mut page);
                        bytes[HEADROOM - 16..HEADROOM].copy_from_slice(&header.to_bytes());
                        bytes[HEADROOM..][..part.len()].copy_from_slice(&FRAME[part]);
                        Some(page)
                    });
                    let mut frame = Completion::new(pages[0].take().unwrap(), HEADROOM, PARTS[0].len());
                    for (page, part) in pages.into_iter().zip(PARTS).skip(1) {
                        let region = self.2.as_ref().unwrap();
                        region.append(&mut frame, page.unwrap(), HEADROOM, part.len()).unwrap();
                    }
                    match self.0 {
                        Lie::Chained => out.push(frame, FRAME.len()),
                        _ => out.push(frame.with_header(), WIRE_LEN),
                    }
                }
                Lie::Pages => assert!(out.copy_in(&FRAME)),
                Lie::PagesWithHeader => {
                    let mut page = out.take_page().unwrap();
                    let bytes = out.page_mut(&mut page);
                    bytes[HEADROOM - 16..HEADROOM].copy_from_slice(&header.to_bytes());
                    bytes[HEADROOM..][..FRAME.len()].copy_from_slice(&FRAME);
                    out.push(Completion::new(page, HEADROOM, FRAME.len()).with_header(), WIRE_LEN);
                }
            }
        }
        self.1 = 0;
        Ok(Polled::Ended)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    data: Vec<u8>,
    wire_len: usize,
    time: Option<WallTime>,
}

fn seen(packet: &Packet<'_>) -> Seen {
    let all = packet.received();
    assert_eq!((all.data, all.wire_len, all.time), (packet.data(), packet.wire_len(), packet.time()));
    let data = whole(packet.segments());
    assert_eq!((all.total_len, packet.total_len()), (data.len(), data.len()));
    assert!(data.starts_with(all.data));
    assert!(all.link == LinkType::ETHERNET || all.link == LinkType::UNKNOWN);
    Seen { data, wire_len: all.wire_len, time: all.time }
}

fn both_ways(batch: &mut Batch<'_>) {
    let one_by_one: Vec<_> =
        batch.iter_mut().map(|packet| (packet.data().to_vec(), packet.time(), packet.wire_len())).collect();
    let mut read = Vec::new();
    let others = batch.read_common(|nth, all| {
        let (data, time, wire_len) = &one_by_one[nth];
        assert_eq!((all.data, all.time, all.wire_len), (&**data, *time, *wire_len));
        assert_eq!((all.total_len, all.link), (data.len(), LinkType::ETHERNET));
        read.push(nth);
        nth % 2 == 0
    });
    let done = |nth: &usize| !others.contains(*nth);
    assert!((batch.len()..100).all(|nth| !others.contains(nth)));
    let all_done: Vec<usize> = (0..batch.len()).filter(done).collect();
    assert_eq!(all_done, read.into_iter().filter(|nth| nth % 2 == 0).collect::<Vec<_>>());
}

fn whole(segments: Segments<'_>) -> Vec<u8> {
    segments.inspect(|part| assert!(!part.is_empty())).flatten().copied().collect()
}

type Sents = Arc<Mutex<Vec<Seen>>>;

struct Wire(Sents);

impl TxQueue for Wire {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let all = packet.received();
            let data = whole(packet.segments());
            self.0.lock().unwrap().push(Seen { data, wire_len: all.wire_len, time: all.time });
            sent.packets += 1;
        }
        Ok(sent)
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Prepend(usize),
    Append(usize),
    TrimFront(usize),
    Truncate(usize),
    Write(usize),
    WriteEach,
    Linearise,
}

fn change(packet: &mut Packet<'_>, model: &mut Seen, step: u8, change: Change) -> Result<(), NoRoom> {
    let before = model.data.len();
    match change {
        Change::Prepend(len) => {
            packet.prepend(len)?.fill(step);
            model.data.splice(..0, vec![step; len]);
        }
        Change::Append(len) => {
            packet.append(len)?.fill(step);
            model.data.extend(vec![step; len]);
        }
        Change::TrimFront(len) => {
            packet.trim_front(len)?;
            model.data.drain(..len.min(before));
        }
        Change::Truncate(len) => {
            packet.truncate(len)?;
            model.data.truncate(len);
        }
        Change::Linearise => assert_eq!(packet.linearise()?, model.data),
        Change::WriteEach => {
            packet.segments_mut()?.for_each(|part| part.fill(step));
            model.data.fill(step);
        }
        Change::Write(at) => {
            let data = packet.data_mut()?;
            if let Some(byte) = data.get_mut(at) {
                *byte = step;
                model.data[at] = step;
            }
        }
    }
    model.wire_len = model.wire_len + model.data.len() - before;
    Ok(())
}

struct Changes {
    changes: Vec<Change>,
    expected: Sents,
    keeps: bool,
}

impl Handler for Changes {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        both_ways(batch);
        for mut packet in batch.iter_mut() {
            let mut model = seen(&packet);
            for (step, &one) in self.changes.iter().enumerate() {
                let (front, tail) = (packet.headroom(), packet.tailroom());
                let lent = (front, tail) == (0, 0);
                let (first, total) = (packet.data().len(), packet.total_len());
                let done = change(&mut packet, &mut model, step as u8, one);
                match one {
                    Change::Prepend(len) => assert!(lent || done.is_ok() == (len <= front)),
                    Change::Append(len) => assert!(lent || done.is_ok() == (len <= tail)),
                    Change::TrimFront(len) => assert_eq!(done.is_ok(), len.min(total) <= first),
                    Change::Linearise => assert!(done.is_ok() || total > PAGE_BYTES_MIN - FrameHeader::BYTES),
                    _ => assert_eq!(done, Ok(())),
                }
                if packet.headroom() < FrameHeader::BYTES && packet.time().is_none() {
                    (model.time, model.wire_len) = (None, model.data.len());
                }
                assert_eq!(seen(&packet), model, "after {one:?}");
            }
            if self.keeps {
                let kept = packet.keep().expect("so many may be kept");
                let (time, wire_len) = (kept.time(), kept.wire_len());
                let data = whole(kept.segments());
                assert_eq!(kept.total_len(), data.len());
                assert_eq!(Seen { data, wire_len, time }, model);
            } else {
                self.expected.lock().unwrap().push(model);
                packet.transmit(TxId(0));
            }
        }
        both_ways(batch);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn run(lie: Lie, changes: &[Change], keeps: bool) {
    let (expected, sent) = (Sents::default(), Sents::default());
    let (to, wire) = (Arc::clone(&expected), Arc::clone(&sent));
    let open = Box::new(move |_| Ok(Box::new(Wire(Arc::clone(&wire))) as Box<dyn TxQueue>));
    let changes = changes.to_vec();
    let outcome = Builder::new()
        .virtual_cpus(1)
        .input(Input::new("frames", "test", vec![Box::new(Frames(lie, FRAMES, None, None))]))
        .output(Output::new("wire", "test", open))
        .build(move |_| Changes { changes: changes.clone(), expected: Arc::clone(&to), keeps })
        .unwrap()
        .start()
        .unwrap()
        .join();
    let ledger = outcome.snapshot;
    assert_eq!((ledger.delivered(), ledger.pages_free), (FRAMES as u64, ledger.pages));
    assert_eq!(sent.lock().unwrap().len(), if keeps { 0 } else { FRAMES });
    assert_eq!(*sent.lock().unwrap(), *expected.lock().unwrap());
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let one = prop_oneof![
        (0..100_usize).prop_map(Change::Prepend),
        (0..3000_usize).prop_map(Change::Append),
        (0..100_usize).prop_map(Change::TrimFront),
        (0..100_usize).prop_map(Change::Truncate),
        (0..60_usize).prop_map(Change::Write),
        Just(Change::WriteEach),
        Just(Change::Linearise),
    ];
    proptest::collection::vec(one, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_packet_changes_as_a_vector_does(changes in changes(), keeps: bool) {
        for lie in [Lie::Pages, Lie::PagesWithHeader, Lie::Lent, Lie::Chained, Lie::ChainedWithHeader] {
            run(lie, &changes, keeps);
        }
    }
}

/// A handler can use all headroom, even the bytes in which the device has written a header.
#[test]
fn the_headroom_is_as_promised() {
    for lie in [Lie::Pages, Lie::PagesWithHeader] {
        run(lie, &[Change::Prepend(HEADROOM), Change::TrimFront(HEADROOM)], false);
        run(lie, &[Change::Prepend(HEADROOM - 16), Change::Prepend(16), Change::Prepend(1)], false);
    }
    run(Lie::Lent, &[Change::TrimFront(14), Change::Prepend(HEADROOM)], true);
}

/// Without room for a longer frame, the frame does not change.
#[test]
fn the_parts_of_a_frame_are_one() {
    let long = PAGE_BYTES_MIN - HEADROOM - 15;
    for lie in [Lie::Chained, Lie::ChainedWithHeader] {
        for keeps in [false, true] {
            run(lie, &[Change::Truncate(45), Change::Append(3), Change::Truncate(20), Change::Append(7)], keeps);
            run(lie, &[Change::TrimFront(20), Change::TrimFront(1), Change::Linearise, Change::TrimFront(1)], keeps);
            run(lie, &[Change::Append(long), Change::Linearise, Change::Prepend(1), Change::Append(1)], keeps);
            run(lie, &[Change::Prepend(HEADROOM), Change::Linearise, Change::Truncate(0), Change::Append(1)], keeps);
            run(lie, &[Change::Append(long), Change::Prepend(HEADROOM), Change::Linearise], keeps);
        }
    }
}
