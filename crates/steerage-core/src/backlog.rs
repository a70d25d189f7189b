//! Backlogs: the rings from receive queues to CPUs. [`QueueRings`] is a queue's end of its rings to all CPUs, [`Backlog`] a CPU's
//! end of one ring.
//!
//! `netdev_max_backlog` limits the frames that wait for a CPU, over all live queues, as in Linux. If there are several of them,
//! a list is admitted when it is published, and the frames that find no room are dropped from its end. A single live queue, and each
//! queue that can wait, goes by the limit of its ring.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use steerage_mem::ring::Consumer;
use steerage_mem::{Completion, Inbox, KeptPages, Outbox, Turns};

use crate::hashing::QueueHasher;
use crate::ids::{CpuIndex, DropReason, InputId};
use crate::limits::{IDLE_LOOKS, PUBLISH_AT, PUBLISH_POLLS};
use crate::pool::QueuePages;
use steerage_ledger::{OrderCheck, QueueLedger, RingLedger};

/// A CPU, and a queue that has published frames for it.
pub(crate) type Shown = (CpuIndex, usize);

/// A queue's rings to all CPUs.
pub(crate) struct QueueRings {
    /// The number of the queue.
    queue: usize,
    pub(crate) to: Outbox,
    /// By CPU.
    pub(crate) ledgers: Vec<Arc<RingLedger>>,
    /// How many slots of the parking lot may be used.
    lot_slots: usize,
    polls_unpublished: u32,
}

impl QueueRings {
    pub(crate) fn new(queue: usize, mut to: Outbox, ledgers: Vec<Arc<RingLedger>>) -> Self {
        let lot_slots = to.lot().limit();
        Self { queue, to, ledgers, lot_slots, polls_unpublished: 0 }
    }

    // ---- hand over

    /// Writes a frame's slot to a ring. If the ring is full, the frame is dropped and counted.
    #[inline(always)]
    pub(crate) fn stage(
        &mut self,
        target: usize,
        frame: Completion,
        arrival: u64,
        pages: &mut QueuePages,
        ledger: &QueueLedger,
    ) {
        if let Err(frame) = self.to.stage(target, frame, arrival) {
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
        if let Err(frame) = self.to.stage(target, frame, arrival) {
            refuse(&self.ledgers, target, ledger);
            pages.take_home(frame);
        }
    }

    /// Publishes the rings that have enough frames staged. Publishes all rings if the poll was not full or the last
    /// time was many polls ago. `own` is this CPU itself, whose share is always published.
    pub(crate) fn publish(&mut self, own: usize, is_full: bool, weight: usize, to: To<'_>) {
        self.polls_unpublished += 1;
        let all = !is_full || self.polls_unpublished >= PUBLISH_POLLS;
        if all {
            self.polls_unpublished = 0;
        }
        self.publish_from(if all { 1 } else { PUBLISH_AT.min(weight as u64) }, own, to);
    }

    /// Publishes the rings that have at least `least` frames staged, and `own`.
    pub(crate) fn publish_from(&mut self, least: u64, own: usize, To { pages, ledger, shown }: To<'_>) {
        let Self { to, ledgers, queue, .. } = self;
        let QueuePages { pool, blocks, .. } = pages;
        let refused = |at: usize, frame: Option<Completion>| {
            refuse(ledgers, at, ledger);
            frame.into_iter().for_each(|frame| pool.recycle_frame(frame));
            pool.recycled();
        };
        to.publish(least, own, blocks.as_mut(), refused, |at| shown.push((at as CpuIndex, *queue)));
        // Frames that find no room in the lot have left it.
        ledger.parked.raise_to(to.lot().tail());
    }

    // ---- the way home

    /// Takes home the finished frames of all rings, and the pages of kept packets that were dropped.
    pub(crate) fn reclaim_all(&mut self, pages: &mut QueuePages) {
        let mut next = self.to.next_out(0);
        while let Some(at) = next {
            self.reclaim(at, pages);
            next = self.to.next_out(at + 1);
        }
        pages.pool.collect_kept();
    }

    /// Takes home the finished frames of one ring. (Frames leave the parking lot in another way, so none is ever
    /// finished there.)
    pub(crate) fn reclaim(&mut self, target: usize, pages: &mut QueuePages) {
        let QueuePages { pool, blocks, .. } = pages;
        let recycled = match blocks {
            None => self.to.reclaim_many(target, |frames| pool.recycle_many(frames)),
            Some(blocks) => self.to.reclaim_lent(target, blocks, |frame| pool.recycle_frame(frame)),
        };
        if recycled > 0 {
            pool.recycled();
        }
    }

    /// Drops the frames that are staged and parked, which other CPUs have not seen, because this CPU was declared
    /// dead.
    pub(crate) fn withdraw_all(&mut self, pages: &mut QueuePages, ledger: &QueueLedger) {
        self.to.withdraw_all(|frame| {
            ledger.dropped.add(DropReason::Revoked, 1);
            pages.take_home(frame);
        });
        while let Some((frame, _)) = self.to.unpark(pages.blocks.as_mut()) {
            ledger.dropped.add(DropReason::Moving, 1);
            pages.take_home(frame);
        }
        ledger.unparked.raise_to(self.to.lot().tail());
        self.open_lot();
    }

    /// Lets the parking lot use all of its slots.
    pub(crate) fn open_lot(&mut self) {
        self.to.lot().set_limit(self.lot_slots);
    }

    // ---- room

    /// Whether a ring has room for a frame.
    pub(crate) fn has_room(&mut self, target: usize, pages: &mut QueuePages) -> bool {
        if !self.to.has_room(target, 1) {
            self.reclaim(target, pages);
        }
        self.to.has_room(target, 1)
    }

    /// How many frames may be received now so that each of them has room wherever it goes: a whole poll of `weight`
    /// frames, or none. When a backlog is almost full, polling for the few frames that still fit costs as much as
    /// polling for many.
    pub(crate) fn room_everywhere(&mut self, weight: usize, pages: &mut QueuePages) -> usize {
        let budget = weight.min(self.to.backlog()).min(self.to.lot().limit());
        let mut fits = self.to.lot().room() >= budget as u64;
        let mut from = 0;
        while let Some(at) = self.to.next_without_room(from, weight) {
            self.reclaim(at, pages);
            fits &= self.to.has_room(at, budget);
            from = at + 1;
        }
        if fits { budget } else { 0 }
    }
}

/// Counts a frame that finds no room, in a CPU's backlog or in the parking lot.
#[cold]
fn refuse(rings: &[Arc<RingLedger>], at: usize, ledger: &QueueLedger) {
    rings.get(at).inspect(|ring| ring.by_producer.backlog_full.add(1));
    ledger.dropped.add(if at < rings.len() { DropReason::BacklogFull } else { DropReason::Moving }, 1);
}

/// The parts that a queue needs to publish: where refused frames go, and the CPUs that got frames.
pub(crate) struct To<'a> {
    pub(crate) pages: &'a mut QueuePages,
    pub(crate) ledger: &'a QueueLedger,
    pub(crate) shown: &'a mut Vec<Shown>,
}

