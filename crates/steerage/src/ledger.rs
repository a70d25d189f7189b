//! The ledger: received = delivered + dropped by reason + in flight, for each queue and in all.
//!
//! Every count has one writer. The receiving CPU counts what came in and what it dropped itself; the handling CPU counts,
//! for each ring, what it delivered and what it dropped. In flight is what is left: read live, delivered and dropped are
//! read before received, so it is never negative; at rest it equals what the rings and parking lots hold.

mod snapshot;

use std::array;
use std::sync::{Mutex, PoisonError};

use steerage_mem::ring::Gauge;

use crate::counter::Counter;
use crate::flow::fragments::FragmentCounts;
use crate::limits::BUCKETS;
use crate::rx::DeviceError;
use crate::tx::Deferred;

pub use snapshot::{
    BucketSnapshot, CpuSnapshot, MoveCause, MoveCounts, OutputSnapshot, PoolSnapshot, QueueError, QueueSnapshot,
    Snapshot, Verdicts,
};

/// Why a packet was lost. Each lost packet adds one to exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Lost before it was received: by the kernel, in a device's ring that overflowed, or because the device said that the frame is
    /// where it cannot be.
    Device,
    /// The page that it lay in could not be exchanged for another: too many packets are kept, or on their way.
    NoPage,
    /// The backlog of its CPU was full: the CPU cannot keep up.
    BacklogFull,
    /// The backlog of its CPU was over half full, and its flow had more than half of what came last: the flow limit.
    FlowLimit,
    /// Its bucket was moving, and the parking lot was full or the move took too long.
    Moving,
    /// It waited for a CPU that a move took it away from because that CPU did not get on.
    Revoked,
    /// Its handler panicked before it was done with it.
    HandlerPanicked,
    /// The output that it was to be sent by had no room.
    TxFull,
    /// The output that it was to be sent by cannot send it: it is too long, of another link type, or the output failed.
    TxRefused,
    /// The output had taken it and did not send it: the output failed, or the run ended first.
    TxLost,
}

impl DropReason {
    /// All of them, in the order of a packet's way.
    pub const ALL: [Self; 10] = [
        Self::Device,
        Self::NoPage,
        Self::BacklogFull,
        Self::FlowLimit,
        Self::Moving,
        Self::Revoked,
        Self::HandlerPanicked,
        Self::TxFull,
        Self::TxRefused,
        Self::TxLost,
    ];

    /// Its name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::NoPage => "no_page",
            Self::BacklogFull => "backlog_full",
            Self::FlowLimit => "flow_limit",
            Self::Moving => "moving",
            Self::Revoked => "revoked",
            Self::HandlerPanicked => "handler_panicked",
            Self::TxFull => "tx_full",
            Self::TxRefused => "tx_refused",
            Self::TxLost => "tx_lost",
        }
    }
}

/// Lost packets by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// How many for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts `packets` more.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, packets)| *packets > 0)
    }
}

#[derive(Debug)]
pub(crate) struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

impl DropCounters {
    pub(crate) fn add(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].add(packets);
    }

    pub(crate) fn read(&self) -> Drops {
        Drops(array::from_fn(|i| self.0[i].get()))
    }
}

/// What the owner of a queue counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueLedger {
    pub(crate) received: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) unparsed: Counter,
    pub(crate) fragments_full: Counter,
    pub(crate) fragments_aged: Counter,
    pub(crate) copied: Counter,
    pub(crate) passed: Counter,
    pub(crate) dropped: DropCounters,
    /// Frames in the parking lot.
    pub(crate) parked: Counter,
    pub(crate) unparked: Counter,
    pub(crate) buckets: BucketLoads,
    /// How many frames were looked at for that.
    pub(crate) samples: Counter,
    /// Written by whichever CPU has the bucket.
    pub(crate) timed: TimedBuckets,
}

/// How many frames came for each bucket, about: of each poll one is looked at, and counts for all.
#[derive(Debug)]
pub(crate) struct BucketLoads(Box<[Counter]>);

