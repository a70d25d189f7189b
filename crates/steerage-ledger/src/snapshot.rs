//! The ledger in plain numbers, read at one time.

use std::borrow::Cow;
use std::time::Duration;

use steerage_moves::MoveCounts;
use steerage_topology::CpuId;

use crate::backing::Backing;
use crate::counts::QueueError;
use crate::drops::Drops;
use crate::findings::GroupSnapshot;
use crate::memory::MemoryUse;
#[cfg(feature = "serde")]
use crate::serial;

/// One of a queue's buckets.
///
/// ```
/// use steerage_ledger::BucketSnapshot;
///
/// /// The number of the bucket with the most packets. `Handle::buckets` of the crate `steerage` lists the buckets of a queue.
/// fn busiest(buckets: &[BucketSnapshot]) -> Option<usize> {
///     (0..buckets.len()).max_by_key(|bucket| buckets[*bucket].packets)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketSnapshot {
    /// The CPU that has the bucket. During a move this is the old CPU until the new one gets new packets.
    pub cpu: CpuId,
    /// The approximate number of the queue's packets for this bucket. One packet of each poll is sampled, and counts for all packets of
    /// the poll. No packets are counted while one CPU has all buckets, since nothing is hashed then.
    pub packets: u64,
    /// How many times the bucket changed CPU.
    pub moves: u64,
}

impl BucketSnapshot {
    /// A bucket on `cpu`.
    pub fn new(cpu: CpuId, packets: u64, moves: u64) -> Self {
        Self { cpu, packets, moves }
    }
}

/// The outcomes of delivered packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Verdicts {
    /// Consumed by the packet function.
    pub consumed: u64,
    /// Discarded by the packet function.
    pub discarded: u64,
    /// Kept beyond their batch.
    pub kept: u64,
    /// Sent by an output.
    pub transmitted: u64,
}

impl Verdicts {
    /// All delivered packets.
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
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// The input's name.
    pub device: String,
    /// The kind of device.
    pub kind: Cow<'static, str>,
    /// The mode in which the device runs.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub mode: Cow<'static, str>,
    /// The number of the queue within the input.
    pub queue: usize,
    /// The CPU that polls the queue.
    #[cfg_attr(feature = "serde", serde(with = "serial::cpu"))]
    pub cpu: CpuId,
    /// The source of the flow hash: `device`, or the name of our own hash.
    pub hash: Cow<'static, str>,
    /// The CPUs of its mask that have buckets of the queue.
    #[cfg_attr(feature = "serde", serde(rename = "rps_cpus_list", with = "serial::cpu_list"))]
    pub rps_cpus: Vec<CpuId>,
    /// Frames received, including those that were lost before they reached us.
    pub received: u64,
    /// Bytes received, as on the wire, without the frames that were lost before they reached us.
    pub received_bytes: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Their outcomes.
    pub verdicts: Verdicts,
    /// Frames dropped, by reason.
    pub dropped: Drops,
    /// Frames received and neither delivered nor dropped yet.
    pub in_flight: u64,
    /// Frames whose flow hash was computed when they arrived. Those to which the device set a hash that is used are not among
    /// them, nor is any frame while one CPU has all buckets.
    pub hashed: u64,
    /// Frames without a known flow, either of IP or by the user's own flow key. They are steered by their link addresses. They are
    /// counted only if frames are hashed, that is, not while one CPU has all buckets.
    pub unparsed: u64,
    /// Fragments of datagrams whose flow could not be recorded because the table was full. Such a datagram is steered by a key of its own.
    pub fragments_full: u64,
    /// Later fragments that arrived after the time limit of their datagram ([`FRAGMENT_TIME`](steerage_flow::limits::FRAGMENT_TIME)).
    pub fragments_aged: u64,
    /// Frames in lent memory that the device copied so that it could continue, since they were not released in time.
    pub copied: u64,
    /// Frames that the device left to the kernel. They are neither received nor dropped.
    pub passed: u64,
    /// The counts that only this kind of device has, by the kernel's names.
    #[cfg_attr(feature = "serde", serde(with = "serial::by_name"))]
    pub device_counts: Vec<(Cow<'static, str>, u64)>,
    /// Frames that completed out of order. `None` if the order is not checked.
    pub reordered: Option<u64>,
    /// The page pool's counters.
    pub pool: PoolSnapshot,
    /// The error that ended the queue, if one did.
    pub error: Option<QueueError>,
}

/// The counters of a queue's page pool, in pages. They have the names of ENA's driver and of the kernel's page_pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Pages served from the local cache.
    pub alloc_fast: u64,
    /// Pages taken from the shared pool.
    pub alloc_slow: u64,
    /// The number of times that a page was needed and none was free.
    pub alloc_empty: u64,
    /// Pages that came back to the local cache.
    pub recycle_cached: u64,
    /// Pages that came back while the local cache was full.
    pub recycle_cache_full: u64,
    /// Pages that came back after a handler had kept them.
    pub recycle_kept: u64,
    /// Frames that were copied out of a device's page, so that the page stayed in the device's ring.
    pub rx_copybreak: u64,
    /// The pages from the shared pool that made the queue have more pages than ever before: the cache warms up.
    pub lpc_warm_up: u64,
    /// The pages from the shared pool that were taken while the local cache was switched off.
    pub lpc_passed_by: u64,
    /// Pages of another NUMA node than that of the queue's CPU that came back, and went to the shared pool. The queue replaces each by
    /// a page of its own node.
    pub lpc_wrong_numa: u64,
    /// Packets that handlers currently keep.
    pub kept: u64,
}

