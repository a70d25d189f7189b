//! A backlog is the receiving end of a ring, on the CPU that takes frames from the ring. The
//! sending end of the ring, on the CPU that polls the queue, is in the module `queue`.
//!
//! As in Linux, `netdev_max_backlog` limits how many frames of all live queues together wait for a
//! CPU. With several live queues, the limit is checked when a list of frames is published, and the
//! newest frames are dropped. If there is only one live queue, its backlog is limited by the size
//! of its ring. The size of the ring also limits the backlog of each queue that can wait, such as a
//! file.

use std::sync::Arc;

use steerage_mem::ring::Consumer;
use steerage_mem::{Inbox, KeptPages, Turns};

use crate::ids::{CpuIndex, InputId};
use crate::queue::hash::QueueHasher;
use steerage_ledger::{OrderCheck, RingLedger};

pub(crate) struct Backlog {
    pub(crate) source: Source,
    pub(crate) consumer: Consumer,
    pub(crate) can_wait: bool,
    /// True if the CPU's `Admission` (the check of `netdev_max_backlog`) counts these frames.
    pub(crate) is_admitted: bool,
    pub(crate) idle_looks: u32,
}

pub(crate) struct Source {
    pub(crate) input: InputId,
    pub(crate) queue: usize,
    pub(crate) sends: Option<CpuIndex>,
    /// The stack through which the pages of kept packets return to the queue when the packets are
    /// dropped.
    pub(crate) kept_pages: Arc<KeptPages>,
    pub(crate) hasher: QueueHasher,
    /// True if handlers may write to copies of frames, because frames lie in memory of the device
    /// or are merged.
    pub(crate) copies: bool,
    pub(crate) coalesces: bool,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

impl Backlog {
    /// Called after many checks of an empty backlog, which the CPU checks again only when frames
    /// are published in this backlog.
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
    rotation: usize,
    turns: Turns,
    inboxes: Arc<[Inbox]>,
    me: CpuIndex,
}

impl Backlogs {
    /// `random` decides from which queue the CPU handles packets first.
    pub(crate) fn new(rings: Vec<Backlog>, me: CpuIndex, inboxes: Arc<[Inbox]>, random: impl FnOnce() -> u64) -> Self {
        let rotation = if rings.is_empty() { 0 } else { random() as usize % rings.len() };
        Self { rings, rotation, turns: Turns::default(), inboxes, me }
    }

    #[inline]
    pub(crate) fn at(&mut self, queue: usize) -> &mut Backlog {
        &mut self.rings[queue]
    }

    #[inline]
    pub(crate) fn begin(&mut self) {
        self.turns = self.inboxes[usize::from(self.me)].begin(self.rotation);
        self.rotation = if self.rotation + 1 < self.rings.len() { self.rotation + 1 } else { 0 };
    }

    /// Returns the next backlog that has frames in this round. If `held_back` is true (an output is
    /// full), skips queues that can wait.
    #[inline(always)]
    pub(crate) fn next_to_serve(&mut self, held_back: bool) -> Option<usize> {
        let inbox = &self.inboxes[usize::from(self.me)];
        while let Some(queue) = inbox.next(&mut self.turns) {
            let ring = &mut self.rings[queue];
            if ring.consumer.waiting() > 0 && !(held_back && ring.can_wait) {
                ring.idle_looks = 0;
                if let Some(then) = self.turns.peek() {
                    self.rings[then].consumer.prefetch();
                }
                return Some(queue);
            }
            ring.idle_looks += 1;
            if ring.idle_looks >= inbox.looks_max() {
                ring.forget(inbox);
            }
        }
        None
    }

    /// The backlogs that contain frames. Before a CPU with 256 queues sleeps, it reads only four
    /// 64-bit integers of the inbox, and the rings whose bits are set.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        let inbox = &self.inboxes[usize::from(self.me)];
        let mut turns = inbox.begin(0);
        let noted = std::iter::from_fn(move || inbox.next(&mut turns));
        noted.map(|queue| &self.rings[queue]).filter(|ring| ring.consumer.waiting() > 0)
    }
}
