//! A receive queue on the CPU that owns it: poll, hash, steer, publish, and the pages' way home.

mod moves;
mod order;
mod steer;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use steerage_mem::ring::Producer;
use steerage_mem::{Blocks, Completion, Memory};

use crate::flow::fragments::FragmentTable;
use crate::flow_limit::FlowLimit;
use crate::hashing::Hashing;
use crate::ledger::{DropReason, QueueLedger, RingLedger};
use crate::limits::{BUCKETS, Limits, PATIENCE, POLL_BUDGET, PUBLISH_AT, PUBLISH_POLLS, QueueLimits, RECLAIM_POLLS};
use crate::platform::Timestamp;
use crate::pool::PagePool;
use crate::rps_map::{CpuIndex, RpsMap};
use crate::rx::{Completions, DeviceError, Polled, RxQueue};

pub(crate) use order::OrderCheck;
use steer::Spread;

/// A queue, everything that its owner needs of it.
pub(crate) struct OwnedQueue {
    /// Its number over all inputs.
    pub(crate) id: usize,
    rx: Box<dyn RxQueue>,
    pub(crate) pool: PagePool,
    blocks: Option<Blocks>,
    memory: Memory,
    /// `None` where the device's hash serves.
    hashing: Option<Hashing>,
    fragments: FragmentTable,
    always_hash: bool,
    pub(crate) can_wait: bool,

    frames: Vec<Completion>,
    /// How many pages the device will fill by our own stores in the next poll.
    prefetch: usize,
    /// For each bucket its target: a CPU, or the parking lot.
    table: Box<[CpuIndex; BUCKETS]>,
    /// How many rings the table names: one, few enough for lists, or many.
    spread: Spread,
    /// Of the CPUs that have one. Empty if none has.
    flow_limits: Vec<Option<FlowLimit>>,
    /// The rings, by CPU, and behind them the parking lot.
    targets: Vec<Producer>,
    polls_unpublished: u32,
    polls: usize,
    /// The most frames of a poll: `dev_weight`.
    weight: usize,
    /// The most pages of a frame.
    segments_max: usize,
    /// Frames of up to so many bytes are copied out of the device's pages.
    copybreak: usize,
    /// How many frames were steered so far: the arrival number of the last.
    arrivals: u64,

    /// What the last poll said.
    pub(crate) polled: Polled,
    /// No more polls: ended, failed or stopped.
    pub(crate) ended: bool,
    /// A target had no room when it was last to be polled.
    pub(crate) blocked: bool,
    /// Of a queue that waits for a while only: since when a target has had none.
    full_since: Option<Timestamp>,
    /// The epoll listens to the device.
    pub(crate) listens: bool,
    parked: Option<Parked>,

    pub(crate) ledger: Arc<QueueLedger>,
    pub(crate) rings: Vec<Arc<RingLedger>>,
}

/// A slice of a move, as far as this queue has gone with it.
struct Parked {
    epoch: u64,
    /// For each CPU that buckets leave, the tail of its ring when they were parked.
    fences: Vec<(CpuIndex, u64)>,
}

/// What an [`OwnedQueue`] is made of.
pub(crate) struct QueueParts {
    pub(crate) id: usize,
    pub(crate) rx: Box<dyn RxQueue>,
    pub(crate) pool: PagePool,
    pub(crate) blocks: Option<Blocks>,
    pub(crate) memory: Memory,
    pub(crate) hashing: Option<Hashing>,
    pub(crate) always_hash: bool,
    /// By CPU.
    pub(crate) producers: Vec<Producer>,
    pub(crate) lot: Producer,
    pub(crate) ledger: Arc<QueueLedger>,
    pub(crate) rings: Vec<Arc<RingLedger>>,
}

impl OwnedQueue {
    pub(crate) fn new(parts: QueueParts) -> Self {
        let mut targets = parts.producers;
        targets.push(parts.lot);
        Self {
            id: parts.id,
            can_wait: parts.rx.can_wait(),
            segments_max: parts.rx.segments_max(),
            rx: parts.rx,
            pool: parts.pool,
            blocks: parts.blocks,
            memory: parts.memory,
            hashing: parts.hashing,
            fragments: FragmentTable::new(),
            always_hash: parts.always_hash,
            frames: Vec::with_capacity(POLL_BUDGET),
            prefetch: 0,
            spread: Spread::One,
            table: Box::new([0; BUCKETS]),
            flow_limits: Vec::new(),
            targets,
            polls_unpublished: 0,
            polls: 0,
            weight: POLL_BUDGET,
            copybreak: 0,
            arrivals: 0,
            polled: Polled::More,
            ended: false,
            blocked: false,
            full_since: None,
            listens: false,
            parked: None,
            ledger: parts.ledger,
            rings: parts.rings,
        }
    }

