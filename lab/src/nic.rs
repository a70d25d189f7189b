//! A device with a ring of posted pages, like a network card. Packet metadata can be allocated when
//! the page is posted, as drivers did before `build_skb`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use steerage::flow::wire::{ethernet, ethertype, put};
use steerage::{
    Batch, Cpu, DeviceError, Handler, Input, LinkType,
    device::{Capabilities, Completions, Filled, Page, Polled, RxQueue},
    flow::FlowHash,
    limits::{HEADROOM, POLL_BUDGET},
};

/// The number of posted pages: a large ring, as in the published measurement of `build_skb`.
pub const RING: usize = 4096;

/// The number of entries in the table of packet metadata. Pages have consecutive numbers, and an
/// instance of two CPUs has fewer pages for this device than the table has entries, so no two pages
/// share an entry.
const METADATA: usize = 4 * RING;

/// The length of the longest frame.
pub const FRAME_BYTES_MAX: usize = 1514;

/// When and how a packet's metadata is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Metadata is allocated and cleared when the receiving CPU posts the page, as in Linux before
    /// `build_skb`.
    Early,
    /// Metadata is allocated and cleared when a CPU handles the packet, as `build_skb` does.
    Built,
    /// Metadata is created on the stack when a CPU handles the packet, with only the fields in use,
    /// as steerage does.
    Late,
}

/// The metadata of a packet, as large as the part of an `sk_buff` that the kernel clears (in Linux
/// 6: up to the field `tail`, 184 bytes). The metadata shares no cache line with other data.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Allocated([AtomicU64; 24]);

impl Allocated {
    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Writes one field in each cache line of the metadata, and one more field.
    fn fill_in(&self, len: usize, number: u32) {
        let known = [len as u64, len as u64, 1, u64::from(number)];
        self.0.iter().step_by(6).zip(known).for_each(|(word, known)| word.store(known, Relaxed));
    }

    fn read(&self) -> u64 {
        self.0.iter().step_by(6).fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed)))
    }
}

#[derive(Debug)]
struct Built {
    len: u64,
    wire_len: u64,
    link: LinkType,
    hash: FlowHash,
}

type Slab = Arc<[Allocated]>;

/// Allocates metadata for one CPU. The metadata that was freed last is reused first.
#[derive(Debug)]
struct Allocator {
    slab: Slab,
    free: Vec<u32>,
}

impl Allocator {
    fn new(count: usize) -> Self {
        let slab = (0..count).map(|_| Allocated::default()).collect();
        Self { slab, free: (0..count as u32).rev().collect() }
    }

    fn allocate(&mut self) -> u32 {
        let number = self.free.pop().expect("as much metadata as pages");
        self.slab[number as usize].clear();
        number
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct NicOptions {
    /// The length of every frame.
    pub frame_bytes: usize,
    /// The number of frames.
    pub frames: u64,
    /// The time at which metadata is created.
    pub metadata: Metadata,
    /// The number of frames that arrive per second. If `None`, frames arrive as fast as polls
    /// accept them.
    pub rate: Option<u64>,
    /// The number of frames that must arrive before the device delivers any of them, as with
    /// interrupt moderation.
    pub at_once: usize,
}

impl NicOptions {
    /// Returns the device, and a function that creates handlers for its packets.
    pub fn input(self) -> (Input, impl Fn() -> Reads + Send + Sync + 'static) {
        let early = (self.metadata == Metadata::Early).then(|| Allocator::new(METADATA));
        let slab = early.as_ref().map(|early| Arc::clone(&early.slab));
        let queue = Nic {
            options: self,
            early,
            metadata_of: vec![None; METADATA],
            ring: Vec::with_capacity(RING),
            at: 0,
            sent: 0,
            lost: 0,
            since: None,
        };
        let input = Input::new("nic", "bench", vec![Box::new(queue)]);
        (input, move || Reads {
            slab: slab.clone(),
            built: (self.metadata == Metadata::Built).then(|| Allocator::new(POLL_BUDGET)),
            sum: 0,
        })
    }
}

struct Nic {
    options: NicOptions,
    early: Option<Allocator>,
    /// For each posted page, the index of the page's metadata. The position in this vector is the
    /// page's number.
    metadata_of: Vec<Option<u32>>,
    ring: Vec<Option<Page>>,
    at: usize,
    sent: u64,
    lost: u64,
    since: Option<Instant>,
}

impl Nic {
    /// Posts a page. Metadata of the page's previous packet is freed here, on the CPU that
    /// allocated it.
    fn post(&mut self, page: Page) -> Option<Page> {
        if let Some(early) = &mut self.early {
            let metadata = &mut self.metadata_of[page.number() as usize % METADATA];
            early.free.extend(metadata.take());
            *metadata = Some(early.allocate());
        }
        Some(page)
    }

    /// Returns the number of undelivered frames in the ring. Frames that do not fit into the ring
    /// are lost.
    fn arrived(&mut self, out: &mut Completions<'_>) -> usize {
        let Some(rate) = self.options.rate else { return (self.options.frames - self.sent) as usize };
        let since = self.since.get_or_insert_with(Instant::now).elapsed();
        let come = ((since.as_nanos() * u128::from(rate) / 1_000_000_000) as u64).min(self.options.frames);
        let waiting = come - self.sent - self.lost;
        let lost = waiting.saturating_sub(RING as u64);
        self.lost += lost;
        out.lost(lost);
        let all_came = come == self.options.frames;
        if all_came || waiting >= self.options.at_once as u64 { (waiting - lost) as usize } else { 0 }
    }

    fn write(&self, memory: &mut [u8]) {
        let frame = &mut memory[..self.options.frame_bytes];
        frame.fill(self.sent as u8);
        put(frame, ethernet::TYPE_AT, ethertype::IPV4.to_be_bytes());
        frame[26..34].copy_from_slice(&self.sent.to_be_bytes());
    }
}

impl RxQueue for Nic {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES_MAX).posted(RING);
        can.can_wait = self.options.rate.is_none();
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let begins = self.ring.is_empty();
        while self.ring.len() < RING {
            let mut page = out.take_page().expect("as many pages as were asked for");
            // The first write to a page makes the kernel provide physical memory, for which a
            // network card never waits.
            out.page_mut(&mut page).fill(0);
            let posted = self.post(page);
            self.ring.push(posted);
        }
        if begins {
            // Frames arrive only after the whole ring has been posted.
            return Ok(Polled::More);
        }
        let len = self.options.frame_bytes;
        for _ in 0..budget.min(self.arrived(out)) {
            let mut page = self.ring[self.at].take().expect("a ring without holes");
            let number = page.number();
            self.write(&mut out.page_mut(&mut page)[HEADROOM..]);
            // Packets go to one CPU only, so the hash field is free for the index of the metadata.
            let metadata = self.early.as_ref().zip(self.metadata_of[number as usize % METADATA]);
            let hash = metadata.map_or(number, |(early, metadata)| {
                early.slab[metadata as usize].fill_in(len, number);
                metadata
            });
            let posted = out.rx_finish(page, HEADROOM, Filled::whole(len).with_hash(Some(FlowHash(hash))));
            let other = posted.number() != number;
            self.ring[self.at] = if other { self.post(posted) } else { Some(posted) };
            self.at = (self.at + 1) % RING;
            self.sent += 1;
        }
        if self.sent + self.lost < self.options.frames {
            return Ok(Polled::More);
        }
        self.ring.drain(..).flatten().for_each(|page| out.give_page(page));
        Ok(Polled::Ended)
    }
}

