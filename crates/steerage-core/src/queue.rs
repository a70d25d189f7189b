//! A receive queue: what its owner needs to poll it and to hand its frames to other CPUs.
//!
//! [`poll`](OwnedQueue::poll) takes frames from the device, up to a budget.
//! [`steer`](OwnedQueue::steer) determines the hash, the bucket and the CPU of each frame, and
//! writes a slot of 16 bytes to the ring of that CPU. Frames for the polling CPU itself stay in a
//! list, the [lane](steerage_mem::ring::Lane). [`publish`](OwnedQueue::publish) makes lists of
//! slots visible to other CPUs, with one store for each list. [`reclaim`](OwnedQueue::reclaim)
//! reads finished slots again, and returns their pages to the queue's cache.
//!
//! | file | content |
//! |---|---|
//! | `hash` | the hashes of a poll's frames |
//! | `moving` | the queue's part in a move: park, wait for the fences, release |
//!
//! The flow limit is that of Linux: while a backlog is more than half full, packets of a flow that
//! has more than half of the backlog's latest packets are dropped. The queue's owner counts the
//! packets that the flow limit drops, because the owner detects that the backlog is full.

pub(crate) mod hash;
mod moving;
#[cfg(test)]
mod tests;

use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use steerage_flow::{FlowHash, FlowLimits, LinkType, Timestamp};
use steerage_ledger::{QueueLedger, RingLedger};
use steerage_mem::ring::Hand;
use steerage_mem::{Completion, Outbox, RingTable, RingsInUse, round};

use crate::completions::Completions;
use crate::device::{Capabilities, DeviceError};
use crate::ids::{CpuIndex, DropReason};
use crate::limits::{BUCKETS, Limits, PATIENCE, POLL_BUDGET, PUBLISH_AT, PUBLISH_POLLS, QueueLimits, RECLAIM_POLLS};
use crate::page_cache::QueuePages;
use crate::rps_map::bucket_of;
use crate::rx::{Polled, RxQueue};
use hash::Hashing;
use moving::Moving;

pub(crate) type Published = (CpuIndex, usize);

pub(crate) struct OwnedQueue {
    pub(crate) id: usize,
    rx: Box<dyn RxQueue>,
    pages: QueuePages,
    pub(crate) frames_polled: usize,
    link: LinkType,
    prefetch: usize,
    polls: usize,
    hashing: Hashing,
    table: RingTable<BUCKETS>,
    rings_in_use: RingsInUse,
    flow_limits: FlowLimits,
    /// The number of steered frames, which is the arrival number of the last frame.
    arrivals: u64,
    /// After a poll, the lane (a list in the outbox) has all frames of the poll. After steering,
    /// the lane has only the frames for this CPU. The queue is not polled while the lane has
    /// frames.
    pub(crate) outbox: Outbox,
    polls_unpublished: u32,
    moving: Moving,
    ledger: Arc<QueueLedger>,
    ring_ledgers: Vec<Arc<RingLedger>>,
    limits: PollLimits,
    pub(crate) state: PollState,
}

struct PollLimits {
    can_wait: bool,
    weight: usize,
    segments_max: usize,
    copybreak: usize,
}

pub(crate) struct PollState {
    pub(crate) polled: Polled,
    pub(crate) ended: bool,
    pub(crate) blocked: bool,
    /// The time since which a ring has had no room, if the queue may wait for a limited time.
    full_since: Option<Timestamp>,
    pub(crate) listens: bool,
}

#[inline(always)]
fn ring_of(table: &[CpuIndex; BUCKETS], frame: &Completion) -> usize {
    usize::from(table[usize::from(bucket_of(FlowHash(frame.hash_or_zero())))])
}

/// Samples the load: counts all frames of a poll for the bucket of a single frame, whose position
/// in the poll varies. If each frame were counted for its own bucket, 4096 counters would compete
/// for the caches of the receiving CPU, which is the bottleneck.
#[inline]
fn sample_load(frames: &[Completion], nth: usize, ledger: &QueueLedger) {
    let frame = nth.checked_rem(frames.len()).and_then(|nth| frames.get(nth));
    if let Some(hash) = frame.and_then(Completion::hash) {
        ledger.buckets.add(bucket_of(FlowHash(hash)), frames.len() as u64);
        ledger.samples.add(1);
    }
}