impl Default for BucketLoads {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| Counter::default()).collect())
    }
}

impl BucketLoads {
    #[inline]
    pub(crate) fn add(&self, bucket: u16, frames: u64) {
        if let Some(counter) = self.0.get(usize::from(bucket)) {
            counter.add(frames);
        }
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(Counter::get)
    }
}

/// For each bucket, how long the function took for those packets that were timed, in nanoseconds, and how many these were.
/// A bucket is one CPU's at a time, so each count has one writer, but for CPUs that were declared dead: what these write late may
/// take a count back, which costs a sample.
#[derive(Debug)]
pub(crate) struct TimedBuckets(Box<[(Counter, Counter)]>);

impl Default for TimedBuckets {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| Default::default()).collect())
    }
}

impl TimedBuckets {
    pub(crate) fn add(&self, bucket: u16, nanos: u64) {
        if let Some((sum, count)) = self.0.get(usize::from(bucket)) {
            sum.add(nanos);
            count.add(1);
        }
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(nanos, count)| (nanos.get(), count.get()))
    }
}

impl QueueLedger {
    /// What hashing a batch came to. Mostly nothing, and then nothing is written.
    pub(crate) fn hashed(&self, unparsed: u64, fragments: FragmentCounts) {
        if unparsed > 0 {
            self.unparsed.add(unparsed);
        }
        if fragments != FragmentCounts::default() {
            self.fragments_full.add(fragments.full);
            self.fragments_aged.add(fragments.aged);
        }
    }
}

/// What is counted of one queue's ring to one CPU.
#[derive(Debug)]
pub(crate) struct RingLedger {
    pub(crate) by_producer: ProducerLedger,
    pub(crate) by_consumer: ConsumerLedger,
    pub(crate) gauge: Gauge,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ProducerLedger {
    /// Dropped because this CPU's backlog was full.
    pub(crate) backlog_full: Counter,
    /// Dropped so that this CPU's backlog has room for other flows.
    pub(crate) flow_limit: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ConsumerLedger {
    pub(crate) consumed: Counter,
    pub(crate) discarded: Counter,
    pub(crate) kept: Counter,
    pub(crate) transmitted: Counter,
    pub(crate) dropped: DropCounters,
    pub(crate) reordered: Counter,
}

/// What one CPU counts of what it sends by one output.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct TxLedger {
    pub(crate) packets: Counter,
    pub(crate) bytes: Counter,
    /// Packets refused, and packets that found no room.
    pub(crate) dropped: DropCounters,
    /// What the output takes and finishes later, if it does that.
    pub(crate) deferred: Option<Deferred>,
    error: Mutex<Option<String>>,
}

impl TxLedger {
    /// For an output that may finish packets of so many sources later.
    pub(crate) fn deferring(sources: usize) -> Self {
        Self { deferred: Some(Deferred::new(sources)), ..Self::default() }
    }

    /// Packets that the output holds.
    pub(crate) fn held(&self) -> u64 {
        self.deferred.as_ref().map_or(0, Deferred::held)
    }

    pub(crate) fn failed(&self, error: &DeviceError) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a CPU counts of itself.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CpuLedger {
    pub(crate) polled: Counter,
    pub(crate) handed_in: Counter,
    pub(crate) processed: Counter,
    pub(crate) inline: Counter,
    pub(crate) busy_nanos: Counter,
    /// Of that, receiving: estimated from some rounds.
    pub(crate) receive_nanos: Counter,
    pub(crate) rounds: Counter,
    /// Of these, those in which a poll or a batch was full: there was more than it could take at a time.
    pub(crate) full_rounds: Counter,
    pub(crate) time_squeeze: Counter,
    pub(crate) backlog_max: Counter,
    pub(crate) wakes_sent: Counter,
    pub(crate) wakes_received: Counter,
    pub(crate) panics: Counter,
    pub(crate) deaths: Counter,
    pub(crate) originated: Counter,
    pub(crate) originated_dropped: Counter,
}
