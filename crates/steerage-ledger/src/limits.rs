//! The time limits at the end of a run, when a snapshot has a note, and how many counters there
//! are.

use std::time::Duration;

/// The interval at which a CPU whose queues have ended checks whether their last frames are
/// finished.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The longest time for which a stop waits for the packets in flight.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The extra time for a CPU that has not returned when the drain time is over. Then the instance
/// ends without that CPU.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output that accepts nothing for this long counts as stuck. Waiting sources and the end of a
/// run then stop waiting for the output. The time is long because a program that reads a pipe may
/// spend a second or two on the data that it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// A batch that takes longer is a note in the ledger and a warning in the log. Batches usually take
/// microseconds, and a thread that loses its CPU to other programs rarely waits this long.
pub const HANDLER_SLOW: Duration = Duration::from_millis(20);

/// A queue with fewer packets has no note about its device's hashes, because one poll in 64 packets
/// samples a bucket.
pub(crate) const HASHES_SAMPLE: u64 = 10_000;

/// The device's hashes fill few buckets if they fill fewer than one in this many.
pub(crate) const HASHES_FEW: usize = 100;

/// The most counters of a packet function. Each counter takes 8 bytes for each CPU, and a line of
/// metrics for each CPU.
pub const COUNTERS_MAX: usize = 256;

/// The longest name of a counter, and the longest unit, in bytes.
pub const COUNTER_NAME_MAX: usize = 64;