impl OwnedQueue {
    pub(crate) fn new(
        id: usize,
        rx: Box<dyn RxQueue>,
        pages: QueuePages,
        hashing: Hashing,
        mut outbox: Outbox,
        (ledger, ring_ledgers): (Arc<QueueLedger>, Vec<Arc<RingLedger>>),
    ) -> Self {
        let Capabilities { can_wait, segments_max, .. } = rx.capabilities();
        Self {
            id,
            rx,
            pages,
            frames_polled: 0,
            link: LinkType::ETHERNET,
            prefetch: 0,
            polls: 0,
            hashing,
            table: RingTable::new(outbox.cpus() + 1), // one ring is the parking lot
            rings_in_use: RingsInUse::One,
            flow_limits: FlowLimits::default(),
            arrivals: 0,
            moving: Moving::new(&mut outbox),
            outbox,
            polls_unpublished: 0,
            ledger,
            ring_ledgers,
            limits: PollLimits { can_wait, weight: POLL_BUDGET, segments_max, copybreak: 0 },
            state: PollState { polled: Polled::More, ended: false, blocked: false, full_since: None, listens: false },
        }
    }

    pub(crate) fn adopt(&mut self, map: &[CpuIndex]) {
        map.iter().enumerate().for_each(|(bucket, cpu)| self.table.set(bucket, *cpu));
        self.rings_in_use = self.table.rings_in_use();
    }

    pub(crate) fn poll(&mut self, now: Timestamp) -> Result<(), DeviceError> {
        self.state.blocked = false;
        let polled_before = mem::take(&mut self.frames_polled);
        if self.state.ended || self.state.polled.due().is_some_and(|due| now < due) {
            return Ok(());
        }
        self.polls = self.polls.wrapping_add(1);
        let short = match self.pages.blocks {
            None if polled_before == 0 && self.outbox.keeps_pages_from_others() => true,
            None => self.pages.pool.cached() < self.limits.weight * self.limits.segments_max,
            Some(_) => self.state.polled != Polled::More || self.polls % RECLAIM_POLLS == 0,
        };
        if short {
            self.reclaim_all();
        }
        let budget = self.budget(now);
        let Some(frames) = self.outbox.lane().list().filter(|_| budget > 0) else {
            self.state.blocked = true;
            return Ok(());
        };
        let mut out = Completions::new(frames, &mut self.pages, now, self.limits.copybreak);
        let polled = self.rx.poll(&mut out, budget);
        let counts = out.counts;
        (self.prefetch, self.link) = (out.prefetch, out.link());
        self.frames_polled = self.outbox.staying();
        self.ledger.polled(self.frames_polled as u64, &counts);
        self.state.ended = !matches!(polled, Ok(polled) if polled != Polled::Ended);
        self.state.polled = polled?;
        Ok(())
    }

    fn budget(&mut self, now: Timestamp) -> usize {
        let weight = self.limits.weight;
        if !self.outbox.has_owner_finished() {
            return 0;
        }
        if !self.limits.can_wait && !self.rx.has_room() {
            return weight;
        }
        let room = self.room_everywhere();
        if self.limits.can_wait || room > 0 {
            self.state.full_since = None;
            return room;
        }
        // After `PATIENCE`, the queue waits for an overloaded CPU again only if the CPU's ring has
        // had room.
        let since = *self.state.full_since.get_or_insert(now);
        if now.since(since) < PATIENCE { 0 } else { weight }
    }

    /// Returns a number of frames for which every ring has room: 0 or the full budget. Polling for
    /// a few frames would cost as much as polling for many frames.
    fn room_everywhere(&mut self) -> usize {
        let weight = self.limits.weight;
        let budget = weight.min(self.outbox.backlog()).min(self.outbox.lot().limit());
        let mut fits = self.outbox.lot().room() >= budget as u64;
        let mut from = 0;
        while let Some(at) = self.outbox.next_without_room(from, weight) {
            self.reclaim(at);
            fits &= self.outbox.has_room(at, budget);
            from = at + 1;
        }
        if fits { budget } else { 0 }
    }

