//! Backlogs: a CPU's end of the rings from the receive queues. The queue's end is in `queue`.
//!
//! `netdev_max_backlog` limits the frames that wait for a CPU, over all live queues, as in Linux.
//! With several live queues, a list is admitted when it is published, and the newest frames that
//! find no room are dropped. A single live queue, and each queue that can wait, is limited by its
//! own ring.

use std::sync::Arc;

use steerage_mem::ring::Consumer;
use steerage_mem::{Inbox, KeptPages, Turns};

use crate::ids::{CpuIndex, InputId};
use crate::limits::IDLE_LOOKS;
use crate::queue::hash::QueueHasher;
use steerage_ledger::{OrderCheck, RingLedger};

pub(crate) struct Backlog {
    pub(crate) source: Source,
    pub(crate) consumer: Consumer,
    pub(crate) can_wait: bool,
    /// Whether the CPU's `Admission` counts the frames of this backlog.
    pub(crate) is_admitted: bool,
    /// How often in a row the backlog was empty when the CPU checked it.
    pub(crate) idle_looks: u32,
}

/// What a CPU needs to handle the frames of one queue, from a ring or from the lane.
pub(crate) struct Source {
    pub(crate) input: InputId,
    pub(crate) queue: usize,
    pub(crate) kept_pages: Arc<KeptPages>,
    pub(crate) hasher: QueueHasher,
    /// Whether the queue's device provides blocks for its frames.
    pub(crate) lent: bool,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

impl Backlog {
    #[inline]
    pub(crate) fn is_due(&self, held_back: bool) -> bool {
        self.consumer.waiting() > 0 && !(held_back && self.can_wait)
    }

    /// The backlog was empty for a while: the CPU stops checking it until frames are published.
    #[cold]
    fn forget(&mut self, inbox: &Inbox) {
        self.idle_looks = 0;
        inbox.clear(self.source.queue);
        if self.consumer.waiting() > 0 {
            inbox.note(self.source.queue);
        }
    }
}

pub(crate) struct Backlogs {
    rings: Vec<Backlog>,
    /// This CPU's own queues, in the order of `Softnet`. The CPU handles its own share before the
    /// share that other CPUs hand to it.
    own: Vec<usize>,
    rotation: usize,
    turns: Turns,
    inboxes: Arc<[Inbox]>,
    me: CpuIndex,
}

impl Backlogs {
    /// Creates the backlogs of the CPU `me`. `rings` has the backlog of each queue, in the order of
    /// the queues' numbers. `random` decides which queue of other CPUs is served first.
    pub(crate) fn new(rings: Vec<Backlog>, me: CpuIndex, inboxes: Arc<[Inbox]>, random: impl FnOnce() -> u64) -> Self {
        let rotation = if rings.is_empty() { 0 } else { random() as usize % rings.len() };
        Self { rings, own: Vec::new(), rotation, turns: Turns::default(), inboxes, me }
    }

    #[cold]
    pub(crate) fn set_own(&mut self, queues: impl Iterator<Item = usize>) {
        let inbox = &self.inboxes[usize::from(self.me)];
        self.own.drain(..).for_each(|queue| inbox.note(queue));
        self.own.extend(queues.inspect(|queue| inbox.clear(*queue)));
    }

    #[inline]
    pub(crate) fn is_own(&self, place: usize) -> bool {
        place < self.own.len()
    }

    /// The backlog with the number `place` in the order of service: first the CPU's own queues,
    /// then all queues by their numbers.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Backlog {
        let queue = self.own.get(place).copied().unwrap_or_else(|| place - self.own.len());
        &mut self.rings[queue]
    }

    /// The number, in the order of service, of the first backlog from `from` on that has frames and
    /// was not served in this round. `from` is 0 at the start of a round. The frames of an own queue
    /// are in its lane, as `has_stayed` says, except frames from before this CPU owned the queue.
    /// With `held_back`, backlogs of sources that can wait do not count.
    #[inline]
    pub(crate) fn next_to_serve(
        &mut self,
        from: usize,
        held_back: bool,
        has_stayed: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let own = self.own.len();
        for place in from..own {
            if has_stayed(place) || self.rings[self.own[place]].is_due(held_back) {
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

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        self.rings.iter().filter(|ring| ring.consumer.waiting() > 0)
    }

    pub(crate) fn rotate(&mut self) {
        self.rotation += 1;
        if self.rotation >= self.rings.len() {
            self.rotation = 0;
        }
    }
}
