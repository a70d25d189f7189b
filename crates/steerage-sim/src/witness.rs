//! A packet function that detects packets on a CPU that does not have their bucket, reordered
//! flows, and state that does not move with its bucket.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use steerage::{Batch, BucketId, Cpu, CpuId, Handler, Packet, TxId, limits::BUCKETS, packet::Kept};

use crate::chance::Chance;
use crate::racer::Racer;
use crate::traffic;

const NOBODY: u16 = u16::MAX;

const GROUPS_MAX: usize = 64;

/// The special actions of a test handler. A field `..._once_in` is the mean number of cases in
/// which an action happens once, or 0 if the action never happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mood {
    /// The handler panics in the middle of a batch.
    pub panics_once_in: u64,
    /// The handler panics while a bucket leaves or arrives.
    pub panics_in_moves_once_in: u64,
    /// The handler keeps a packet, and drops it some packets later.
    pub keeps_once_in: u64,
    /// The handler discards a packet.
    pub discards_once_in: u64,
    /// The handler transmits a packet to the output whose number is that of the packet's queue.
    pub transmits_once_in: u64,
    /// The maximum time for which the handler sleeps, in tests on real threads.
    pub sleeps_up_to: Duration,
    /// The handler sleeps once in this many batches.
    pub sleeps_once_in: u64,
    /// The handler makes a packet longer or shorter, or copies the packet's pages into one page.
    pub changes_once_in: u64,
}

/// Counters for the packets of all handlers of an instance together.
#[derive(Debug)]
pub struct Witness {
    mood: Mood,
    owner: Box<[AtomicU16]>,
    /// The number of packets that were handled on a CPU that did not have their bucket.
    pub strangers: AtomicU64,
    /// The number of packets that a handler got after a later packet of their flow.
    pub late: AtomicU64,
    /// The number of gaps in the sequence numbers of flows: a packet was lost, or a flow's state
    /// did not move with its bucket. A gap is an error only if no packet is dropped, no handler
    /// panics and no queue leaves its group.
    pub gaps: AtomicU64,
    /// The number of packets whose contents had changed on the way to the handler.
    pub torn: AtomicU64,
    /// The number of packets that had more than one page.
    pub chained: AtomicU64,
    /// The number of packets that were merged from several frames.
    pub merged: AtomicU64,
    /// The number of frames that handlers got.
    pub seen: AtomicU64,
    /// The number of buckets that left a CPU with state.
    pub moved: AtomicU64,
    made: AtomicU64,
    racer: OnceLock<Arc<Racer>>,
}

/// Once in this many arrivals or departures of buckets, another thread takes the control lock.
const RACES_ONCE_IN: u64 = 500;

impl Witness {
    /// Creates a checker for handlers with the special actions (such as panics) in `mood`.
    pub fn new(mood: Mood) -> Arc<Self> {
        let owner = (0..GROUPS_MAX * BUCKETS).map(|_| AtomicU16::new(NOBODY)).collect();
        let (strangers, late, gaps, torn, chained) = Default::default();
        let (merged, seen, moved, made, racer) = Default::default();
        Arc::new(Self { mood, owner, strangers, late, gaps, torn, chained, merged, seen, moved, made, racer })
    }

    /// Lets another thread sometimes take the control lock while the state of a bucket moves.
    pub fn race(&self, racer: &Arc<Racer>) {
        let _ = self.racer.set(Arc::clone(racer));
    }

    /// Creates a handler for `cpu`, with random numbers of its own, because a handler that panicked
    /// in its first batch would otherwise panic again and again.
    pub fn handler(self: &Arc<Self>, cpu: CpuId, seed: u64) -> WitnessHandler {
        let nth = self.made.fetch_add(1, Ordering::Relaxed);
        WitnessHandler {
            witness: Arc::clone(self),
            cpu,
            flows: HashMap::new(),
            kept: VecDeque::new(),
            chance: Chance::new(seed ^ u64::from(cpu.0) << 40 ^ nth << 20),
        }
    }

    fn owner_of(&self, bucket: BucketId) -> &AtomicU16 {
        &self.owner[usize::from(bucket.group) % GROUPS_MAX * BUCKETS + usize::from(bucket.bucket)]
    }

    /// Returns an error that names the violations, if there were any.
    pub fn verdict(&self) -> Result<(), String> {
        let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
        let wrong = [("strangers", &self.strangers), ("late", &self.late), ("torn", &self.torn)];
        let wrong: Vec<String> = wrong
            .iter()
            .filter(|(_, count)| of(count) > 0)
            .map(|(what, count)| format!("{what}: {}", of(count)))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
    }
}

