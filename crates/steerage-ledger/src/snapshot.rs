//! A snapshot: the values of the ledger's counters at one point in time.

use std::borrow::Cow;
use std::time::Duration;

use steerage_mem::Backing;
use steerage_moves::MoveCounts;
use steerage_topology::CpuId;

use crate::counts::QueueError;
use crate::drops::Drops;
use crate::findings::GroupSnapshot;
use crate::memory::MemoryUse;
use crate::named::CounterSnapshot;
#[cfg(feature = "serde")]
use crate::serial;

/// The state of one bucket of a queue.
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
    /// The bucket's CPU. While the bucket moves, this is the old CPU until the new CPU gets
    /// packets.
    pub cpu: CpuId,
    /// The approximate number of packets in this bucket: each poll samples one packet, and adds the
    /// number of all its packets to the sampled packet's bucket. The count does not grow while one
    /// CPU has all buckets.
    pub packets: u64,
    /// The number of times that the bucket has moved to another CPU.
    pub moves: u64,
}

impl BucketSnapshot {
    /// Creates the state of a bucket that is on `cpu`.
    pub fn new(cpu: CpuId, packets: u64, moves: u64) -> Self {
        Self { cpu, packets, moves }
    }
}

/// The number of delivered packets for each verdict (outcome).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Verdicts {
    /// The number of packets that the handler consumed.
    pub consumed: u64,
    /// The number of packets that the handler discarded.
    pub discarded: u64,
    /// The number of packets that the handler kept after their batch.
    pub kept: u64,
    /// The number of packets that an output sent.
    pub transmitted: u64,
}

impl Verdicts {
    /// Returns the number of all delivered packets.
    pub fn total(&self) -> u64 {
        self.consumed + self.discarded + self.kept + self.transmitted
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.consumed += other.consumed;
        self.discarded += other.discarded;
        self.kept += other.kept;
        self.transmitted += other.transmitted;
    }
}

/// The ledger's counters for one receive queue.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// The name of the input.
    pub device: String,
    /// The kind of device.
    pub kind: Cow<'static, str>,
    /// The mode in which the device runs, such as zero-copy.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub mode: Cow<'static, str>,
    /// The number of the queue among the queues of its input.
    pub queue: usize,
    /// The CPU that polls the queue.
    #[cfg_attr(feature = "serde", serde(with = "serial::cpu"))]
    pub cpu: CpuId,
    /// The source of the flow hashes, which is `device` or the name of steerage's own hash.
    pub hash: Cow<'static, str>,
    /// Those CPUs of the queue's mask that have buckets of the queue.
    #[cfg_attr(feature = "serde", serde(rename = "rps_cpus_list", with = "serial::cpu_list"))]
    pub rps_cpus: Vec<CpuId>,
    /// The number of received frames, including those that were lost before steerage received them.
    pub received: u64,
    /// The length on the wire, in bytes, of the frames that steerage itself received.
    pub received_bytes: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// The number of delivered frames for each verdict (outcome).
    pub verdicts: Verdicts,
    /// The number of frames that were dropped, by reason.
    pub dropped: Drops,
    /// The number of frames that were received but are neither delivered nor dropped yet.
    pub in_flight: u64,
    /// The number of frames that steerage hashed. Frames with a usable hash of the device, and all
    /// frames while one CPU has all buckets, are not hashed.
    pub hashed: u64,
    /// The number of hashed frames that belong to no IP flow and for which the user's program
    /// returned no flow key. Frames without a flow key are steered by their link-layer addresses.
    pub unparsed: u64,
    /// The number of fragments that were steered by a key of their datagram instead of their flow,
    /// because the fragment table was full.
    pub fragments_full: u64,
    /// The number of non-first fragments that arrived after the time limit of their datagram
    /// ([`FRAGMENT_TIME`](steerage_flow::limits::FRAGMENT_TIME)).
    pub fragments_aged: u64,
    /// The number of frames that a device copied, because handlers held its memory too long.
    pub copied: u64,
    /// The number of frames left to the kernel, neither received nor dropped.
    pub passed: u64,
    /// The counts that only this kind of device has, with the names that the kernel uses.
    #[cfg_attr(feature = "serde", serde(with = "serial::by_name"))]
    pub device_counts: Vec<(Cow<'static, str>, u64)>,
    /// The number of frames finished out of order. `None` if steerage does not check the order.
    pub reordered: Option<u64>,
    /// The counters of the queue's page pool.
    pub pool: PoolSnapshot,
    /// The error that ended the queue, if any.
    pub error: Option<QueueError>,
}