    /// Chooses the CPU of each frame. The frames for this CPU stay in its own list, the lane. The
    /// slots of all other frames are written to the rings of their CPUs. The other CPUs see these
    /// slots only after the slots are published.
    pub(crate) fn steer(&mut self, now: Timestamp) {
        let Some(frames) = self.outbox.lane().list().filter(|_| self.frames_polled > 0) else { return };
        let hashes = self.rings_in_use != RingsInUse::One || !self.flow_limits.is_empty();
        self.hashing.hash(frames, hashes, (self.link, now), &self.pages.memory, &self.ledger);
        sample_load(frames, self.polls, &self.ledger);
        if !self.flow_limits.is_empty() {
            self.limit_flows();
        }
        let (polled, first, prefetch) = (self.outbox.staying(), self.arrivals + 1, self.prefetch);
        self.arrivals += polled as u64;
        let (table, pool) = (&self.table.ring_of, &self.pages.pool);
        // Prefetching all pages together would fill the CPU's line fill buffers.
        let prefetch_page = |nth| {
            if nth < prefetch {
                pool.prefetch(nth);
            }
        };
        let are_staged = match self.rings_in_use {
            RingsInUse::One => self.outbox.stage_all(usize::from(table[0]), first, prefetch_page),
            RingsInUse::Few => self.outbox.stage_lists(first, |frame| ring_of(table, frame), prefetch_page),
            RingsInUse::Many => false,
        };
        if !are_staged {
            self.stage_singly(polled - self.outbox.staying(), first);
        }
        self.ledger.in_lane.set(self.outbox.staying() as u64);
    }

    /// Stages frames one by one, if a poll has frames for too many rings or for full rings. The
    /// first `staged` frames are staged already.
    #[inline]
    fn stage_singly(&mut self, staged: usize, first: u64) {
        self.outbox.touch(&self.table.in_use);
        let mut frames = self.outbox.take_list();
        for (nth, frame) in (staged..).zip(frames.drain(..)) {
            if nth < self.prefetch {
                self.pages.pool.prefetch(nth);
            }
            let target = ring_of(&self.table.ring_of, &frame);
            self.stage(target, frame, first + nth as u64);
        }
        self.outbox.put_list(frames);
    }

