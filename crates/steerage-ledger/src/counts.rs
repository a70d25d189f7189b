//! The counts of queues, rings, outputs and CPUs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use steerage_flow::FragmentCounts;
use steerage_mem::ring::Gauge;

use crate::counter::{Counter, SharedCounter};
use crate::deferred::Deferred;
use crate::drops::DropCounters;
use crate::limits::HANDLER_SLOW;
use crate::reasons::DropReason;

/// The counts of one queue. The CPU that polls the queue writes all of them except `timed`.
#[derive(Debug)]
#[repr(align(128))]
#[non_exhaustive]
pub struct QueueLedger {
    pub received: Counter,
    pub received_bytes: Counter,
    pub unparsed: Counter,
    pub hashed: Counter,
    pub fragments_full: Counter,
    pub fragments_aged: Counter,
    pub copied: Counter,
    pub passed: Counter,
    pub dropped: DropCounters,
    /// The number of frames that were stored in the parking lot so far, because their buckets move.
    pub parked: Counter,
    pub unparked: Counter,
    /// Frames in the lane (for the receiving CPU itself) that are not finished yet.
    pub in_lane: Counter,
    pub buckets: BucketLoads,
    /// The number of sampled frames, from which `buckets` is estimated.
    pub samples: Counter,
    /// The handler times of each bucket, written by the CPU that has the bucket.
    pub timed: TimedBuckets,
}

/// The approximate number of frames of each bucket. In each poll, one frame is sampled, and all
/// frames of the poll are added to the count of the sampled frame's bucket.
#[derive(Debug)]
pub struct BucketLoads(Box<[Counter]>);

impl BucketLoads {
    fn new(buckets: usize) -> Self {
        Self((0..buckets).map(|_| Counter::default()).collect())
    }
}

impl BucketLoads {
    #[inline]
    pub fn add(&self, bucket: u16, frames: u64) {
        if let Some(counter) = self.0.get(usize::from(bucket)) {
            counter.add(frames);
        }
    }

    pub fn read(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(Counter::get)
    }
}

/// For each bucket, the time in nanoseconds that the handler needed for sampled packets, and the
/// number of these packets. A bucket belongs to one CPU at a time, so its counts have one writer.
/// Only a CPU that was declared dead may also write, and overwrite a newer count, so that a sample
/// is lost.
#[derive(Debug)]
pub struct TimedBuckets(Box<[(Counter, Counter)]>);

impl TimedBuckets {
    fn new(buckets: usize) -> Self {
        Self((0..buckets).map(|_| Default::default()).collect())
    }
}

impl TimedBuckets {
    pub fn add(&self, bucket: u16, nanos: u64) {
        if let Some((sum, count)) = self.0.get(usize::from(bucket)) {
            sum.add(nanos);
            count.add(1);
        }
    }

    pub fn read(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(nanos, count)| (nanos.get(), count.get()))
    }
}

impl QueueLedger {
    /// Creates the ledger of a queue whose flows are divided into `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self {
            buckets: BucketLoads::new(buckets),
            timed: TimedBuckets::new(buckets),
            received: Counter::default(),
            received_bytes: Counter::default(),
            hashed: Counter::default(),
            unparsed: Counter::default(),
            fragments_full: Counter::default(),
            fragments_aged: Counter::default(),
            copied: Counter::default(),
            passed: Counter::default(),
            dropped: DropCounters::default(),
            parked: Counter::default(),
            unparked: Counter::default(),
            in_lane: Counter::default(),
            samples: Counter::default(),
        }
    }

    /// Counts a poll in which the device handed over `frames` frames.
    #[inline]
    pub fn polled(&self, frames: u64, counts: &PollCounts) {
        let PollCounts { wire_bytes, lost, no_page, copied, passed } = *counts;
        let received = frames + lost + no_page;
        if received > 0 {
            self.received.add(received);
            self.received_bytes.add(wire_bytes);
        }
        // In nearly every poll, these four counts are 0, which one comparison shows.
        if lost | no_page | copied | passed != 0 {
            self.dropped.add(DropReason::Device, lost);
            self.dropped.add(DropReason::NoPage, no_page);
            self.copied.add(copied);
            self.passed.add(passed);
        }
    }

    /// Counts the results of hashing `frames` frames.
    pub fn hashed(&self, frames: u64, unparsed: u64, fragments: FragmentCounts) {
        self.hashed.add(frames);
        if unparsed > 0 {
            self.unparsed.add(unparsed);
        }
        if fragments != FragmentCounts::default() {
            self.fragments_full.add(fragments.full);
            self.fragments_aged.add(fragments.aged);
        }
    }
}

