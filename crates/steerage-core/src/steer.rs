//! Steering: finds each frame's hash, bucket and CPU, and writes its slot to that CPU's ring. It also carries out the
//! queue's part in a move, which changes the table that steering reads: park the moving buckets, wait for the fences,
//! release them.
//!
//! The flow limit is that of Linux: while a backlog is more than half full, a flow that has more than half of the
//! packets that came last for it loses packets. The queue's owner counts these packets, because it is the CPU that
//! finds the backlog full. For a queue without a flow limit nothing changes.

use steerage_flow::{FlowHash, FlowLimits, FragmentTable, LinkType, Timestamp};
use steerage_mem::round;
use steerage_mem::{Completion, RingTable, RingsInUse};

use crate::backlog::{QueueRings, To};
use crate::hashing::{FrameBatch, QueueHasher};
use crate::ids::{CpuIndex, DropReason};
use crate::limits::BUCKETS;
use crate::pool::QueuePages;
use crate::rps_map::bucket_of;
use steerage_ledger::QueueLedger;
use steerage_moves::BucketMove;

/// The frames of one poll, on their way to the rings.
pub(crate) struct Polled<'a> {
    pub(crate) frames: &'a mut Vec<Completion>,
    /// The type of their first header.
    pub(crate) link: LinkType,
    pub(crate) now: Timestamp,
    /// The number of the poll.
    pub(crate) nth: usize,
    /// How many pages the device will fill by this CPU's own stores in the next poll.
    pub(crate) prefetch: usize,
}

/// How a queue finds the CPU of each frame.
pub(crate) struct Steer {
    hasher: QueueHasher,
    /// Whether a frame keeps the hash that the device set. Frames without one are hashed as usual.
    by_device: bool,
    /// Whether to hash frames even if one CPU has all buckets.
    always_hash: bool,
    fragments: FragmentTable,
    table: RingTable<BUCKETS>,
    rings_in_use: RingsInUse,
    flow_limits: FlowLimits,
    /// How many frames were steered so far, which is the arrival number of the last frame.
    arrivals: u64,
    /// The slice that the queue has parked buckets of, from parking to release.
    parked: Option<u64>,
    /// For each CPU that these buckets leave, the tail of its ring at the time they were parked.
    fences: Vec<(CpuIndex, u64)>,
}

/// The ring of a frame: the table's entry for the bucket of its hash.
#[inline(always)]
fn target_of(table: &[CpuIndex; BUCKETS], frame: &Completion) -> usize {
    usize::from(table[usize::from(bucket_of(FlowHash(frame.hash_or_zero())))])
}

/// Counts the whole poll for the bucket of one frame, a frame at a different position in each poll. That is one store
/// per poll, in a table that only the owner writes. One store per frame would bring 4096 counters into the caches of
/// the CPU that has the least to spare.
#[inline]
fn sample_load(frames: &[Completion], nth: usize, ledger: &QueueLedger) {
    let frame = nth.checked_rem(frames.len()).and_then(|nth| frames.get(nth));
    if let Some(hash) = frame.and_then(Completion::hash) {
        ledger.buckets.add(bucket_of(FlowHash(hash)), frames.len() as u64);
        ledger.samples.add(1);
    }
}

impl Steer {
    pub(crate) fn new(hasher: QueueHasher, by_device: bool, always_hash: bool, cpus: usize) -> Self {
        Self {
            hasher,
            by_device,
            always_hash,
            fragments: FragmentTable::new(),
            table: RingTable::new(cpus + 1), // one ring is the parking lot
            rings_in_use: RingsInUse::One,
            flow_limits: FlowLimits::default(),
            arrivals: 0,
            parked: None,
            fences: Vec::with_capacity(cpus),
        }
    }

    /// Sets the first map.
    pub(crate) fn adopt(&mut self, map: &[CpuIndex]) {
        map.iter().enumerate().for_each(|(bucket, cpu)| self.table.set(bucket, *cpu));
        self.rings_in_use = self.table.rings_in_use();
    }

