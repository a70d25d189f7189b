//! Limits of the ledger: the times at the end of a run, the conditions for notes in a snapshot, and
//! the number of counters.

use std::time::Duration;

/// The interval at which a CPU checks whether the last frames are finished, after all of its queues
/// have ended.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The maximum time for which a stop waits for the packets in flight.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// When the drain time is over, the instance waits this additional time for CPUs that have not
/// returned. After this additional time, the instance ends without the CPUs that have not returned.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output that accepts no packet for this long counts as stuck. Queues that wait for a stuck
/// output stop waiting, and the end of a run does not wait for it either. An output gets this much
/// time, because a program that reads a pipe may need a second or two to process what it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// If a batch takes longer than this limit, the ledger has a note and the log has a warning.
/// Batches usually take microseconds. A thread that loses its CPU to other programs rarely waits as
/// long as this limit.
pub const HANDLER_SLOW: Duration = Duration::from_millis(20);

/// For a queue with fewer packets, there is no note about the hashes of its device. The note would
/// be unreliable, because buckets are sampled by only one packet in 64.
pub(crate) const HASHES_SAMPLE: u64 = 10_000;

/// The hashes of a device fill few buckets if they fill fewer than one bucket in this many.
pub(crate) const HASHES_FEW: usize = 100;

/// The maximum number of counters of a packet function. Each counter takes 8 bytes and a line of
/// metrics for each CPU.
pub const COUNTERS_MAX: usize = 256;

/// The maximum length of a counter's name, and of its unit, in bytes.
pub const COUNTER_NAME_MAX: usize = 64;
