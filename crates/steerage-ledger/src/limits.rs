//! Limits of the ledger: the times at the end of a run, the conditions for notes in a snapshot, and
//! the number of counters.

use std::time::Duration;

/// After all queues of a CPU have ended, the CPU checks at this interval whether the last frames
/// are finished.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// When an instance stops, it waits at most this time for the packets in flight (the drain time).
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The additional time, after the drain time ([`DRAIN_MAX`]), that an instance waits for CPUs whose
/// handlers have not returned. After the additional time, the instance ends without the CPUs whose
/// handlers have not returned.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output counts as stuck if it accepts no packet for this time. A receive queue stops waiting
/// for an output that is stuck. The end of a run does not wait for a stuck output either. The time
/// until an output counts as stuck is this long, because a program that reads a pipe may need a
/// second or two to process the data that it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// If a handler takes this time or longer for one batch, the log contains a warning. If packets
/// were also lost, the ledger contains a note about the slow handler. A handler usually takes
/// microseconds for a batch. If other programs use a CPU, a thread on this CPU must sometimes wait,
/// but rarely as long as this limit.
pub const HANDLER_SLOW: Duration = Duration::from_millis(20);

/// The minimum number of packets that a queue must have received before a note about its device's
/// hashes is written. With fewer packets, the note about hashes would be unreliable, because only
/// the bucket of one packet in 64 is sampled.
pub(crate) const HASHES_SAMPLE: u64 = 10_000;

/// A note about a device's hashes is written if fewer than one in this many buckets contains
/// packets.
pub(crate) const HASHES_FEW: usize = 100;

/// The maximum number of counters that a packet function can declare. For each CPU, each counter
/// needs 8 bytes of memory and one line of the metrics page.
pub const COUNTERS_MAX: usize = 256;

/// The maximum length in bytes of a counter's name, and of its unit.
pub const COUNTER_NAME_MAX: usize = 64;