/// The counts of the ring that leads from one queue to one CPU.
#[derive(Debug)]
#[non_exhaustive]
pub struct RingLedger {
    pub by_producer: ProducerLedger,
    pub by_consumer: ConsumerLedger,
    pub gauge: Gauge,
}

impl RingLedger {
    pub fn of(gauge: Gauge) -> Self {
        Self { by_producer: ProducerLedger::default(), by_consumer: ConsumerLedger::default(), gauge }
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct ProducerLedger {
    pub backlog_full: Counter,
    /// Frames of large flows that the flow limit dropped, to make room for other flows.
    pub flow_limit: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct ConsumerLedger {
    /// The number of finished packets, including packets that an output accepted and will send or
    /// lose later.
    pub finished: Counter,
    pub consumed: Counter,
    pub discarded: Counter,
    pub kept: Counter,
    pub transmitted: Counter,
    pub dropped: DropCounters,
    pub reordered: Counter,
}

/// The counts of the packets that one CPU sends to one output.
#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct TxLedger {
    pub packets: Counter,
    pub bytes: Counter,
    pub dropped: DropCounters,
    /// Counts the packets that the output first accepts, and later sends or loses. `None` for an
    /// output that finishes each packet when it accepts the packet.
    pub deferred: Option<Deferred>,
    error: Mutex<Option<String>>,
}

impl TxLedger {
    /// Creates the ledger of an output that may send or lose packets after it has accepted them.
    /// `sources` is the number of sources of the packets.
    pub fn deferring(sources: usize) -> Self {
        Self { deferred: Some(Deferred::new(sources)), ..Self::default() }
    }

    /// Returns how many accepted packets the output has not finished yet.
    pub fn held(&self) -> u64 {
        self.deferred.as_ref().map_or(0, Deferred::held)
    }

    pub fn failed(&self, error: &impl fmt::Display) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counts of one CPU.
#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct CpuLedger {
    pub polled: Counter,
    pub handed_in: Counter,
    pub processed: Counter,
    pub inline: Counter,
    pub busy_nanos: Counter,
    /// The part of `busy_nanos` for receiving, estimated from a sample of the CPU's rounds.
    pub receive_nanos: Counter,
    pub rounds: Counter,
    /// The number of rounds with a full poll or a full batch, in which further packets had to wait.
    pub full_rounds: Counter,
    pub time_squeeze: Counter,
    pub backlog_max: Counter,
    pub wakes_sent: Counter,
    /// The wake-ups for packets, counted by the CPUs that wake this CPU.
    pub wakes_received: SharedCounter,
    pub wakes_for_control: SharedCounter,
    /// The longest time for one batch, in nanoseconds.
    pub longest_batch: Counter,
    pub panics: Counter,
    pub deaths: Counter,
    pub originated: Counter,
    pub originated_dropped: Counter,
}

impl CpuLedger {
    /// Returns true for the first batch that took [`HANDLER_SLOW`] or longer.
    #[inline(always)]
    pub fn note_batch(&self, nanos: u64) -> bool {
        let longest = self.longest_batch.get();
        if nanos > longest {
            self.longest_batch.set(nanos);
        }
        let slow = HANDLER_SLOW.as_nanos() as u64;
        nanos >= slow && longest < slow
    }
}

/// The error that ended a queue of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct QueueError {
    /// The error message in one line.
    pub message: String,
    /// The byte offset in the input at which the error occurred.
    pub offset: Option<u64>,
}

/// The counts of one poll, except for the number of frames that it handed over.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PollCounts {
    /// The total length of the frames on the wire, in bytes.
    pub wire_bytes: u64,
    /// The number of frames that were lost before steerage received them.
    pub lost: u64,
    /// Frames that were lost because there was no free page in exchange for the frame's page.
    pub no_page: u64,
    /// Frames in the device's own memory that were copied to free this memory.
    pub copied: u64,
    /// Frames that the device left to the kernel.
    pub passed: u64,
}

/// The counters of a queue's page pool, in pages: see [`PoolSnapshot`](crate::PoolSnapshot). These
/// counters have cache lines of their own, because the queue's owner writes them once per poll.
#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct PoolCounters {
    pub alloc_fast: Counter,
    pub alloc_slow: Counter,
    pub alloc_empty: Counter,
    pub recycle_cached: Counter,
    pub recycle_cache_full: Counter,
    pub recycle_kept: Counter,
    pub rx_copybreak: Counter,
    pub lpc_warm_up: Counter,
    pub lpc_full: Counter,
    pub lpc_passed_by: Counter,
    pub lpc_wrong_numa: Counter,
}
