//! Limits of the times at the end of a run, of the notes in a snapshot, and of counters.

use std::time::Duration;

/// The interval at which a CPU without open queues checks whether the last frames are finished.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// The maximum time that a stopping instance waits for the packets in flight.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The time that handlers have after [`DRAIN_MAX`] to return. After this time, the run ends without
/// the CPUs whose handlers have not returned.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output that accepts no packet for this time is stuck, and nothing waits for it any more. A
/// program that reads a pipe may need a second or two to process what it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// A batch that takes longer than this is logged as a warning, and noted in the ledger if packets
/// were lost. A batch usually takes microseconds, and other programs rarely delay a thread for 20
/// ms.
pub const HANDLER_SLOW: Duration = Duration::from_millis(20);

/// Before this number of packets was received, the ledger has no note about a device's hashes.
/// About one packet in 64 is sampled.
pub(crate) const HASHES_SAMPLE: u64 = 10_000;

/// If fewer than one bucket in 100 has packets, the ledger has a note about the device's hashes.
pub(crate) const HASHES_FEW: usize = 100;

/// The maximum number of counters. A counter takes 8 bytes and a line of metrics for each CPU.
pub const COUNTERS_MAX: usize = 256;

/// The maximum length in bytes of a counter's name, and of its unit.
pub const COUNTER_NAME_MAX: usize = 64;