/// The receiving end of one ring.
pub(crate) struct Backlog {
    pub(crate) input: InputId,
    pub(crate) queue: usize,
    pub(crate) consumer: Consumer,
    pub(crate) kept_pages: Arc<KeptPages>,
    pub(crate) hasher: QueueHasher,
    /// The queue's device lends its frames.
    pub(crate) lent: bool,
    pub(crate) can_wait: bool,
    /// The CPU's `Admission` counts its frames.
    pub(crate) is_admitted: bool,
    /// How often in a row it was empty when it was looked at.
    pub(crate) idle_looks: u32,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

impl Backlog {
    /// Whether it has frames, and they are not held back.
    #[inline]
    fn is_due(&self, held_back: bool) -> bool {
        self.consumer.waiting() > 0 && !(held_back && self.can_wait)
    }

    /// It had nothing for a while: it is not looked at any more until something is published.
    #[cold]
    fn forget(&mut self, inbox: &Inbox) {
        self.idle_looks = 0;
        inbox.clear(self.queue);
        if self.consumer.waiting() > 0 {
            inbox.note(self.queue);
        }
    }
}

/// All backlogs of one CPU.
pub(crate) struct Backlogs {
    /// By the number of the queue.
    rings: Vec<Backlog>,
    /// This CPU's own queues. The CPU handles its own share before the share that other CPUs hand to it.
    own: Vec<usize>,
    /// Which of the other queues is served first. It changes with every round.
    rotation: usize,
    /// How far this round has come with them.
    turns: Turns,
    /// By CPU.
    inboxes: Arc<[Inbox]>,
    me: CpuIndex,
}

impl Backlogs {
    /// The backlogs of the CPU `me`, by the number of the queue. `random` decides which of the other CPUs' queues is served
    /// first.
    pub(crate) fn new(rings: Vec<Backlog>, me: CpuIndex, inboxes: Arc<[Inbox]>, random: impl FnOnce() -> u64) -> Self {
        let rotation = if rings.is_empty() { 0 } else { random() as usize % rings.len() };
        Self { rings, own: Vec::new(), rotation, turns: Turns::default(), inboxes, me }
    }

    /// Sets this CPU's own queues. The inbox has the other queues.
    #[cold]
    pub(crate) fn set_own(&mut self, queues: impl Iterator<Item = usize>) {
        let inbox = &self.inboxes[usize::from(self.me)];
        self.own.drain(..).for_each(|queue| inbox.note(queue));
        self.own.extend(queues.inspect(|queue| inbox.clear(*queue)));
    }

    /// Whether the backlog at this place belongs to one of this CPU's own queues.
    #[inline]
    pub(crate) fn is_own(&self, place: usize) -> bool {
        place < self.own.len()
    }

    /// The backlog at a place. Its own queues come first, then all queues by their numbers.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Backlog {
        let queue = self.own.get(place).copied().unwrap_or_else(|| place - self.own.len());
        &mut self.rings[queue]
    }

    /// The place of the first backlog that has frames and was not served in this round. `from` is 0 at the start of a round, then the
    /// place behind the last one. If packets of sources that can wait are `held_back`, their backlogs do not count.
    #[inline]
    pub(crate) fn next_to_serve(&mut self, from: usize, held_back: bool) -> Option<usize> {
        let own = self.own.len();
        for place in from..own {
            if self.rings[self.own[place]].is_due(held_back) {
                return Some(place);
            }
        }
        if own == self.rings.len() {
            return None;
        }
        let inbox = &self.inboxes[usize::from(self.me)];
        if from <= own {
            self.turns = inbox.begin(self.rotation);
        }
        while let Some(queue) = inbox.next(&mut self.turns) {
            let ring = &mut self.rings[queue];
            if ring.is_due(held_back) {
                ring.idle_looks = 0;
                if let Some(then) = self.turns.peek() {
                    self.rings[then].consumer.prefetch();
                }
                return Some(own + queue);
            }
            ring.idle_looks += 1;
            if ring.idle_looks >= IDLE_LOOKS {
                ring.forget(inbox);
            }
        }
        None
    }

    /// The backlogs that have frames.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        self.rings.iter().filter(|ring| ring.consumer.waiting() > 0)
    }

    /// Begins the next round.
    pub(crate) fn rotate(&mut self) {
        self.rotation += 1;
        if self.rotation >= self.rings.len() {
            self.rotation = 0;
        }
    }
}
