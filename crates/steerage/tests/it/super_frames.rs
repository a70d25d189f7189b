//! Tests super-frames: a super-frame is one frame in a block that represents several packets.

use std::mem;
use std::sync::{Arc, Mutex};

use etherparse::{PacketBuilder, SlicedPacket};
use steerage::flow::wire::{ethernet, ipv4, udp};
use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, Output, TxId, WallTime,
    device::{
        Blocks, Capabilities, Claim, Completions, FrameHeader, OFFLOAD_BYTES, Opened, Outgoing, Polled, Region,
        RxQueue, Sent, TxQueue,
    },
    flow::offload::{Offload, OffloadKind, Segment, Segments},
    packet::Packet,
};
use steerage_fixtures::assert_at_rest;

const BLOCK_BYTES: usize = 1 << 14;
/// The payload length of each packet of the super-frame except the last one.
const SIZE: usize = 1000;
const PAYLOAD: usize = 2 * SIZE + 500;
const HEADERS: usize = ethernet::BYTES + ipv4::BYTES + udp::BYTES;
const NANOS: u64 = 1_234_567_891;
const TTL_AT: usize = ethernet::BYTES + 8;

fn payload() -> Vec<u8> {
    (0..PAYLOAD).map(|nth| (nth % 251) as u8).collect()
}

fn super_frame() -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let mut frame = Vec::new();
    builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(4000, 4001).write(&mut frame, &payload()).unwrap();
    assert_eq!(frame.len(), HEADERS + PAYLOAD);
    frame
}

fn offload() -> Offload {
    Offload::super_frame(OffloadKind::Udp, SIZE, &super_frame(), LinkType::ETHERNET).unwrap()
}

#[derive(Default)]
struct Lends {
    claim: Option<Claim>,
    is_done: bool,
}

impl RxQueue for Lends {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(HEADERS + PAYLOAD)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(1, BLOCK_BYTES).unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if !mem::replace(&mut self.is_done, true) {
            let frame = super_frame();
            let header = FrameHeader { nanos: NANOS, wire_len: frame.len() as u32, link: 1, interface: 5 };
            let mut lending = out.lending(self.claim.as_ref().unwrap(), 0, BLOCK_BYTES).unwrap();
            lending.bytes()[OFFLOAD_BYTES..][..frame.len()].copy_from_slice(&frame);
            assert!(lending.push_offload(OFFLOAD_BYTES, frame.len(), (header, offload()), None));
            return Ok(Polled::More);
        }
        Ok(Polled::Ended)
    }
}

fn assert_whole(packets: &[Vec<u8>], ttl: u8) {
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [SIZE, SIZE, 500].map(|bytes| HEADERS + bytes));
    let mut carried = Vec::new();
    for packet in packets {
        let sliced = SlicedPacket::from_ethernet(packet).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{sliced:?}") };
        let Some(etherparse::TransportSlice::Udp(udp)) = &sliced.transport else { panic!("{sliced:?}") };
        let header = ip.header().to_header();
        assert_eq!((header.time_to_live, header.header_checksum), (ttl, header.calc_header_checksum()));
        let is_right = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
        assert_eq!(udp.checksum(), is_right);
        carried.extend_from_slice(udp.payload());
    }
    assert_eq!(carried, payload());
}

fn kept_parts(packet: &Packet<'_>) -> Vec<Vec<u8>> {
    let parts = packet.parts().expect("it is a super-frame");
    let keep = |part: Segment<'_>| {
        let kept = packet.keep_part(&part).expect("there is room");
        assert_eq!((kept.wire_len(), kept.link(), kept.interface()), (part.len(), LinkType::ETHERNET, Some(5)));
        assert_eq!(kept.time(), Some(WallTime::from_nanos(NANOS)));
        kept.segments().flatten().copied().collect()
    };
    parts.map(keep).collect()
}

struct Keeps(Arc<Mutex<Vec<Vec<u8>>>>);

impl Handler for Keeps {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            assert_eq!((packet.interface(), packet.offload()), (Some(5), Some(offload())));
            self.0.lock().unwrap().extend(kept_parts(&packet));
            assert_eq!(packet.linearise().map(<[u8]>::len), Ok(HEADERS + PAYLOAD), "it lies in one piece");
            packet.data_mut().expect("there is room")[TTL_AT] = 63;
            self.0.lock().unwrap().extend(kept_parts(&packet));
            assert_eq!(packet.total_len(), HEADERS + PAYLOAD);
            assert!(packet.linearise().is_err(), "a page has no room for the payload");
            let Err(packet) = packet.keep() else { panic!("a super-frame cannot be kept as a whole") };
            packet.transmit(TxId(0));
        }
    }

    fn finish(self, _: &mut Cpu) {}
}

/// An output that splits super-frames itself, as outputs without offloads do.
struct Cuts(Arc<Mutex<Vec<Vec<u8>>>>);

impl TxQueue for Cuts {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let offload = packet.offload().expect("it is a super-frame");
            let whole: Vec<u8> = packet.segments().flatten().copied().collect();
            let parts = Segments::of_frame(&offload, &whole);
            self.0.lock().unwrap().extend(parts.map(|part| [part.header(), part.payload()].concat()));
            sent.packets += 1;
            sent.bytes += whole.len() as u64;
        }
        Ok(sent)
    }
}

#[test]
fn its_packets_are_kept_one_by_one_and_it_is_sent_as_one() {
    let (kept, sent) = (Arc::default(), Arc::default());
    let for_handlers = Arc::clone(&kept);
    let queues: Vec<Box<dyn RxQueue>> = vec![Box::new(Lends::default())];
    let builder = Builder::new().virtual_cpus(1).input(Input::new("lends", "test", queues));
    let for_output = Arc::clone(&sent);
    let cuts = Output::new("cuts", "test", move |_| Ok(Box::new(Cuts(Arc::clone(&for_output))) as Box<dyn TxQueue>));
    let instance = builder.output(cuts).build(move |_| Keeps(Arc::clone(&for_handlers))).unwrap();
    let snapshot = instance.start().unwrap().join().snapshot;
    assert_eq!((snapshot.received(), snapshot.delivered(), snapshot.verdicts().transmitted), (1, 1, 1));
    let packets = kept.lock().unwrap();
    assert_eq!(packets.len(), 6);
    assert_whole(&packets[..3], 64);
    assert_whole(&packets[3..], 63);
    assert_whole(&sent.lock().unwrap(), 63);
    assert_at_rest(&snapshot);
}