    /// The map to begin with.
    pub(crate) fn adopt(&mut self, map: &RpsMap) {
        *self.table = *map.0;
        self.spread = Spread::of(&self.table);
    }

    /// The device, if it is what there is to wait on: while the queue is blocked or has a time of its own it may be readable
    /// all along, and for ever once it has ended.
    pub(crate) fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        let drained = self.polled == Polled::Drained && !self.blocked && !self.ended;
        if drained { self.rx.wait_on() } else { None }
    }

    /// The device, whatever it says.
    pub(crate) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.rx.wait_on()
    }

    // ---- poll

    /// Takes up to a budget of frames off the device.
    pub(crate) fn poll(&mut self, now: Timestamp) -> Result<(), DeviceError> {
        self.blocked = false;
        if self.ended || matches!(self.polled, Polled::NotBefore(due) if now < due) {
            return Ok(());
        }
        let short = match self.blocks {
            None => self.pool.cached() < self.weight * self.segments_max,
            Some(_) => self.polled != Polled::More || self.polls % RECLAIM_POLLS == 0,
        };
        if short {
            self.reclaim_all();
        }
        let budget = self.budget(now);
        if budget == 0 {
            self.blocked = true;
            return Ok(());
        }
        let blocks = self.blocks.as_mut();
        let mut out = Completions::new(&mut self.frames, &mut self.pool, blocks, now, self.copybreak);
        let polled = self.rx.poll(&mut out, budget);
        let (wire_bytes, lost, copied, passed) = (out.wire_bytes, out.lost, out.copied, out.passed);
        let no_page = out.no_page;
        self.prefetch = out.prefetch;
        let count = self.frames.len();
        let received = count as u64 + lost + no_page;
        if received > 0 {
            self.ledger.received.add(received);
            self.ledger.received_bytes.add(wire_bytes);
        }
        if lost > 0 {
            self.ledger.dropped.add(DropReason::Device, lost);
        }
        if no_page > 0 {
            self.ledger.dropped.add(DropReason::NoPage, no_page);
        }
        if copied > 0 {
            self.ledger.copied.add(copied);
        }
        if passed > 0 {
            self.ledger.passed.add(passed);
        }
        match polled {
            Ok(polled) => {
                self.polled = polled;
                self.ended = polled == Polled::Ended;
                Ok(())
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    /// The run is to end: no more polls, or a few until the device has handed over what has come.
    pub(crate) fn stop(&mut self) {
        if !self.ended {
            self.ended = !self.rx.stop();
            // Whatever time it named, what is left is due now.
            self.polled = Polled::More;
        }
    }

    /// How many frames the last poll brought.
    pub(crate) fn polled_frames(&self) -> usize {
        self.frames.len()
    }

    /// How many frames may come now.
    fn budget(&mut self, now: Timestamp) -> usize {
        if !self.can_wait && !self.rx.has_room() {
            return self.weight;
        }
        let room = self.room_everywhere();
        if self.can_wait || room > 0 {
            self.full_since = None;
            return room;
        }
        // Who does not get on in time has had its chance, until there was room again.
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) < PATIENCE { 0 } else { self.weight }
    }

    /// How many frames may come so that each of them finds room wherever it has to go: a whole budget, or none. Polling
    /// for the few that would still fit, at the edge of a full backlog, costs as much a poll as for many.
    fn room_everywhere(&mut self) -> usize {
        let mut budget = self.weight;
        for at in 0..self.targets.len() {
            budget = budget.min(self.targets[at].limit());
            if self.targets[at].room() < self.weight as u64 {
                self.reclaim(at);
            }
        }
        let fits = self.targets.iter().all(|ring| ring.room() >= budget as u64);
        if fits { budget } else { 0 }
    }

    fn lot(&self) -> usize {
        self.targets.len() - 1
    }

    // ---- publish

    /// Shows what was staged: rings with enough waiting, or all, once a poll wasn't full or the last time is long ago.
    /// `own` is this CPU itself, which sees its share at once. Calls `shown` for each ring that has something new.
    pub(crate) fn publish(&mut self, own: usize, polled: usize, mut shown: impl FnMut(usize)) {
        self.polls_unpublished += 1;
        let all = polled < self.weight || self.polls_unpublished >= PUBLISH_POLLS;
        let least = if all { 1 } else { PUBLISH_AT.min(self.weight as u64) };
        if all {
            self.polls_unpublished = 0;
        }
        let cpus = self.lot();
        for (at, ring) in self.targets[..cpus].iter_mut().enumerate() {
            let unpublished = ring.unpublished();
            if unpublished >= least || (at == own && unpublished > 0) {
                ring.publish();
                shown(at);
            }
        }
    }

    // ---- the way home

    /// Takes the finished frames of all rings home.
    pub(crate) fn reclaim_all(&mut self) {
        for at in 0..self.lot() {
            self.reclaim(at);
        }
        self.pool.collect_kept();
    }

    fn reclaim(&mut self, target: usize) {
        let Self { targets, pool, blocks, .. } = self;
        if target == targets.len() - 1 {
            return;
        }
        let recycled = match blocks {
            None => targets[target].reclaim(|frame| home(frame, pool)),
            Some(blocks) => {
                let mut lent = blocks.homecoming();
                targets[target].reclaim(|frame| lent.recycle(frame).unwrap_or_else(|frame| home(frame, pool)))
            }
        };
        if recycled > 0 {
            pool.recycled();
        }
    }

    fn take_home(&mut self, frame: Completion) {
        let lent = match &mut self.blocks {
            Some(blocks) => blocks.recycle(frame),
            None => Err(frame),
        };
        lent.unwrap_or_else(|frame| home(frame, &mut self.pool));
        self.pool.recycled();
    }

    // ---- sleep and end

    /// Asks the CPUs whose backlogs block this queue to wake its owner when half of one is worked off.
    pub(crate) fn wake_when_there_is_room(&mut self) {
        let lot = self.lot();
        for ring in &mut self.targets[..lot] {
            if ring.room() < self.weight as u64 {
                ring.wake_at(ring.limit() as u64 / 2);
            }
        }
    }

    /// Whether there is room after all: looked at once more before sleep.
    pub(crate) fn has_room(&mut self) -> bool {
        self.room_everywhere() > 0
    }

    pub(crate) fn set_limits(&mut self, limits: Limits, own: QueueLimits) {
        (self.weight, self.copybreak) = (limits.dev_weight, own.copybreak);
        self.pool.set_cache_max(own.local_pages());
        let lot = self.lot();
        for ring in &mut self.targets[..lot] {
            ring.set_limit(limits.backlog);
        }
    }

    /// Switches flow limits on for these CPUs, and off for others.
    pub(crate) fn set_flow_limits(&mut self, cpus: &[CpuIndex], table_len: usize) {
        // What waits for room loses nothing.
        if cpus.is_empty() || self.can_wait {
            self.flow_limits.clear();
            return;
        }
        self.flow_limits.resize_with(self.lot(), || None);
        for (cpu, limit) in self.flow_limits.iter_mut().enumerate() {
            if !cpus.contains(&(cpu as CpuIndex)) {
                *limit = None;
            } else if limit.is_none() {
                *limit = Some(FlowLimit::new(table_len));
            }
        }
    }

    /// Whether nothing of it is under way any more: its pages may then go.
    pub(crate) fn is_at_rest(&mut self) -> bool {
        if !self.ended {
            return false;
        }
        self.reclaim_all();
        self.frames.is_empty() && self.targets.iter().all(|ring| ring.occupied() == 0)
    }

    /// Gives the pages back to the shared pool.
    pub(crate) fn close(&mut self) {
        let mut pages = Vec::new();
        self.rx.close(&mut pages);
        pages.into_iter().for_each(|page| self.pool.recycle(page));
        self.pool.close();
    }
}

/// A frame that lies in pages. A lent one that is not of this queue's blocks was never pushed by it, and there is nothing to count.
#[inline(always)]
fn home(frame: Completion, pool: &mut PagePool) {
    match frame.into_page() {
        Ok(page) => pool.recycle(page),
        Err(chained) if !chained.is_lent() => pool.recycle_chain(chained),
        Err(_) => {}
    }
}
