//! Limits of the ledger: the times at the end of a run, the conditions for notes in a snapshot, and
//! the number of counters.

use std::time::Duration;

/// The interval at which a CPU checks whether the last frames are finished, after all of its queues
/// have ended.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The maximum time for which the stop of an instance waits for the packets in flight (the drain
/// time).
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The additional time that an instance waits, after the drain time ([`DRAIN_MAX`]), for CPUs whose
/// handlers have not returned. After this additional time, the instance ends without these CPUs.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output counts as stuck if it accepts no packet for this time. Queues that wait for a stuck
/// output stop waiting, and the end of a run does not wait for it either. The time is this long,
/// because a program that reads a pipe may need a second or two to process the data that it has
/// read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// If a handler takes this time or longer for one batch, the log contains a warning. If packets
/// were also lost, the ledger contains a note. A handler usually takes microseconds for a batch. A thread that must wait
/// because other programs use its CPU rarely waits as long as this limit.
pub const HANDLER_SLOW: Duration = Duration::from_millis(20);

/// If a queue has received fewer packets than this, there is no note about the hashes of its
/// device. With fewer packets, the note would be unreliable, because only the bucket of one packet
/// in 64 is sampled.
pub(crate) const HASHES_SAMPLE: u64 = 10_000;

/// There is a note about a device's hashes if they use fewer than one out of this many buckets.
pub(crate) const HASHES_FEW: usize = 100;

/// The maximum number of counters of a packet function. For each CPU, each counter needs 8 bytes of
/// memory and one line of the metrics page.
pub const COUNTERS_MAX: usize = 256;

/// The maximum length of a counter's name, and of its unit, in bytes.
pub const COUNTER_NAME_MAX: usize = 64;
