//! Tests that packets of a flow are steered to the same CPU, for several link types, tunnels and
//! fragments.

use std::collections::{BTreeMap, BTreeSet};

use steerage::flow::Layers;
use steerage::flow::wire::ipv4::MORE_FRAGMENTS as MORE;
use steerage::flow::wire::protocol::UDP;
use steerage::flow::wire::{FrameBuilder, port};
use steerage::{
    Affinity, Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, Snapshot,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};

struct Frames {
    frames: std::vec::IntoIter<Vec<u8>>,
    link: LinkType,
}

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(256).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.link);
        let frames = &mut self.frames;
        out.fill(budget, |page| {
            let frame = frames.next()?;
            page[..frame.len()].copy_from_slice(&frame);
            Some(Filled::whole(frame.len()))
        });
        Ok(if frames.len() == 0 { Polled::Ended } else { Polled::More })
    }
}

#[derive(Default)]
struct Buckets<const BOTH: bool>(BTreeMap<u8, BTreeSet<u16>>, BTreeSet<u16>);

impl<const BOTH: bool> Handler for Buckets<BOTH> {
    const AFFINITY: Affinity = if BOTH { Affinity::BothDirections } else { Affinity::OneDirection };
    type Moved = ();
    type Report = Self;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let mark = packet.data().last().copied().unwrap_or_default();
            self.0.entry(mark).or_default().insert(packet.bucket().bucket);
            self.1.insert(packet.link().0);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Self {
        self
    }
}

struct Ran {
    buckets: BTreeMap<u8, BTreeSet<u16>>,
    links: BTreeSet<u16>,
    ledger: Snapshot,
}

fn run<const BOTH: bool>(cpus: usize, link: LinkType, layers: Layers, frames: Vec<Vec<u8>>) -> Ran {
    let count = frames.len() as u64;
    let queue = Frames { frames: frames.into_iter(), link };
    let input = Input::new("frames", "test", vec![Box::new(queue)]);
    let builder = Builder::new().virtual_cpus(cpus).layers(layers).check_order(true).always_hash(true).input(input);
    let outcome = builder.build(|_| Buckets::<BOTH>::default()).expect("it can be built").start().unwrap().join();
    assert_eq!(outcome.snapshot.delivered(), count);
    assert_eq!(outcome.snapshot.reordered(), Some(0));
    let mut ran = Ran { buckets: BTreeMap::new(), links: BTreeSet::new(), ledger: outcome.snapshot };
    for (_, Buckets(buckets, links)) in outcome.reports {
        buckets.into_iter().for_each(|(mark, buckets)| ran.buckets.entry(mark).or_default().extend(buckets));
        ran.links.extend(links);
    }
    ran
}

fn packet(flow: u8, id: u16, flags_and_offset: u16, mark: u8) -> Vec<u8> {
    let ip = FrameBuilder::ip([10, 0, 0, flow], [10, 0, 1, 0], UDP);
    let rest = [0x9c, flow, 0, 53, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, mark];
    ip.with_ip(|ip| (ip.identification, ip.fragment) = (id, flags_and_offset)).packet(&rest)
}

fn in_ethernet(packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], packet].concat()
}

fn in_vxlan(packet: &[u8]) -> Vec<u8> {
    let outer = FrameBuilder::udp(([192, 0, 2, 1], 0xc000), ([192, 0, 2, 2], port::VXLAN));
    outer.frame(&[&[8, 0, 0, 0, 0, 0, 1, 0][..], &in_ethernet(packet)].concat())
}

const FLOWS: u8 = 100;

/// Returns frames of several flows. Each flow has a whole packet and two fragmented datagrams, one
/// with the first fragment first and one with the first fragment last.
fn fragmented() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for flow in 0..FLOWS {
        let id = u16::from(flow) * 2;
        frames.push(packet(flow, 9999, 0, flow));
        frames.extend([MORE, 4, MORE | 2].map(|offset| packet(flow, id, offset, flow)));
        frames.extend([4, MORE | 2, MORE].map(|offset| packet(flow, id + 1, offset, 100 + flow)));
    }
    frames
}

fn assert_kept_together(ran: &Ran) {
    assert_eq!(ran.buckets.len(), 2 * usize::from(FLOWS));
    assert!(ran.buckets.values().all(|buckets| buckets.len() == 1), "{:?}", ran.buckets);
    let all: BTreeSet<_> = ran.buckets.values().flatten().collect();
    assert!(all.len() > usize::from(FLOWS), "{} buckets", all.len());
    let queue = &ran.ledger.queues[0];
    assert_eq!((queue.unparsed, queue.fragments_full, queue.fragments_aged), (0, 0, 0));
}

#[test]
fn fragments_follow_the_first_to_arrive() {
    for link in [LinkType::RAW, LinkType::IPV4] {
        let ran = run::<true>(3, link, Layers::Inner, fragmented());
        assert_kept_together(&ran);
        assert_eq!(ran.links, BTreeSet::from([link.0]));
    }
    let frames = fragmented().iter().map(|packet| in_ethernet(packet)).collect();
    assert_kept_together(&run::<false>(3, LinkType::ETHERNET, Layers::Inner, frames));
}

#[test]
fn the_inner_flow_decides_or_the_outer() {
    let frames: Vec<_> = fragmented().iter().map(|packet| in_vxlan(packet)).collect();
    assert_kept_together(&run::<true>(3, LinkType::ETHERNET, Layers::Inner, frames.clone()));
    let ran = run::<true>(3, LinkType::ETHERNET, Layers::Outer, frames);
    assert_eq!(ran.buckets.values().flatten().collect::<BTreeSet<_>>().len(), 1, "a tunnel stays together");
}

#[test]
fn frames_of_unknown_links_stay_together_and_are_counted() {
    let frames = fragmented();
    let count = frames.len() as u64;
    let ran = run::<true>(3, LinkType(147), Layers::Inner, frames);
    assert_eq!(ran.buckets.values().flatten().collect::<BTreeSet<_>>().len(), 1);
    assert_eq!(ran.ledger.queues[0].unparsed, count);
    assert_eq!(ran.links, BTreeSet::from([LinkType::UNKNOWN.0]));
}
