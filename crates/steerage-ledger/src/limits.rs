//! How long the end of a run waits.

use std::time::Duration;

/// How often a CPU whose queues have ended checks whether their last frames are finished.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// How long a stop waits for the packets that are in flight.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// After its time to drain, a CPU may still be about to return for this long. Then the instance ends without it.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// An output that accepts nothing for this long is considered stuck. From then on neither sources that can wait nor
/// the end of a run wait for it. The time is long because a program that reads a pipe may well be busy for a second
/// or two with what it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);
