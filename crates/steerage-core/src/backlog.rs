//! Backlogs: the rings from receive queues to CPUs. [`QueueRings`] is a queue's end of its rings to all CPUs, [`Backlog`] a CPU's
//! end of one ring.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use steerage_mem::ring::{Consumer, Producer};
use steerage_mem::{Completion, KeptPages};

use crate::hashing::QueueHasher;
use crate::ids::{CpuIndex, DropReason, InputId};
use crate::limits::{PUBLISH_AT, PUBLISH_POLLS};
use crate::pool::QueuePages;
use steerage_ledger::{OrderCheck, QueueLedger, RingLedger};

/// A queue's rings to all CPUs.
pub(crate) struct QueueRings {
    /// The rings in the order of the CPUs, followed by the parking lot.
    pub(crate) to: Vec<Producer>,
    /// By CPU.
    pub(crate) ledgers: Vec<Arc<RingLedger>>,
    polls_unpublished: u32,
}

impl QueueRings {
    pub(crate) fn new(by_cpu: Vec<Producer>, lot: Producer, ledgers: Vec<Arc<RingLedger>>) -> Self {
        let mut to = by_cpu;
        to.push(lot);
        Self { to, ledgers, polls_unpublished: 0 }
    }

    /// The number of CPUs, which is also the index of the parking lot.
    #[inline(always)]
    pub(crate) fn cpus(&self) -> usize {
        self.to.len() - 1
    }

    /// The parking lot.
    pub(crate) fn lot(&mut self) -> &mut Producer {
        let lot = self.cpus();
        &mut self.to[lot]
    }

    fn by_cpu(&mut self) -> &mut [Producer] {
        let cpus = self.cpus();
        &mut self.to[..cpus]
    }

    // ---- hand over

    /// Writes a frame's slot to a ring. If the ring is full, the frame is dropped and counted.
    // Always inlined: as a call, the frame would go through memory, and its load would wait for the stores. With 16 targets that
    // took the receiving CPU 22 ns per packet instead of 9.5.
    #[inline(always)]
    pub(crate) fn stage(
        &mut self,
        target: usize,
        frame: Completion,
        arrival: u64,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        if let Err(frame) = self.to[target].stage(frame, arrival) {
            self.stage_in_full_ring(target, frame, arrival, pages, ledger);
        }
    }

    #[cold]
    #[inline(never)]
    fn stage_in_full_ring(
        &mut self,
        target: usize,
        frame: Completion,
        arrival: u64,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        self.reclaim(target, pages);
        if let Err(frame) = self.to[target].stage(frame, arrival) {
            if target == self.cpus() {
                ledger.dropped.add(DropReason::Moving, 1);
            } else {
                ledger.dropped.add(DropReason::BacklogFull, 1);
                self.ledgers[target].by_producer.backlog_full.add(1);
            }
            pages.take_home(frame);
        }
    }

    /// Publishes the rings that have enough frames staged. Publishes all rings if the poll was not full or the last
    /// time was many polls ago. `own` is this CPU itself, whose share is always published. Calls `shown` for each CPU
    /// that got frames.
    pub(crate) fn publish(&mut self, own: usize, polled: usize, weight: usize, mut shown: impl FnMut(CpuIndex)) {
        self.polls_unpublished += 1;
        let all = polled < weight || self.polls_unpublished >= PUBLISH_POLLS;
        let least = if all { 1 } else { PUBLISH_AT.min(weight as u64) };
        if all {
            self.polls_unpublished = 0;
        }
        for (at, ring) in self.by_cpu().iter_mut().enumerate() {
            let unpublished = ring.unpublished();
            if unpublished >= least || (at == own && unpublished > 0) {
                ring.publish();
                shown(at as CpuIndex);
            }
        }
    }

    /// Publishes all rings that have frames staged. Calls `shown` for each CPU that got frames.
    pub(crate) fn publish_all(&mut self, mut shown: impl FnMut(CpuIndex)) {
        for (at, ring) in self.by_cpu().iter_mut().enumerate() {
            if ring.publish() {
                shown(at as CpuIndex);
            }
        }
    }

    // ---- the way home

    /// Takes home the finished frames of all rings, and the pages of kept packets that were dropped.
    pub(crate) fn reclaim_all(&mut self, pages: &mut QueuePages) {
        for at in 0..self.cpus() {
            self.reclaim(at, pages);
        }
        pages.pool.collect_kept();
    }

    /// Takes home the finished frames of one ring. (Frames leave the parking lot in another way, so none is ever
    /// finished there.)
    pub(crate) fn reclaim(&mut self, target: usize, pages: &mut QueuePages) {
        let QueuePages { pool, blocks, .. } = pages;
        let recycled = match blocks {
            None => self.to[target].reclaim(|frame| pool.recycle_frame(frame)),
            Some(blocks) => {
                let mut lent = blocks.homecoming();
                self.to[target].reclaim(|frame| lent.recycle(frame).unwrap_or_else(|frame| pool.recycle_frame(frame)))
            }
        };
        if recycled > 0 {
            pool.recycled();
        }
    }