/// The handler of one CPU.
#[derive(Debug)]
pub struct WitnessHandler {
    witness: Arc<Witness>,
    cpu: CpuId,
    /// The last frame number for each bucket, queue and flow: the state that moves with the bucket.
    /// A packet with a smaller number than the last frame was reordered.
    flows: HashMap<BucketId, HashMap<(usize, u32), u64>>,
    kept: VecDeque<Kept>,
    chance: Chance,
}

fn change(packet: &mut Packet<'_>, chance: &mut Chance) {
    let done = match chance.below(3) {
        0 => packet.truncate(traffic::FRAME_BYTES + chance.below(64) as usize),
        1 => packet.append(chance.below(64) as usize).map(|bytes| bytes.fill(0xee)),
        _ => packet.linearise().map(drop),
    };
    done.expect("pages are longer than that");
}

impl WitnessHandler {
    fn see(&mut self, bucket: BucketId, queue: usize, (flow, number): (u32, u64), is_whole: bool) {
        let last = self.flows.entry(bucket).or_default().entry((queue, flow)).or_insert(0);
        if number <= *last {
            self.witness.late.fetch_add(1, Ordering::Relaxed);
        } else if number != *last + 1 {
            self.witness.gaps.fetch_add(1, Ordering::Relaxed);
        }
        *last = number;
        self.witness.seen.fetch_add(1, Ordering::Relaxed);
        self.witness.torn.fetch_add(u64::from(!is_whole), Ordering::Relaxed);
    }

    fn race(&mut self) {
        if let Some(racer) = self.witness.racer.get().filter(|_| self.chance.once_in(RACES_ONCE_IN)) {
            racer.hold();
        }
    }
}

impl Handler for WitnessHandler {
    type Moved = HashMap<(usize, u32), u64>;
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let mood = self.witness.mood;
        let queue = batch.queue();
        let panic_at =
            if self.chance.once_in(mood.panics_once_in) { self.chance.below(batch.len() as u64) } else { u64::MAX };
        if self.chance.once_in(mood.sleeps_once_in) {
            let nanos = self.chance.below(mood.sleeps_up_to.as_nanos() as u64 + 1);
            std::thread::sleep(Duration::from_nanos(nanos));
        }
        for (at, mut packet) in batch.iter_mut().enumerate() {
            assert!(at as u64 != panic_at, "a planted panic");
            let bucket = packet.bucket();
            let owner = self.witness.owner_of(bucket);
            // Relaxed, to test that the receive path itself orders the writes of two CPUs.
            match owner.load(Ordering::Relaxed) {
                NOBODY => owner.store(self.cpu.0, Ordering::Relaxed),
                cpu if cpu == self.cpu.0 => {}
                _ => {
                    self.witness.strangers.fetch_add(1, Ordering::Relaxed);
                }
            }
            let merged = packet.parts();
            let is_merged = merged.is_some();
            if let Some(parts) = merged {
                self.witness.merged.fetch_add(1, Ordering::Relaxed);
                for part in parts {
                    let frame = [part.header(), part.payload()].concat();
                    let Some((flow, number)) = traffic::read(&frame) else { continue };
                    self.see(bucket, queue, (flow, number), frame.len() == traffic::FRAME_BYTES);
                }
            } else {
                let Some(read) = traffic::read(packet.data()) else { continue };
                self.see(bucket, queue, read, traffic::is_whole(&packet));
                self.witness.chained.fetch_add(u64::from(packet.segments().count() > 1), Ordering::Relaxed);
            }
            if self.chance.once_in(mood.changes_once_in) && !is_merged {
                change(&mut packet, &mut self.chance);
            }
            if self.chance.once_in(mood.keeps_once_in) {
                if let Ok(kept) = packet.keep() {
                    self.kept.push_back(kept);
                }
            } else if self.chance.once_in(mood.discards_once_in) {
                packet.discard();
            } else if self.chance.once_in(mood.transmits_once_in) {
                packet.transmit(TxId(queue as u8));
            }
        }
        while self.kept.len() > 64 {
            self.kept.pop_front();
        }
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.witness.owner_of(bucket).store(NOBODY, Ordering::Relaxed);
        assert!(!self.chance.once_in(self.witness.mood.panics_in_moves_once_in), "a planted panic");
        self.race();
        let state = self.flows.remove(&bucket)?;
        self.witness.moved.fetch_add(1, Ordering::Relaxed);
        Some(state)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: Self::Moved) {
        self.witness.owner_of(bucket).store(self.cpu.0, Ordering::Relaxed);
        assert!(!self.chance.once_in(self.witness.mood.panics_in_moves_once_in), "a planted panic");
        self.race();
        // Two groups that join may both have state for a bucket, and one of the states may be old.
        let here = self.flows.entry(bucket).or_default();
        for (flow, number) in state {
            here.entry(flow).and_modify(|known| *known = number.max(*known)).or_insert(number);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.flows.values().map(HashMap::len).sum::<usize>() as u64
    }
}
