//! The ledger as it is shown: plain numbers, read at one time.

use std::time::Duration;

use steerage_mem::Backing;

use super::Drops;
use crate::cpu::CpuId;
use crate::policy::GroupSnapshot;

/// One of a queue's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketSnapshot {
    /// The CPU that has it; while it moves, the old one's until the new one gets what is new.
    pub cpu: CpuId,
    /// About how many packets of the queue came for it: of each poll one packet is looked at, and counts for all of the poll.
    /// None are counted where nothing has to be hashed, since one CPU has all buckets.
    pub packets: u64,
    /// How often it changed its CPU.
    pub moves: u64,
}

/// What became of delivered packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdicts {
    /// Consumed by the function.
    pub consumed: u64,
    /// Discarded by the function's own will.
    pub discarded: u64,
    /// Kept beyond their batch.
    pub kept: u64,
    /// Sent by an output.
    pub transmitted: u64,
}

impl Verdicts {
    /// How many were delivered in all.
    pub fn total(&self) -> u64 {
        self.consumed + self.discarded + self.kept + self.transmitted
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.consumed += other.consumed;
        self.discarded += other.discarded;
        self.kept += other.kept;
        self.transmitted += other.transmitted;
    }
}

/// One receive queue's part of the ledger.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// The input's name.
    pub device: String,
    /// What it is.
    pub kind: &'static str,
    /// How it runs.
    pub mode: &'static str,
    /// Its number within the input.
    pub queue: usize,
    /// The CPU that polls it.
    pub cpu: CpuId,
    /// Where its flow hash comes from: `device`, or ours by name.
    pub hash: &'static str,
    /// Its mask, as the CPUs that have buckets of it.
    pub rps_cpus: Vec<CpuId>,
    /// Frames received, those lost before us among them.
    pub received: u64,
    /// Their bytes on the wire, without those lost before us.
    pub received_bytes: u64,
    /// What became of those delivered.
    pub verdicts: Verdicts,
    /// Frames dropped, by reason.
    pub dropped: Drops,
    /// Frames received and neither delivered nor dropped yet.
    pub in_flight: u64,
    /// Frames without a flow that we know, of IP or of the user's own; they go by their link addresses. Counted where frames are hashed: not while
    /// one CPU has all buckets.
    pub unparsed: u64,
    /// Fragments for whose datagram there was no place to note the flow; such a datagram goes by a key of its own.
    pub fragments_full: u64,
    /// Later fragments that came when their datagram's time ([`FRAGMENT_TIME`](crate::FRAGMENT_TIME)) was over.
    pub fragments_aged: u64,
    /// Frames of memory that the device lends that it copied so that it could go on: they did not come home in time.
    pub copied: u64,
    /// Frames that the device saw and left to the kernel: neither received nor dropped.
    pub passed: u64,
    /// Frames seen out of order at completion; `None` where it is not checked.
    pub reordered: Option<u64>,
    /// The page pool's counters.
    pub pool: PoolSnapshot,
    /// What ended it, if an error did.
    pub error: Option<QueueError>,
}

/// What ended a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueError {
    /// The one-line message.
    pub message: String,
    /// Where in the input, in bytes.
    pub offset: Option<u64>,
}

/// A queue's page pool, in pages; named as ENA's driver and the kernel's page_pool name them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Served from the local cache.
    pub alloc_fast: u64,
    /// Taken from the shared pool.
    pub alloc_slow: u64,
    /// Wanted when none was to be had.
    pub alloc_empty: u64,
    /// Came home to the local cache.
    pub recycle_cached: u64,
    /// Came home to a full local cache.
    pub recycle_cache_full: u64,
    /// Came home after having been kept.
    pub recycle_kept: u64,
    /// Frames that were copied out of a device's page, which stayed in its ring.
    pub rx_copybreak: u64,
    /// Of those taken from the shared pool, those by which the queue came to have more than it ever had: the cache warms up.
    pub lpc_warm_up: u64,
    /// Of those taken from the shared pool, those that were taken while the local cache was switched off: they pass it by.
    pub lpc_passed_by: u64,
    /// Came home from another NUMA node than that of the queue's CPU, and went to the shared pool: the queue takes one of its own
    /// node in their place.
    pub lpc_wrong_numa: u64,
    /// Kept by handlers now.
    pub kept: u64,
}

