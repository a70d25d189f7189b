//! Compares the hashes of a batch with the hashes of single frames, with hashes of the keys that
//! etherparse finds, and with hashes by the dissector for frames of any kind.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use std::net::SocketAddr;

use fastrand::Rng;

use super::*;
use crate::hash::HashKey;

const FRAMES: usize = 800_000;

const FRAMES_READ: usize = 100_000;

const ADDRESSES: [u8; 4] = [1, 2, 2, 0xff];
/// NFS (2049) and X11 (6000) share the upper byte of a tunnel's port.
const PORTS: [u16; 12] = [53, 443, 443, 2049, 6000, 2152, 3544, 4789, 5247, 6081, 37008, 40000];

struct Random(Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn frame(&mut self) -> Vec<u8> {
        let protocol = self.of(&[6, 17]);
        let mut ip = if self.below(2) == 0 {
            let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            ip.extend((0..2).flat_map(|_| [10, 0, 0, self.of(&ADDRESSES)]));
            ip
        } else {
            let mut ip = vec![0x60, 3, 2, 1, 0, 20, protocol, 64];
            for _ in 0..2 {
                let mut address = [0; 16];
                (address[0], address[7 + self.below(9)]) = (0xfd, self.of(&ADDRESSES));
                ip.extend(address);
            }
            ip
        };
        ip.extend((0..2).flat_map(|_| self.of(&PORTS).to_be_bytes()));
        ip.extend([0; 8]);
        ip.extend([0x50, 0, 0, 0, 0, 0, 0, 0]);
        ip.extend(vec![0; self.below(20)]);
        let ethertype: [u8; 2] = if ip[0] == 0x45 { [8, 0] } else { [0x86, 0xdd] };
        let tag: &[u8] = if self.below(2) == 0 { &[0x81, 0, 0, 5] } else { &[] };
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], tag, &ethertype, &ip].concat()
    }

    fn any_frame(&mut self) -> Vec<u8> {
        let mut frame = self.frame();
        for _ in 0..self.of(&[0, 0, 0, 1, 3]) {
            let at = 10 + self.below(frame.len().min(50) - 10);
            let any = self.0.u8(..);
            frame[at] = self.of(&[0, 1, 6, 8, 17, 0x20, 0x45, 0x60, 0x81, 0x86, any]);
        }
        if self.below(8) == 0 {
            frame.truncate(self.below(70));
        }
        frame
    }
}

struct Item {
    frame: Vec<u8>,
    hash: FlowHash,
}

struct Items;

impl FrameAccess<Item> for Items {
    fn bytes<'f>(&'f self, item: &'f Item) -> &'f [u8] {
        &item.frame
    }

    fn set_hash(&self, item: &mut Item, hash: FlowHash) {
        item.hash = hash;
    }
}

/// A rule with the effect of an [`Affinity`], but without [`KeyRule::affinity`], so that the fast
/// code is not used.
struct Unnamed(Affinity);

impl KeyRule for Unnamed {
    fn of_flow(&self, flow: FlowKey) -> FlowKey {
        self.0.key(flow)
    }
}

const ARRIVAL: (LinkType, Timestamp) = (LinkType::ETHERNET, Timestamp::ZERO);

fn items(count: usize, mut make: impl FnMut() -> Vec<u8>) -> Vec<Item> {
    (0..count).map(|_| Item { frame: make(), hash: FlowHash(0) }).collect()
}

/// Some frames are fragments, so the order of the frames matters.
fn compare(rule: impl KeyRule, layers: Layers, seed: u64) {
    let affinity = rule.affinity().expect("a rule with a name");
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let together = FrameHasher::new(hasher.clone(), layers, rule);
    let singly = FrameHasher::new(hasher, layers, Unnamed(affinity));
    let (mut fragments, mut others) = (FragmentTable::new(), FragmentTable::new());
    let (mut rng, mut frames) = (Random(Rng::with_seed(seed)), 0);
    while frames < FRAMES {
        let count = 1 + rng.below(2 * TOGETHER);
        let same = if rng.below(4) == 0 { rng.below(count) } else { 0 };
        let mut batch = items(count, || rng.any_frame());
        let first = batch[0].frame.clone();
        batch[..same].iter_mut().for_each(|item| item.frame.clone_from(&first));
        let unparsed = together.hash_batch(&mut batch, Items, ARRIVAL, &mut fragments);
        let hashes: Vec<FlowHash> = batch.iter().map(|item| item.hash).collect();
        let expected = singly.hash_batch(&mut batch, Items, ARRIVAL, &mut others);
        for (hash, item) in hashes.iter().zip(&batch) {
            assert_eq!(*hash, item.hash, "{affinity:?} {layers:?} {:02x?}", item.frame);
        }
        assert_eq!(unparsed, expected);
        frames += count;
    }
}

#[test]
fn together_is_as_one_by_one() {
    compare(BothDirections, Layers::Inner, 1);
    compare(BothDirections, Layers::Outer, 2);
    compare(OneDirection, Layers::Inner, 3);
    compare(OneDirection, Layers::Outer, 4);
}

fn read_by_etherparse(frame: &[u8]) -> FlowKey {
    let packet = SlicedPacket::from_ethernet(frame).expect("a whole frame");
    let (source, destination) = match packet.net.expect("IP") {
        NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Arp(_) => panic!("no ARP is made"),
    };
    let (from, to, protocol) = match packet.transport.expect("TCP or UDP") {
        TransportSlice::Tcp(tcp) => (tcp.source_port(), tcp.destination_port(), 6),
        TransportSlice::Udp(udp) => (udp.source_port(), udp.destination_port(), 17),
        other => panic!("{other:?} is not made"),
    };
    FlowKey::between(SocketAddr::new(source, from), SocketAddr::new(destination, to), protocol).expect("one version")
}

