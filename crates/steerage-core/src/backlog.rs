//! Backlogs: a CPU's end of the rings from the receive queues. The queue's end is in `queue`.
//!
//! `netdev_max_backlog` limits the frames that wait for a CPU, over all live queues, as in Linux. If there are several of them,
//! a list is admitted when it is published, and the frames that find no room are dropped from its end. A single live queue, and each
//! queue that can wait, goes by the limit of its ring.

use std::sync::Arc;

use steerage_mem::ring::Consumer;
use steerage_mem::{Inbox, KeptPages, Turns};

use crate::ids::{CpuIndex, InputId};
use crate::limits::IDLE_LOOKS;
use crate::queue::hash::QueueHasher;
use steerage_ledger::{OrderCheck, RingLedger};

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
