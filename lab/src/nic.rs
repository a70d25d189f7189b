//! A device with a ring of posted pages, like a network card. The metadata of a packet can be
//! allocated when the page is posted, as drivers did before `build_skb`.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use steerage::flow::wire::{ethernet, ethertype, put};
use steerage::{
    Batch, Cpu, DeviceError, Handler, Input, LinkType,
    device::{Capabilities, Completions, Filled, Page, Polled, RxQueue},
    flow::FlowHash,
    limits::HEADROOM,
};

/// The number of posted pages: a large ring, as in the measurement of build_skb.
pub const RING: usize = 4096;

/// The longest frame.
pub const FRAME_BYTES_MAX: usize = 1514;

/// When a packet's metadata is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// The metadata is created when the receiving CPU posts the page, in separate memory.
    Early,
    /// The metadata is created when a CPU handles the packet, on the stack of that CPU.
    Late,
}

/// Metadata as large as the part of an sk_buff that is cleared at its allocation (Linux 6: up to
/// its `tail`, 184 bytes), in cache lines that contain nothing else.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Allocated([AtomicU64; 24]);

#[derive(Debug)]
struct Built {
    len: u64,
    wire_len: u64,
    link: LinkType,
    hash: FlowHash,
}

/// The allocated metadata, one entry for each page.
#[derive(Debug)]
pub struct Slab(Box<[Allocated]>);

impl Slab {
    fn new(pages: usize) -> Arc<Self> {
        Arc::new(Self((0..pages.next_power_of_two()).map(|_| Allocated::default()).collect()))
    }

    fn place(&self, number: u32) -> &Allocated {
        &self.0[number as usize & (self.0.len() - 1)]
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct NicOptions {
    /// The length of every frame.
    pub frame_bytes: usize,
    /// The number of frames.
    pub frames: u64,
    /// When metadata is created.
    pub metadata: Metadata,
    /// The number of frames that arrive per second, independent of free pages. With `None`, frames
    /// arrive as fast as polls take them.
    pub rate: Option<u64>,
    /// The device shows frames only if at least this many have arrived, like cards with interrupt
    /// moderation.
    pub at_once: usize,
}

impl NicOptions {
    /// The device, and the function that creates the matching handler.
    pub fn input(self) -> (Input, impl Fn() -> Reads + Send + Sync + 'static) {
        // The slab covers all pages that an instance of two CPUs maps for this device. More entries
        // do no harm.
        let slab = (self.metadata == Metadata::Early).then(|| Slab::new(4 * RING));
        let queue = Nic {
            options: self,
            slab: slab.clone(),
            ring: Vec::with_capacity(RING),
            at: 0,
            sent: 0,
            lost: 0,
            since: None,
        };
        let input = Input::new("nic", "bench", vec![Box::new(queue)]);
        (input, move || Reads { slab: slab.clone(), sum: 0 })
    }
}

struct Nic {
    options: NicOptions,
    slab: Option<Arc<Slab>>,
    ring: Vec<Option<Page>>,
    at: usize,
    sent: u64,
    lost: u64,
    since: Option<Instant>,
}

impl Nic {
    fn post(slab: Option<&Slab>, page: Page) -> Option<Page> {
        if let Some(slab) = slab {
            slab.place(page.number()).0.iter().for_each(|word| word.store(0, Relaxed));
        }
        Some(page)
    }

    /// The number of frames in the ring: frames that arrived, minus frames that were taken or did
    /// not fit into the ring.
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
        let slab = self.slab.clone();
        let begins = self.ring.is_empty();
        while self.ring.len() < RING {
            let mut page = out.take_page().expect("as many pages as were asked for");
            // Touch the memory first. Without this step, the first frames would wait for the kernel
            // to provide memory, which never happens on a network card.
            out.page_mut(&mut page).fill(0);
            self.ring.push(Self::post(slab.as_deref(), page));
        }
        if begins {
            // Frames arrive only after the ring is filled.
            return Ok(Polled::More);
        }
        let len = self.options.frame_bytes;
        for _ in 0..budget.min(self.arrived(out)) {
            let mut page = self.ring[self.at].take().expect("a ring without holes");
            let number = page.number();
            self.write(&mut out.page_mut(&mut page)[HEADROOM..]);
            if let Some(Allocated(words)) = slab.as_ref().map(|slab| slab.place(number)) {
                let known = [len as u64, len as u64, 1, u64::from(number)];
                words.iter().step_by(6).zip(known).for_each(|(word, known)| word.store(known, Relaxed));
            }
            // With one target, the hash does not choose the CPU, so the hash can carry the index of
            // the metadata.
            let posted = out.rx_finish(page, HEADROOM, Filled::whole(len).with_hash(Some(FlowHash(number))));
            let other = posted.number() != number;
            self.ring[self.at] = if other { Self::post(slab.as_deref(), posted) } else { Some(posted) };
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

/// Reads a packet's header and its metadata.
#[derive(Debug)]
pub struct Reads {
    slab: Option<Arc<Slab>>,
    sum: u64,
}

impl Handler for Reads {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let hash = packet.flow_hash();
            let known = match &self.slab {
                Some(slab) => slab
                    .place(hash.0)
                    .0
                    .iter()
                    .step_by(6)
                    .fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed))),
                None => {
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