/// One CPU's part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CpuSnapshot {
    /// Its number.
    pub cpu: CpuId,
    /// Frames it polled off its queues.
    pub polled: u64,
    /// Frames that other CPUs handed to it, as far as it has taken them.
    pub handed_in: u64,
    /// Frames its handler was given.
    pub processed: u64,
    /// Of these, those it had polled itself.
    pub inline: u64,
    /// Frames dropped for this CPU's sake: its backlog was full, or it did not get on.
    pub dropped: Drops,
    /// Time spent in rounds that did something, each up to the start of the next.
    pub busy: Duration,
    /// Rounds that did something.
    pub rounds: u64,
    /// Rounds that ended early because their time was over.
    pub time_squeeze: u64,
    /// Frames waiting for it now.
    pub backlog: u64,
    /// The most that ever waited on one of its rings when it looked.
    pub backlog_max: u64,
    /// Sleeping CPUs it woke.
    pub wakes_sent: u64,
    /// Times it was woken.
    pub wakes_received: u64,
    /// Times its handler panicked.
    pub panics: u64,
    /// Times it was declared dead.
    pub deaths: u64,
    /// Packets of its function's own making that were sent. They are in no queue's balance: none has received them.
    pub originated: u64,
    /// Those that were not: the output had no room or cannot send such.
    pub originated_dropped: u64,
    /// Which share of its time others had lately, 0 to 1: other programs, interrupts, a hypervisor's other guests. 0 where nobody
    /// looks ([`Handle::set_others_time`](crate::Handle::set_others_time)).
    pub others: f64,
    /// How long its function has been at work without returning. `None` while the function is not called. A CPU that works
    /// is mostly in its function, for microseconds; one that stays there for seconds is stuck.
    pub in_handler: Option<Duration>,
}

/// What was sent by an output.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutputSnapshot {
    /// Its name.
    pub device: String,
    /// What it is.
    pub kind: &'static str,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were to be sent by it and were lost, by reason.
    pub dropped: Drops,
    /// Packets that it has taken and not sent yet. They are in flight.
    pub held: u64,
    /// What ended it on a CPU, if an error did.
    pub error: Option<String>,
}

/// Why a bucket changed its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MoveCause {
    /// A mask was written.
    Mask,
    /// Its CPU was declared dead.
    CpuDied,
    /// A CPU that had been declared dead or was off line is back.
    CpuBack,
    /// Its CPU was taken off line, or out of what this process may use.
    CpuOffline,
    /// A CPU joined, since those that had buckets had no time left.
    Joined,
    /// A CPU left, since the others have time enough or it was for nothing.
    Left,
    /// One CPU was busier than another.
    Balance,
}

impl MoveCause {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Mask, Self::CpuDied, Self::CpuBack, Self::CpuOffline, Self::Joined, Self::Left, Self::Balance];

    /// Its name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mask => "mask",
            Self::CpuDied => "cpu_died",
            Self::CpuBack => "cpu_back",
            Self::CpuOffline => "cpu_offline",
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Balance => "balance",
        }
    }
}

/// What moves have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveCounts {
    /// Buckets that changed their CPU.
    pub buckets: u64,
    /// Slices they went in.
    pub slices: u64,
    by_cause: [u64; MoveCause::ALL.len()],
}

impl MoveCounts {
    /// Buckets that changed their CPU for `cause`.
    pub fn of(&self, cause: MoveCause) -> u64 {
        self.by_cause[cause as usize]
    }

    pub(crate) fn count(&mut self, cause: MoveCause, buckets: u64) {
        self.buckets += buckets;
        self.by_cause[cause as usize] += buckets;
    }
}

/// The whole ledger at one time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Since the instance was built.
    pub elapsed: Duration,
    /// Queue by queue.
    pub queues: Vec<QueueSnapshot>,
    /// CPU by CPU.
    pub cpus: Vec<CpuSnapshot>,
    /// Output by output.
    pub outputs: Vec<OutputSnapshot>,
    /// What moves have come to.
    pub moves: MoveCounts,
    /// Queues with the same mask, by group: how they are steered.
    pub groups: Vec<GroupSnapshot>,
    /// What packet memory is made of.
    pub backing: Backing,
    /// A page's size, in bytes.
    pub page_bytes: u64,
    /// All pages of the pool.
    pub pages: u64,
    /// Those that no queue has: at rest, with nothing kept, all.
    pub pages_free: u64,
    /// Packet memory and rings, in bytes: never more.
    pub memory_bytes: u64,
}

impl Snapshot {
    /// Frames received.
    pub fn received(&self) -> u64 {
        self.queues.iter().map(|queue| queue.received).sum()
    }

    /// Bytes received, on the wire.
    pub fn received_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.received_bytes).sum()
    }

    /// What became of the delivered frames.
    pub fn verdicts(&self) -> Verdicts {
        let mut all = Verdicts::default();
        self.queues.iter().for_each(|queue| all.merge(&queue.verdicts));
        all
    }

    /// Frames delivered.
    pub fn delivered(&self) -> u64 {
        self.verdicts().total()
    }

    /// Frames dropped, by reason.
    pub fn dropped(&self) -> Drops {
        let mut all = Drops::default();
        self.queues.iter().for_each(|queue| all.merge(&queue.dropped));
        all
    }

    /// Frames in flight.
    pub fn in_flight(&self) -> u64 {
        self.queues.iter().map(|queue| queue.in_flight).sum()
    }

    /// Frames seen out of order; `None` where it is not checked.
    pub fn reordered(&self) -> Option<u64> {
        self.queues.iter().try_fold(0, |sum, queue| Some(sum + queue.reordered?))
    }
}
