//! A ring from a receive queue to a CPU has two ends. A backlog is the receiving end of a ring, on
//! the CPU that takes frames from the ring. The sending end of a queue's ring, on the CPU that
//! polls the queue, is in the module `queue`.
//!
//! As in Linux, `netdev_max_backlog` limits how many frames wait for a CPU. The frames of all live
//! queues (queues that cannot wait) count together. With several live queues (queues that cannot
//! wait), the limit is checked when a list of frames is published. If more frames wait than
//! `netdev_max_backlog` allows, the newest frames are dropped. If there is only one live queue (a
//! queue that cannot wait), the size of the queue's ring limits the number of its frames. For a
//! queue that can wait (such as a file), only the size of the queue's ring limits the number of
//! frames.

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
    /// True if the CPU's `Admission` (the check of `netdev_max_backlog`) counts the frames of this
    /// backlog.
    pub(crate) is_admitted: bool,
    /// How many consecutive times the CPU has found this backlog empty.
    pub(crate) idle_looks: u32,
}

/// Data that a CPU needs to handle the frames of one queue. The frames come from a ring, or from
/// the CPU's own lane (its list of frames from its own poll).
pub(crate) struct Source {
    pub(crate) input: InputId,
    pub(crate) queue: usize,
    /// The CPU that handles the frames. The field is set only if the instance has
    /// [`Sender`](crate::sender::Sender)s.
    pub(crate) sends: Option<CpuIndex>,
    /// When kept packets are dropped, their pages return to the queue through this stack.
    pub(crate) kept_pages: Arc<KeptPages>,
    pub(crate) hasher: QueueHasher,
    /// True if packets of the queue may have separate copies to which handlers write. Packets have
    /// separate writable copies if their frames lie in blocks (memory of the device) or are merged.
    pub(crate) copies: bool,
    /// True if consecutive segments of a flow are merged before the handler is called.
    pub(crate) coalesces: bool,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

impl Backlog {
    /// The CPU calls this function after it has found the backlog empty several times in a row.
    /// After this call, the CPU does not check the backlog again until frames are published in the
    /// backlog's ring.
    #[cold]
    fn forget(&mut self, inbox: &Inbox) {
        self.idle_looks = 0;
        inbox.clear(self.source.queue);
        if self.consumer.waiting() > 0 {
            inbox.note(self.source.queue);
        }
    }
}

/// The rings to one CPU, sorted by the numbers of their queues.
pub(crate) struct Backlogs {
    rings: Vec<Backlog>,
    rotation: usize,
    turns: Turns,
    inboxes: Arc<[Inbox]>,
    me: CpuIndex,
}

impl Backlogs {
    /// Creates the backlogs of the CPU with the index `me`. `random` decides from which queue the
    /// CPU handles packets first.
    pub(crate) fn new(rings: Vec<Backlog>, me: CpuIndex, inboxes: Arc<[Inbox]>, random: impl FnOnce() -> u64) -> Self {
        let rotation = if rings.is_empty() { 0 } else { random() as usize % rings.len() };
        Self { rings, rotation, turns: Turns::default(), inboxes, me }
    }

    #[inline]
    pub(crate) fn at(&mut self, queue: usize) -> &mut Backlog {
        &mut self.rings[queue]
    }

    /// Begins a round (one pass of the CPU over its work), in which the CPU serves each backlog at
    /// most once.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.turns = self.inboxes[usize::from(self.me)].begin(self.rotation);
        self.rotation = if self.rotation + 1 < self.rings.len() { self.rotation + 1 } else { 0 };
    }

    /// Returns the next backlog that has frames and was not served in this round (the CPU's current
    /// pass). If `held_back` is true, the backlogs of queues that can wait (such as files) are
    /// skipped.
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

    /// Returns the backlogs that contain frames. The inbox has a bit for each ring. Before a CPU
    /// with 256 queues sleeps, it reads only four 64-bit integers of the inbox, and the rings whose
    /// bits are set.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Backlog> {
        let inbox = &self.inboxes[usize::from(self.me)];
        let mut turns = inbox.begin(0);
        let noted = std::iter::from_fn(move || inbox.next(&mut turns));
        noted.map(|queue| &self.rings[queue]).filter(|ring| ring.consumer.waiting() > 0)
    }
}