/// The counters of a queue's page pool, in pages, named as in the ENA driver and page_pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// The number of pages that the local page cache supplied.
    pub alloc_fast: u64,
    /// The number of pages that were taken from the shared pool.
    pub alloc_slow: u64,
    /// How often the queue needed a page and no page was free.
    pub alloc_empty: u64,
    /// The number of pages that returned to the local page cache.
    pub recycle_cached: u64,
    /// The number of pages that returned while the local page cache was full.
    pub recycle_cache_full: u64,
    /// The number of pages that returned after a handler had kept them.
    pub recycle_kept: u64,
    /// The number of frames that were copied so that the page stayed in the device's ring.
    pub rx_copybreak: u64,
    /// The number of pages that were taken from the shared pool because the queue needed more pages
    /// than ever before, or to replace a page of another NUMA node.
    pub lpc_warm_up: u64,
    /// The number of pages that were taken from the shared pool to replace pages that returned
    /// while the local page cache was full. The counter `alloc_slow` is the sum of `lpc_warm_up`,
    /// `lpc_full` and `lpc_passed_by`.
    pub lpc_full: u64,
    /// The number of pages that were taken from the shared pool while the local page cache was
    /// switched off.
    pub lpc_passed_by: u64,
    /// The number of returned pages of another NUMA node, each of which is replaced by a page of
    /// the queue's own node.
    pub lpc_wrong_numa: u64,
    /// The number of packets that handlers currently keep.
    pub kept: u64,
}

/// The ledger's counters for one CPU.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct CpuSnapshot {
    /// The number of the CPU.
    #[cfg_attr(feature = "serde", serde(with = "serial::cpu"))]
    pub cpu: CpuId,
    /// The number of frames that the CPU polled from its queues.
    pub polled: u64,
    /// The number of frames that other CPUs polled and this CPU took from its rings.
    pub handed_in: u64,
    /// The number of frames that this CPU passed to its handler.
    pub processed: u64,
    /// The number of frames that the CPU polled itself and passed to its own handler.
    pub inline: u64,
    /// The number of frames that were dropped because the CPU's backlog was full or the CPU made no
    /// progress.
    pub dropped: Drops,
    /// The total duration of the rounds that found work. A round lasts until the next round starts.
    #[cfg_attr(feature = "serde", serde(rename = "busy_seconds", with = "serial::seconds"))]
    pub busy: Duration,
    /// How many rounds found work.
    pub rounds: u64,
    /// The number of rounds that ended early because they had reached their time limit.
    pub time_squeeze: u64,
    /// The number of frames that currently wait for the CPU.
    pub backlog: u64,
    /// The largest number of frames that the CPU has found waiting in one of its rings.
    pub backlog_max: u64,
    /// The number of times that this CPU woke a sleeping CPU after it had handed over packets.
    pub wakes_sent: u64,
    /// The number of times that another CPU woke this CPU after handing packets over.
    pub wakes_received: u64,
    /// The number of times that this CPU was woken for another reason, such as a move.
    pub wakes_for_control: u64,
    /// The longest time for one batch, including the poll before the batch and the time that other
    /// threads took.
    #[cfg_attr(feature = "serde", serde(rename = "longest_batch_seconds", with = "serial::seconds"))]
    pub longest_batch: Duration,
    /// The number of times that the CPU's handler panicked.
    pub panics: u64,
    /// The number of times that the CPU was declared dead, for lack of progress in a move.
    pub deaths: u64,
    /// The number of sent packets that the CPU's handler created. The counters of queues do not
    /// contain packets that handlers created.
    pub originated: u64,
    /// The number of created packets that the output could not send or had no room for.
    pub originated_dropped: u64,
    /// The share of the CPU's time that other programs, interrupts or other guests of the
    /// hypervisor took recently, from 0 to 1. The share is 0 if it is not measured
    /// (`Handle::set_others_time`).
    pub others: f64,
    /// The time since the handler was called, or `None` while no handler runs. A call usually takes
    /// microseconds; a handler that does not return for seconds is stuck.
    #[cfg_attr(feature = "serde", serde(rename = "handler_seconds", with = "serial::seconds_or_zero"))]
    pub in_handler: Option<Duration>,
}