    /// Drops the frames that are staged and parked, which other CPUs have not seen, because this CPU was declared
    /// dead.
    pub(crate) fn withdraw_all(&mut self, pages: &mut QueuePages, ledger: &QueueLedger) {
        for ring in self.by_cpu() {
            ring.withdraw(|frame| {
                ledger.dropped.add(DropReason::Revoked, 1);
                pages.take_home(frame);
            });
        }
        while let Some((frame, _)) = self.lot().unpark() {
            ledger.dropped.add(DropReason::Moving, 1);
            pages.take_home(frame);
        }
        ledger.unparked.raise_to(self.lot().tail());
        self.open_lot();
    }

    /// Lets the parking lot use all of its slots.
    pub(crate) fn open_lot(&mut self) {
        let lot = self.lot();
        lot.set_limit(lot.capacity());
    }

    // ---- room

    /// Whether a ring has room for a frame.
    pub(crate) fn has_room(&mut self, target: usize, pages: &mut QueuePages) -> bool {
        if self.to[target].room() == 0 {
            self.reclaim(target, pages);
        }
        self.to[target].room() > 0
    }

    /// How many frames may be received now so that each of them has room wherever it goes: a whole poll of `weight`
    /// frames, or none. When a backlog is almost full, polling for the few frames that still fit costs as much as
    /// polling for many.
    pub(crate) fn room_everywhere(&mut self, weight: usize, pages: &mut QueuePages) -> usize {
        let mut budget = weight;
        for at in 0..self.to.len() {
            budget = budget.min(self.to[at].limit());
            if self.to[at].room() < weight as u64 {
                self.reclaim(at, pages);
            }
        }
        let fits = self.to.iter().all(|ring| ring.room() >= budget as u64);
        if fits { budget } else { 0 }
    }

    /// Asks the CPUs whose backlogs have no room for a poll to wake the queue's owner when half of a backlog is
    /// worked off.
    pub(crate) fn wake_when_there_is_room(&mut self, weight: usize) {
        for ring in self.by_cpu() {
            if ring.room() < weight as u64 {
                ring.wake_at(ring.limit() as u64 / 2);
            }
        }
    }

    /// Sets how many frames may wait for each CPU.
    pub(crate) fn set_backlog(&mut self, frames: usize) {
        self.by_cpu().iter_mut().for_each(|ring| ring.set_limit(frames));
    }

    /// Whether no frame is in a ring or parked.
    pub(crate) fn are_empty(&self) -> bool {
        self.to.iter().all(|ring| ring.occupied() == 0)
    }
}

/// The receiving end of one ring.
pub(crate) struct Backlog {
    pub(crate) input: InputId,
    pub(crate) queue: usize,
    pub(crate) owner: CpuIndex,
    pub(crate) consumer: Consumer,
    pub(crate) kept_pages: Arc<KeptPages>,
    pub(crate) hasher: QueueHasher,
    /// The queue's device lends its frames.
    pub(crate) lent: bool,
    pub(crate) can_wait: bool,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

/// All backlogs of one CPU.
pub(crate) struct Backlogs {
    /// The backlogs of this CPU's own queues come first: the CPU handles its own share before the share that other
    /// CPUs hand to it.
    rings: Vec<Backlog>,
    own: usize,
    /// Which of the other backlogs is served first. It changes with every round.
    rotation: usize,
}

impl Backlogs {
    /// The backlogs of the CPU `me`. `random` decides which of the other CPUs' queues is served first.
    pub(crate) fn new(mut rings: Vec<Backlog>, me: CpuIndex, random: impl FnOnce() -> u64) -> Self {
        rings.sort_by_key(|ring| ring.owner != me);
        let own = rings.iter().filter(|ring| ring.owner == me).count();
        let others = rings.len() - own;
        let rotation = if others > 0 { random() as usize % others } else { 0 };
        Self { rings, own, rotation }
    }

    /// Whether the `nth` backlog of this round belongs to one of this CPU's own queues.
    #[inline]
    pub(crate) fn is_own(&self, nth: usize) -> bool {
        nth < self.own
    }

    /// The `nth` backlog to be served in this round.
    #[inline]
    pub(crate) fn nth(&mut self, nth: usize) -> &mut Backlog {
        let at = self.place(nth);
        &mut self.rings[at]
    }

    fn place(&self, nth: usize) -> usize {
        if nth < self.own {
            return nth;
        }
        let others = self.rings.len() - self.own;
        self.own + (nth - self.own + self.rotation) % others
    }

    /// The first backlog, from the `nth` of this round on, that has frames and is not held back.
    #[inline]
    pub(crate) fn next_to_serve(&self, nth: usize, is_held_back: impl Fn(&Backlog) -> bool) -> Option<usize> {
        (nth..self.rings.len()).find(|nth| {
            let ring = &self.rings[self.place(*nth)];
            ring.consumer.waiting() > 0 && !is_held_back(ring)
        })
    }

    /// The backlogs that have frames.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        self.rings.iter().filter(|ring| ring.consumer.waiting() > 0)
    }

    /// Begins the next round.
    pub(crate) fn rotate(&mut self) {
        let others = self.rings.len() - self.own;
        if others > 0 {
            self.rotation = (self.rotation + 1) % others;
        }
    }
}