    #[inline]
    pub(crate) fn take(&mut self, most: usize) -> Hand<'_> {
        // Frames in prefetched pages or in the device's memory blocks were written just now, and
        // are in the CPU's cache.
        let is_cold = self.prefetch == 0 && self.pages.blocks.is_none();
        self.outbox.lane().take(most, is_cold)
    }

    /// Finishes the frames in hand. The memory of finished frames returns to the queue immediately.
    #[inline]
    pub(crate) fn finish(&mut self) {
        let pool = &mut self.pages.pool;
        match &mut self.pages.blocks {
            None => self.outbox.lane().finish(|frames| pool.recycle_many(frames)),
            Some(blocks) => self.outbox.finish_lent(blocks, |frame| pool.recycle_frame(frame)),
        }
        pool.recycled();
        self.ledger.in_lane.set(self.outbox.staying() as u64);
    }

    /// Returns true if the lane has frames to handle. If `held_back` is true, frames of a queue
    /// that can wait do not count.
    #[inline]
    pub(crate) fn is_due(&self, held_back: bool) -> bool {
        self.outbox.staying() > 0 && !(held_back && self.limits.can_wait)
    }

    #[inline(always)]
    fn stage(&mut self, target: usize, frame: Completion, arrival: u64) {
        if let Err(frame) = self.outbox.stage(target, frame, arrival) {
            self.stage_in_full_ring(target, frame, arrival);
        }
    }

    #[cold]
    #[inline(never)]
    fn stage_in_full_ring(&mut self, target: usize, frame: Completion, arrival: u64) {
        self.reclaim(target);
        if let Err(frame) = self.outbox.stage(target, frame, arrival) {
            refuse(&self.ring_ledgers, target, &self.ledger);
            self.pages.take_home(frame);
        }
    }

    /// Applies the flow limit to the newest frames first. Frames that stay on this CPU have no
    /// backlog and no flow limit.
    #[cold]
    fn limit_flows(&mut self) {
        // Finished frames must not count as waiting.
        self.reclaim_all();
        let mut frames = self.outbox.take_list();
        for at in (0..frames.len()).rev() {
            let target = ring_of(&self.table.ring_of, &frames[at]);
            let is_half_full = self.flow_limits.has(target) && self.outbox.is_half_full(target);
            if is_half_full && self.flow_limits.is_over(target, FlowHash(frames[at].hash_or_zero())) {
                self.ledger.dropped.add(DropReason::FlowLimit, 1);
                self.ring_ledgers[target].by_producer.flow_limit.add(1);
                self.pages.take_home(frames.remove(at));
            }
        }
        self.outbox.put_list(frames);
    }

    /// Publishes the rings with enough staged frames. Publishes all rings after a poll that was not
    /// full, and at least once in [`PUBLISH_POLLS`] polls. Adds each CPU that got frames to
    /// `published`.
    pub(crate) fn publish(&mut self, published: &mut Vec<Published>) {
        self.polls_unpublished += 1;
        let all = self.frames_polled < self.limits.weight || self.polls_unpublished >= PUBLISH_POLLS;
        if all {
            self.polls_unpublished = 0;
        }
        self.publish_from(if all { 1 } else { PUBLISH_AT.min(self.limits.weight as u64) }, published);
    }

    fn publish_from(&mut self, least: u64, published: &mut Vec<Published>) {
        let Self { id, outbox, pages, ledger, ring_ledgers, .. } = self;
        let QueuePages { pool, blocks, .. } = pages;
        let refused = |at: usize, frame: Option<Completion>| {
            refuse(ring_ledgers, at, ledger);
            frame.into_iter().for_each(|frame| pool.recycle_frame(frame));
            pool.recycled();
        };
        outbox.publish(least, blocks.as_mut(), refused, |at| published.push((at as CpuIndex, *id)));
        ledger.parked.raise_to(outbox.lot().tail());
    }

    fn reclaim_all(&mut self) {
        let mut next = self.outbox.next_out(0);
        while let Some(at) = next {
            self.reclaim(at);
            next = self.outbox.next_out(at + 1);
        }
        self.pages.pool.collect_kept();
    }

    /// Takes finished slots of a ring back. Frames in the parking lot are never finished there:
    /// `unpark` takes them out.
    fn reclaim(&mut self, target: usize) {
        let QueuePages { pool, blocks, .. } = &mut self.pages;
        let recycled = match blocks {
            None => self.outbox.reclaim_many(target, |frames| pool.recycle_many(frames)),
            Some(blocks) => self.outbox.reclaim_lent(target, blocks, |frame| pool.recycle_frame(frame)),
        };
        if recycled > 0 {
            pool.recycled();
        }
    }

    pub(crate) fn set_limits(&mut self, limits: Limits, own: QueueLimits, flow_limited: &[CpuIndex]) {
        (self.limits.weight, self.limits.copybreak) = (limits.dev_weight, own.copybreak);
        self.pages.pool.set_cache_max(own.lpc_pages);
        self.outbox.set_backlog(limits.backlog);
        // A queue that waits for room loses no packets, so it needs no flow limit.
        let flow_limited = if self.limits.can_wait { &[] } else { flow_limited };
        // New flow limits allocate tables, which is allowed outside of a round.
        let _outside = round::leave();
        self.flow_limits.set(flow_limited, limits.flow_limit_table_len);
    }

    /// The file descriptor that becomes readable when frames arrive. Returns `None` for a queue
    /// that is blocked, has ended, or has returned the time of its next frames, because its file
    /// descriptor may be readable all the time.
    pub(crate) fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        let drained = self.state.polled == Polled::Drained && !self.state.blocked && !self.state.ended;
        if drained { self.rx.wait_on() } else { None }
    }

    pub(crate) fn device(&self) -> Option<BorrowedFd<'_>> {
        self.rx.wait_on()
    }

    pub(crate) fn can_wait(&self) -> bool {
        self.limits.can_wait
    }

    /// Requests a wake-up from each CPU whose full backlog blocks this queue, for when half of that
    /// backlog is handled.
    pub(crate) fn wake_when_there_is_room(&mut self) {
        self.outbox.wake_when_there_is_room(self.limits.weight);
    }

    pub(crate) fn has_room(&mut self) -> bool {
        self.outbox.has_owner_finished() && self.room_everywhere() > 0
    }

    /// After a stop, a live queue is polled as long as its device hands over frames that arrived
    /// before the stop. A queue that can wait is not polled again.
    pub(crate) fn stop(&mut self) {
        if !self.state.ended {
            self.state.ended = !self.rx.stop();
            // The device may have returned a later time for its next poll, which no longer applies
            // after a stop.
            self.state.polled = Polled::More;
        }
    }

    pub(crate) fn is_at_rest(&mut self) -> bool {
        if !self.state.ended {
            return false;
        }
        self.reclaim_all();
        self.outbox.is_empty()
    }

    pub(crate) fn close(&mut self) {
        let mut pages = Vec::new();
        self.rx.close(self.pages.pool.region(), &mut pages);
        pages.into_iter().for_each(|page| self.pages.pool.recycle(page));
        self.pages.pool.close();
    }
}

#[cold]
fn refuse(rings: &[Arc<RingLedger>], at: usize, ledger: &QueueLedger) {
    rings.get(at).inspect(|ring| ring.by_producer.backlog_full.add(1));
    ledger.dropped.add(if at < rings.len() { DropReason::BacklogFull } else { DropReason::Moving }, 1);
}