/// The ledger's counters for one output.
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
    /// The number of bytes in the packets that were sent.
    pub bytes: u64,
    /// The number of packets that the output accepted but lost or refused, by reason.
    pub dropped: Drops,
    /// The number of packets in flight: accepted by the output and not sent yet.
    pub held: u64,
    /// The error that ended the output on a CPU, if there was one.
    pub error: Option<String>,
}

/// The whole ledger at one point in time.
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
///     for counter in &snapshot.counters {
///         println!("{}: {} {}", counter.name, counter.total, counter.unit);
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
    /// The sums over all queues when the snapshot was taken.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub totals: Totals,
    /// The receive queues.
    pub queues: Vec<QueueSnapshot>,
    /// The CPUs.
    pub cpus: Vec<CpuSnapshot>,
    /// The outputs.
    pub outputs: Vec<OutputSnapshot>,
    /// The counters of the packet function, in the order in which they were declared.
    pub counters: Vec<CounterSnapshot>,
    /// The counts of moves.
    #[cfg_attr(feature = "serde", serde(with = "serial::moves"))]
    pub moves: MoveCounts,
    /// The steering groups. All queues of a group have the same mask.
    pub groups: Vec<GroupSnapshot>,
    /// The kind of memory pages that hold the packets.
    #[cfg_attr(feature = "serde", serde(with = "serial::backing"))]
    pub backing: Backing,
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// The number of pages in the pool.
    pub pages: u64,
    /// The number of pages that no queue holds. If no CPU runs and no packet is kept, `pages_free`
    /// equals `pages`.
    pub pages_free: u64,
    /// The upper limit of packet memory and rings, in bytes.
    pub memory_bytes: u64,
    /// The size of the packet memory for each of its uses.
    pub memory: MemoryUse,
    /// Facts that the counters alone do not show, each in one sentence.
    pub notes: Vec<String>,
}

/// The sums over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Totals {
    /// Frames received.
    pub received: u64,
    /// The length of the received frames on the wire, in bytes.
    pub received_bytes: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// The number of delivered frames for each verdict (outcome).
    pub verdicts: Verdicts,
    /// The number of frames that were dropped, by reason.
    pub dropped: Drops,
    /// The number of frames that are in flight.
    pub in_flight: u64,
    /// The number of frames finished out of order. `None` if steerage does not check the order.
    pub reordered: Option<u64>,
}

impl Totals {
    /// Returns the sums of the counters of all `queues`.
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
    /// Returns how many frames were received.
    pub fn received(&self) -> u64 {
        self.totals.received
    }

    /// Returns the length of the received frames on the wire, in bytes.
    pub fn received_bytes(&self) -> u64 {
        self.totals.received_bytes
    }

    /// Returns the number of delivered frames for each verdict (outcome).
    pub fn verdicts(&self) -> Verdicts {
        self.totals.verdicts
    }

    /// Returns how many frames were delivered.
    pub fn delivered(&self) -> u64 {
        self.totals.delivered
    }

    /// Returns how many frames were dropped, by reason.
    pub fn dropped(&self) -> Drops {
        self.totals.dropped
    }

    /// Returns how many frames are in flight.
    pub fn in_flight(&self) -> u64 {
        self.totals.in_flight
    }

    /// Returns how many frames were finished out of order, or `None` if the order is not checked.
    pub fn reordered(&self) -> Option<u64> {
        self.totals.reordered
    }
}
