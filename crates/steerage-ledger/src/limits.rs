//! The time limits at the end of a run.

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