#[test]
fn hashes_are_those_of_the_keys_that_etherparse_reads() {
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let both = FrameHasher::new(hasher.clone(), Layers::Outer, BothDirections);
    let one = FrameHasher::new(hasher.clone(), Layers::Outer, OneDirection);
    let (mut rng, mut fragments) = (Random(Rng::with_seed(5)), FragmentTable::new());
    for _ in 0..FRAMES_READ / TOGETHER {
        let mut batch = items(TOGETHER, || {
            let mut frame = rng.frame();
            // Unlike steerage, etherparse compares lengths in headers with the frame's length.
            let begin = if frame[12] == 0x81 { 18 } else { 14 };
            let length = (frame.len() - begin) as u16;
            let (at, length) = if frame[begin] == 0x45 { (begin + 2, length) } else { (begin + 4, length - 40) };
            frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
            let (udp, header) = if frame[begin] == 0x45 { (begin + 9, 20) } else { (begin + 6, 40) };
            if frame[udp] == 17 {
                let length = (frame.len() - begin - header) as u16;
                frame[begin + header + 4..][..2].copy_from_slice(&length.to_be_bytes());
            }
            frame
        });
        assert_eq!(both.hash_batch(&mut batch, Items, ARRIVAL, &mut fragments), 0);
        for item in &batch {
            let key = read_by_etherparse(&item.frame);
            assert_eq!(item.hash, hasher.hash(&key.both_directions()), "{:02x?}", item.frame);
        }
        one.hash_batch(&mut batch, Items, ARRIVAL, &mut fragments);
        for item in &batch {
            assert_eq!(item.hash, hasher.hash(&read_by_etherparse(&item.frame)), "{:02x?}", item.frame);
        }
    }
}

#[test]
fn plain_frames_are_not_left_out() {
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let Some(kernel) = hasher.plain_frames(&dissect::TUNNEL_PORTS) else { return };
    let (mut rng, mut hashes) = (Random(Rng::with_seed(6)), [0; TOGETHER]);
    for _ in 0..1_000 {
        let frames: Vec<Vec<u8>> = (0..TOGETHER).map(|_| rng.any_frame()).collect();
        let bytes: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        let others = kernel.hash(&bytes, Affinity::BothDirections, &mut hashes);
        for (nth, frame) in bytes.iter().enumerate() {
            let plain = dissect::plain(frame, Layers::Outer).is_some_and(|key| {
                let port = |end: Option<SocketAddr>| end.map_or(0, |end| end.port());
                !dissect::is_tunnel(port(key.source()), port(key.destination()))
            });
            assert_eq!(others >> nth & 1 == 0, plain, "{frame:02x?}");
        }
    }
}

#[test]
fn a_frame_alone_has_the_hash_of_its_batch() {
    let mut rng = Random(Rng::with_seed(7));
    for layers in [Layers::Inner, Layers::Outer] {
        let hasher = FrameHasher::new(FlowHasher::keyed(&HashKey::MICROSOFT), layers, BothDirections);
        let mut batch = items(FRAMES_READ, || rng.any_frame());
        batch.retain(|item| dissect::dissect(&item.frame, LinkType::ETHERNET, layers).fragment().is_none());
        hasher.hash_batch(&mut batch, Items, ARRIVAL, &mut FragmentTable::new());
        let plain = batch.iter().filter(|item| dissect::plain(&item.frame, layers).is_some()).count();
        assert!(plain > batch.len() / 4 && plain < batch.len(), "{plain} of {}", batch.len());
        for item in &batch {
            let alone = hasher.hash_one(&item.frame, LinkType::ETHERNET);
            assert_eq!(alone, item.hash, "{layers:?} {:02x?}", item.frame);
        }
    }
}

#[test]
fn a_custom_key_sees_the_frames_of_all_links() {
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let tun = |frame: &[u8], link: LinkType| match frame.get(19..20) {
        Some(host) if link == LinkType::RAW => Some(FlowKey::from_bytes(host)),
        _ => None,
    };
    let custom = FrameHasher::new(hasher.clone(), Layers::Inner, CustomKey(tun, BothDirections));
    let flows = FrameHasher::new(hasher.clone(), Layers::Inner, BothDirections);
    let mut rng = Random(Rng::with_seed(1));
    for link in [LinkType::RAW, LinkType::ETHERNET] {
        let from = if link == LinkType::RAW { 14 } else { 0 };
        let frames: Vec<Vec<u8>> = (0..64).map(|_| rng.frame()[from..].to_vec()).collect();
        let expected: Vec<FlowHash> = frames
            .iter()
            .map(|frame| tun(frame, link).map_or_else(|| flows.hash_one(frame, link), |key| hasher.hash(&key)))
            .collect();
        assert_eq!(frames.iter().map(|frame| custom.hash_one(frame, link)).collect::<Vec<_>>(), expected);
        let mut frames = frames.into_iter();
        let mut batch = items(64, || frames.next().unwrap());
        custom.hash_batch(&mut batch, Items, (link, Timestamp::ZERO), &mut FragmentTable::new());
        assert_eq!(batch.iter().map(|item| item.hash).collect::<Vec<_>>(), expected);
    }
}