    /// Chooses each frame's CPU and writes its slot to that CPU's ring. The other CPU does not see the slot until it
    /// is published.
    pub(crate) fn steer(
        &mut self,
        poll: Polled<'_>,
        rings: &mut QueueRings,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        let Polled { frames, link, now, nth, prefetch } = poll;
        self.hash(frames, link, now, pages, ledger);
        sample_load(frames, nth, ledger);
        if !self.flow_limits.is_empty() {
            self.limit_flows(frames, rings, pages, ledger);
        }
        let (polled, first) = (frames.len(), self.arrivals + 1);
        self.arrivals += polled as u64;
        let (table, pool) = (&self.table.ring_of, &pages.pool);
        // Prefetch one page with each frame. All at once would fill the CPU's line fill buffers, and it would have to
        // wait.
        let prefetch_page = |nth| {
            if nth < prefetch {
                pool.prefetch(nth);
            }
        };
        match self.rings_in_use {
            RingsInUse::One => {
                rings.to.stage_all(usize::from(table[0]), frames, first, prefetch_page);
            }
            RingsInUse::Few => {
                let target = |frame: &Completion| target_of(table, frame);
                rings.to.stage_lists(frames, first, target, prefetch_page);
            }
            RingsInUse::Many => {}
        }
        let staged = polled - frames.len();
        // The remaining frames are staged singly: there are more rings than lists pay for, or some rings are full.
        if staged < polled {
            rings.to.touch(&self.table.in_use);
        }
        for (nth, frame) in (staged..).zip(frames.drain(..)) {
            if nth < prefetch {
                pages.pool.prefetch(nth);
            }
            let target = target_of(&self.table.ring_of, &frame);
            rings.stage(target, frame, first + nth as u64, pages, ledger);
        }
    }

    fn must_hash(&self) -> bool {
        self.rings_in_use != RingsInUse::One || self.always_hash || !self.flow_limits.is_empty()
    }

    fn hash(
        &mut self,
        frames: &mut [Completion],
        link: LinkType,
        now: Timestamp,
        pages: &QueuePages,
        ledger: &QueueLedger,
    ) {
        if frames.is_empty() {
            return;
        }
        if link != LinkType::ETHERNET {
            frames.iter_mut().for_each(|frame| frame.set_link(link.code()));
        }
        if !self.must_hash() || (self.by_device && Completion::all_hashed(frames)) {
            return;
        }
        let lacks_hash = |frame: &Completion| !self.by_device || frame.hash().is_none();
        // If the device sets hashes, few frames lack one, and these are hashed one by one.
        let at_once = if self.by_device { 1 } else { frames.len() };
        for frames in frames.chunks_mut(at_once).filter(|frames| lacks_hash(&frames[0])) {
            let unhashed = FrameBatch { frames: &mut *frames, memory: &pages.memory, link, now };
            let unparsed = self.hasher.hash_batch(unhashed, &mut self.fragments);
            ledger.hashed(frames.len() as u64, unparsed, self.fragments.take_counts());
        }
    }

    /// Drops the frames that exceed a flow limit. It begins with the last frame, so that the first ones pass if only
    /// some may.
    #[cold]
    fn limit_flows(
        &mut self,
        frames: &mut Vec<Completion>,
        rings: &mut QueueRings,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        self.flow_limits.cpus().for_each(|cpu| rings.reclaim(cpu, pages));
        for at in (0..frames.len()).rev() {
            let target = target_of(&self.table.ring_of, &frames[at]);
            let is_half_full = self.flow_limits.has(target) && rings.to.is_half_full(target);
            if is_half_full && self.flow_limits.is_over(target, FlowHash(frames[at].hash_or_zero())) {
                ledger.dropped.add(DropReason::FlowLimit, 1);
                rings.ledgers[target].by_producer.flow_limit.add(1);
                pages.take_home(frames.remove(at));
            }
        }
    }

    /// Switches flow limits on for `cpus`, and off for all other CPUs.
    pub(crate) fn set_flow_limits(&mut self, cpus: &[CpuIndex], table_len: usize) {
        // A request creates the tables of new flow limits, not a packet.
        let _outside = round::leave();
        self.flow_limits.set(cpus, table_len);
    }

    // ---- moves

