//! The counts of queues, rings, outputs and CPUs. A comment at each counter names the CPU that
//! writes it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use steerage_flow::FragmentCounts;
use steerage_mem::ring::Gauge;

use crate::counter::{Counter, SharedCounter};
use crate::deferred::Deferred;
use crate::drops::DropCounters;
use crate::limits::HANDLER_SLOW;
use crate::reasons::DropReason;

/// The counts of a receive queue that are written by the CPU which owns the queue.
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
    /// The number of frames that wait in the parking lot, because their buckets move to another
    /// CPU.
    pub parked: Counter,
    pub unparked: Counter,
    /// The number of frames in the lane, the list of frames that the receiving CPU handles itself.
    /// The CPU that owns the queue handles the frames in the lane, and has not finished them yet.
    pub in_lane: Counter,
    pub buckets: BucketLoads,
    /// The number of sampled frames, from which the counts in `buckets` are estimated.
    pub samples: Counter,
    /// The handler's times by bucket. The handler's time for each bucket is written by the CPU that
    /// has the bucket.
    pub timed: TimedBuckets,
}

/// For each bucket, the approximate number of its frames. In each poll, one frame is sampled. The
/// number of all frames of the poll is added to the count of the sampled frame's bucket.
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
/// number of these packets. A bucket belongs to one CPU at a time, so the two counts of a bucket
/// have one writer. There is one exception: a CPU that was declared dead may still write a count
/// later, and thereby overwrite a newer count. A sample is then lost.
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

    /// Counts a poll in which the device handed over `frames` frames. Counts of lost frames are
    /// usually 0. Therefore these counts are written only if a frame was lost.
    #[inline]
    pub fn polled(&self, frames: u64, counts: &PollCounts) {
        let PollCounts { wire_bytes, lost, no_page, copied, passed } = *counts;
        let received = frames + lost + no_page;
        if received > 0 {
            self.received.add(received);
            self.received_bytes.add(wire_bytes);
        }
        // One comparison shows that all four counts (lost, no page, copied, passed) are 0, as they
        // are in nearly every poll.
        if lost | no_page | copied | passed != 0 {
            self.dropped.add(DropReason::Device, lost);
            self.dropped.add(DropReason::NoPage, no_page);
            self.copied.add(copied);
            self.passed.add(passed);
        }
    }

    /// Adds the results of hashing a batch of `frames` frames to the counters. Frames without a
    /// known flow and fragments are rare, so their counts are usually not written.
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
    /// The number of frames that were dropped because this CPU's backlog was full.
    pub backlog_full: Counter,
    /// The number of frames of large flows that the flow limit dropped, so that this CPU's backlog
    /// has room for other flows.
    pub flow_limit: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct ConsumerLedger {
    /// The number of packets in all batches that the CPU has finished (handled completely). The
    /// number of finished packets includes the packets that an output accepted and finishes (sends
    /// or loses) later.
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
    /// The numbers of packets that were not sent, because the output refused them or had no room
    /// for them.
    pub dropped: DropCounters,
    /// The counts of the packets that the output accepts and finishes (sends or loses) later.
    /// `None` for an output that finishes each packet (sends or loses it) when it accepts the
    /// packet.
    pub deferred: Option<Deferred>,
    error: Mutex<Option<String>>,
}

impl TxLedger {
    /// Creates the ledger of an output that may accept packets first and finish them (send or lose
    /// them) later. The packets of an output come from `sources` different sources.
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
    /// The part of `busy_nanos` that the CPU spent on receiving, in nanoseconds. The time spent on
    /// receiving is estimated from a sample of the CPU's rounds (passes over its work).
    pub receive_nanos: Counter,
    pub rounds: Counter,
    /// The number of rounds (passes of a CPU over its work) that had a full poll or a full batch.
    /// In a round with a full poll or batch, more packets had to wait for the next round.
    pub full_rounds: Counter,
    pub time_squeeze: Counter,
    pub backlog_max: Counter,
    pub wakes_sent: Counter,
    /// How often this CPU was woken. The count of wake-ups is written by the CPUs that wake this
    /// CPU.
    pub wakes_received: SharedCounter,
    pub wakes_for_control: SharedCounter,
    /// In nanoseconds.
    pub longest_batch: Counter,
    pub panics: Counter,
    pub deaths: Counter,
    pub originated: Counter,
    pub originated_dropped: Counter,
}

impl CpuLedger {
    /// Records the time that the handler took for a batch, in nanoseconds. Returns true for the
    /// first batch that took [`HANDLER_SLOW`] or longer.
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

/// The counts of one poll. The number of frames that the poll handed over is not included.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PollCounts {
    /// The total length of the frames on the wire, in bytes.
    pub wire_bytes: u64,
    /// The number of frames that were lost before steerage received them.
    pub lost: u64,
    /// The number of frames that were lost because there was no free page for the device in
    /// exchange for the frame's page.
    pub no_page: u64,
    /// The number of frames in the device's own memory that were copied, so that the device could
    /// use this memory again.
    pub copied: u64,
    /// The number of frames that the device did not take, but left to the kernel.
    pub passed: u64,
}

/// The counters of a queue's page pool, in pages. The ENA driver (counters `lpc_*`) and the
/// kernel's page_pool (counters `alloc_*`, `recycle_*`) use the same names for these counters. The
/// counters of the page pool have separate cache lines, because the CPU that owns the queue writes
/// the counters once per poll.
#[derive(Debug, Default)]
#[repr(align(128))]
#[non_exhaustive]
pub struct PoolCounters {
    /// The number of pages that came from the local page cache (the queue's own stock of free
    /// pages).
    pub alloc_fast: Counter,
    /// The number of pages that were taken from the shared pool, in bulk.
    pub alloc_slow: Counter,
    /// How often a page was needed but no page was free.
    pub alloc_empty: Counter,
    /// The number of free pages that returned to the local page cache (the queue's own stock of
    /// free pages).
    pub recycle_cached: Counter,
    /// The number of pages that returned while the local page cache was full. These pages went to
    /// the shared pool.
    pub recycle_cache_full: Counter,
    /// The number of pages that returned to their pool after a handler had kept them.
    pub recycle_kept: Counter,
    /// The number of frames that were copied out of a device's page, so that the page stayed in the
    /// device's ring.
    pub rx_copybreak: Counter,
    /// The number of pages that were taken from the shared pool for one of two reasons. Either the
    /// queue needed more pages than ever before, or a page of another NUMA node was replaced.
    pub lpc_warm_up: Counter,
    /// The number of pages that were taken from the shared pool in place of earlier pages, which
    /// had returned to the pool while the local page cache was full.
    pub lpc_full: Counter,
    /// The number of pages that were taken from the shared pool while the local page cache was
    /// switched off.
    pub lpc_passed_by: Counter,
    /// The number of returned pages that belong to another NUMA node. These pages went to the
    /// shared pool.
    pub lpc_wrong_numa: Counter,
}