/// One CPU's part of the ledger.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct CpuSnapshot {
    /// The number of the CPU.
    #[cfg_attr(feature = "serde", serde(with = "serial::cpu"))]
    pub cpu: CpuId,
    /// Frames that the CPU polled from its queues.
    pub polled: u64,
    /// Frames that the CPU has taken from other CPUs.
    pub handed_in: u64,
    /// Frames that the CPU's handler got.
    pub processed: u64,
    /// The frames given to its handler that it had polled itself.
    pub inline: u64,
    /// Frames that were dropped because of this CPU: its backlog was full, or it made no progress.
    pub dropped: Drops,
    /// The time of rounds that did some work. The time of a round lasts until the next one starts.
    #[cfg_attr(feature = "serde", serde(rename = "busy_seconds", with = "serial::seconds"))]
    pub busy: Duration,
    /// Rounds that did some work.
    pub rounds: u64,
    /// Rounds that ended early because their time was over.
    pub time_squeeze: u64,
    /// Frames that currently wait for the CPU.
    pub backlog: u64,
    /// The most frames that it has ever found waiting on one of its rings.
    pub backlog_max: u64,
    /// How many times it woke a sleeping CPU that it had given packets.
    pub wakes_sent: u64,
    /// How many times another CPU woke this CPU because of packets.
    pub wakes_received: u64,
    /// How many times it was woken for something else: a change, a move, a stop, or room for packets.
    pub wakes_for_control: u64,
    /// How many times the CPU's handler panicked.
    pub panics: u64,
    /// How many times the CPU was declared dead.
    pub deaths: u64,
    /// Packets that its packet function made itself and that were sent. They are in no queue's balance, since no queue received them.
    pub originated: u64,
    /// Packets that its packet function made and that were not sent: the output had no room, or cannot send such packets.
    pub originated_dropped: u64,
    /// The share of the CPU's time that others took recently, from 0 to 1: other programs, interrupts, other guests of the hypervisor.
    /// 0 if nobody measures it (`Handle::set_others_time`).
    pub others: f64,
    /// How long the packet function has been running without returning. `None` while it is not running. A working CPU spends most of
    /// its time in the packet function, for microseconds each time. A CPU that stays there for seconds is stuck.
    #[cfg_attr(feature = "serde", serde(rename = "handler_seconds", with = "serial::seconds_or_zero"))]
    pub in_handler: Option<Duration>,
}

/// One output's part of the ledger.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct OutputSnapshot {
    /// The output's name.
    pub device: String,
    /// The kind of device.
    pub kind: Cow<'static, str>,
    /// Packets sent.
    pub packets: u64,
    /// The bytes of the sent packets.
    pub bytes: u64,
    /// Packets that should have been sent and were lost, by reason.
    pub dropped: Drops,
    /// Packets that the output has taken and not sent yet. They are in flight.
    pub held: u64,
    /// The error that ended the output on a CPU, if one did.
    pub error: Option<String>,
}