    /// Parks the moving buckets: from now on their frames wait in the parking lot. The fences record how far each old
    /// CPU's ring was filled. Adds each CPU that got frames to `shown`.
    pub(crate) fn park(&mut self, epoch: u64, moves: &[BucketMove], rings: &mut QueueRings, to: To<'_>) {
        if self.parked == Some(epoch) {
            return;
        }
        self.fences.clear();
        // A fence waits for everything up to the tail, so all of it must be published. Frames that find no room are
        // dropped first.
        rings.publish_from(1, 0, to);
        let lot = rings.to.cpus() as CpuIndex;
        for m in moves {
            self.table.set(usize::from(m.bucket), lot);
            if !self.fences.iter().any(|(cpu, _)| *cpu == m.from) {
                self.fences.push((m.from, rings.to.look(usize::from(m.from)).tail()));
            }
        }
        // If the lot is the only target, its frames still need the hash by which they are released.
        self.rings_in_use = self.table.rings_in_use().max(RingsInUse::Few);
        self.parked = Some(epoch);
    }

    /// Whether all frames that were sent before the buckets were parked are finished. The fence of a dead CPU counts
    /// as passed: that CPU gets the order to discard what it has not finished, in case it comes back.
    pub(crate) fn fences_passed(&self, rings: &mut QueueRings, dead: impl Fn(CpuIndex) -> bool) -> bool {
        let mut passed = true;
        for (cpu, tail) in self.fences() {
            let ring = rings.to.ring(usize::from(cpu));
            if dead(cpu) {
                ring.revoke_until(tail);
            } else {
                passed &= ring.passed(tail);
            }
        }
        passed
    }

    fn fences(&self) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.parked.iter().flat_map(|_| self.fences.iter().copied())
    }

    /// The CPUs whose fences have not been passed.
    pub(crate) fn fences_open<'a>(&'a self, rings: &'a QueueRings) -> impl Iterator<Item = CpuIndex> + 'a {
        self.fences().filter(|(cpu, tail)| !rings.to.look(usize::from(*cpu)).passed(*tail)).map(|(cpu, _)| cpu)
    }

    /// The move takes too long: stops parking, and orders the old CPUs to discard the frames that they have not begun.
    pub(crate) fn revoke(&self, rings: &mut QueueRings) {
        rings.to.lot().set_limit(1);
        for (cpu, tail) in self.fences() {
            rings.to.ring(usize::from(cpu)).revoke_until(tail);
        }
    }

    /// Sends the parked frames to the buckets' new CPUs, in order, and then steers the buckets there directly.
    /// Returns false while some frames wait for room, which they do only if `can_wait`. Adds each CPU that got frames
    /// to `shown`.
    pub(crate) fn release(&mut self, moves: &[BucketMove], can_wait: bool, rings: &mut QueueRings, to: To<'_>) -> bool {
        if self.parked.is_none() {
            return true;
        }
        let mut done = true;
        loop {
            if can_wait && moves.iter().any(|m| !rings.has_room(usize::from(m.to), to.pages)) {
                done = rings.to.lot().occupied() == 0;
                break;
            }
            let Some((frame, arrival)) = rings.to.unpark(to.pages.blocks.as_mut()) else { break };
            let bucket = bucket_of(FlowHash(frame.hash_or_zero()));
            // The moves are sorted by bucket, and every parked frame belongs to a bucket of this slice.
            let target = moves.binary_search_by_key(&bucket, |m| m.bucket).map_or(0, |at| usize::from(moves[at].to));
            rings.stage(target, frame, arrival, to.pages, to.ledger);
        }
        moves.iter().for_each(|m| rings.to.touch_one(usize::from(m.to)));
        to.ledger.unparked.raise_to(rings.to.lot().tail() - rings.to.lot().occupied());
        if done {
            for m in moves {
                self.table.set(usize::from(m.bucket), m.to);
            }
            self.parked = None;
            rings.open_lot();
            self.rings_in_use = self.table.rings_in_use();
        }
        rings.publish_from(1, 0, to);
        done
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// This CPU was declared dead and is alive again. Frames that it had staged and parked are out of date and are
    /// dropped. Steering continues with `map`, which is in force now.
    pub(crate) fn start_over(
        &mut self,
        map: &[CpuIndex],
        rings: &mut QueueRings,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        rings.withdraw_all(pages, ledger);
        self.parked = None;
        self.adopt(map);
    }
}