/// A handler that reads a packet's header and its metadata.
#[derive(Debug)]
pub struct Reads {
    slab: Option<Slab>,
    built: Option<Allocator>,
    sum: u64,
}

impl Handler for Reads {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let hash = packet.flow_hash();
            let known = match (&self.slab, &mut self.built) {
                (Some(slab), _) => slab[hash.0 as usize].read(),
                (None, Some(allocator)) => {
                    let number = allocator.allocate();
                    let metadata = &allocator.slab[number as usize];
                    metadata.fill_in(packet.received().data.len(), hash.0);
                    let known = metadata.read();
                    allocator.free.push(number);
                    known
                }
                (None, None) => {
                    let received = packet.received();
                    let (len, wire_len) = (received.data.len() as u64, received.wire_len as u64);
                    let built = black_box(Built { len, wire_len, link: received.link, hash });
                    built.len + built.wire_len + u64::from(built.link.0) + u64::from(built.hash.0)
                }
            };
            let fields = packet.data()[26..34].try_into().map_or(0, u64::from_be_bytes);
            self.sum = self.sum.wrapping_add(known).wrapping_add(fields);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use steerage::Builder;

    use super::*;
    use crate::runs::run_alone_at_rate;

    struct Batches(u64);

    impl Handler for Batches {
        type Moved = ();
        type Report = u64;

        fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {
            self.0 += 1;
        }

        fn finish(self, _: &mut Cpu) -> u64 {
            self.0
        }
    }

    #[test]
    fn each_kind_of_metadata_has_all_fields() {
        let sum = |metadata| {
            let options = NicOptions { frame_bytes: 64, frames: 20_000, metadata, rate: None, at_once: 1 };
            let (input, make) = options.input();
            run_alone_at_rate(0, Builder::new(), input, 20_000, make).unwrap().1
        };
        // The handler adds up two lengths, the link type and the number of each frame.
        let least = 20_000 * (64 + 64 + 1) + (0..20_000).sum::<u64>();
        // The handler also adds the page number, which differs from run to run.
        let pages = 1..=20_000 * u64::from(u32::MAX);
        for metadata in [Metadata::Early, Metadata::Built, Metadata::Late] {
            let found = sum(metadata);
            assert!(pages.contains(&found.wrapping_sub(least)), "{metadata:?}: {found}");
        }
    }

    #[test]
    fn frames_are_shown_many_at_once() {
        let of = |at_once| {
            let options =
                NicOptions { frame_bytes: 64, frames: 640, metadata: Metadata::Late, rate: Some(100_000), at_once };
            let (times, batches) = run_alone_at_rate(0, Builder::new(), options.input().0, 640, || Batches(0)).unwrap();
            assert_eq!(times.delivered, 640);
            batches
        };
        assert!(of(64) <= 10);
    }
}