/// The whole ledger at one time.
///
/// ```
/// use steerage_ledger::Snapshot;
///
/// fn print(snapshot: &Snapshot) {
///     println!("{} of {} packets delivered, dropped: {}", snapshot.delivered(), snapshot.received(), snapshot.dropped());
///     println!("{} packets were sent", snapshot.verdicts().transmitted);
///     for queue in &snapshot.queues {
///         println!("{} queue {}: {} frames, {} kept", queue.device, queue.queue, queue.received, queue.pool.kept);
///         if let Some(error) = &queue.error {
///             println!("it ended: {}", error.message);
///         }
///     }
///     for cpu in &snapshot.cpus {
///         println!("CPU {}: {} packets in {:?}, {} wait", cpu.cpu, cpu.processed, cpu.busy, cpu.backlog);
///     }
///     for output in &snapshot.outputs {
///         println!("{}: {} packets, dropped: {}", output.device, output.packets, output.dropped);
///     }
///     for group in &snapshot.groups {
///         println!("{}: {} CPUs joined, {} left", group.policy, group.findings.joined, group.findings.left);
///         for elephant in &group.elephants {
///             println!("bucket {} takes {:.0} % of a CPU", elephant.bucket, 100.0 * elephant.load);
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Snapshot {
    /// The time since the instance was built.
    #[cfg_attr(feature = "serde", serde(rename = "seconds", with = "serial::seconds"))]
    pub elapsed: Duration,
    /// The sums over all queues. The methods return them too.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub totals: Totals,
    /// The receive queues.
    pub queues: Vec<QueueSnapshot>,
    /// The CPUs.
    pub cpus: Vec<CpuSnapshot>,
    /// The outputs.
    pub outputs: Vec<OutputSnapshot>,
    /// The counts of moves.
    #[cfg_attr(feature = "serde", serde(with = "serial::moves"))]
    pub moves: MoveCounts,
    /// The steering groups. The queues of a group have the same mask.
    pub groups: Vec<GroupSnapshot>,
    /// The kind of pages that back the packet memory.
    #[cfg_attr(feature = "serde", serde(with = "serial::backing"))]
    pub backing: Backing,
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// All pages of the pool.
    pub pages: u64,
    /// The pages that no queue has. At rest, if no packets are kept, these are all pages.
    pub pages_free: u64,
    /// The upper limit of packet memory and rings, in bytes.
    pub memory_bytes: u64,
    /// The purposes of this memory.
    pub memory: MemoryUse,
}

/// The sums over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// Frames received.
    pub received: u64,
    /// Bytes received, on the wire.
    pub received_bytes: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Their outcomes.
    pub verdicts: Verdicts,
    /// Frames dropped, by reason.
    pub dropped: Drops,
    /// Frames in flight.
    pub in_flight: u64,
    /// Frames that completed out of order. `None` if the order is not checked.
    pub reordered: Option<u64>,
}

impl Totals {
    /// The sums over these queues.
    pub fn of(queues: &[QueueSnapshot]) -> Self {
        let mut sums = Self { reordered: Some(0), ..Self::default() };
        for queue in queues {
            sums.received += queue.received;
            sums.received_bytes += queue.received_bytes;
            sums.delivered += queue.delivered;
            sums.verdicts.merge(&queue.verdicts);
            sums.dropped.merge(&queue.dropped);
            sums.in_flight += queue.in_flight;
            sums.reordered = sums.reordered.zip(queue.reordered).map(|(sum, more)| sum + more);
        }
        sums
    }
}

impl Snapshot {
    /// Frames received.
    pub fn received(&self) -> u64 {
        self.totals.received
    }

    /// Bytes received, on the wire.
    pub fn received_bytes(&self) -> u64 {
        self.totals.received_bytes
    }

    /// The outcomes of the delivered frames.
    pub fn verdicts(&self) -> Verdicts {
        self.totals.verdicts
    }

    /// Frames delivered.
    pub fn delivered(&self) -> u64 {
        self.totals.delivered
    }

    /// Frames dropped, by reason.
    pub fn dropped(&self) -> Drops {
        self.totals.dropped
    }

    /// Frames in flight.
    pub fn in_flight(&self) -> u64 {
        self.totals.in_flight
    }

    /// Frames that completed out of order. `None` if the order is not checked.
    pub fn reordered(&self) -> Option<u64> {
        self.totals.reordered
    }
}
