//! Slows down the reading of packets from a file, so that the jobs can keep up. To slow down, long
//! periods of reading alternate with long pauses.
//!
//! Without long pauses, the CPU that reads the packets would check every millisecond whether the
//! fullest buffer has room for more. Each check costs a wake-up. Most of these checks would find no
//! room in the buffer, because the jobs are slower than the CPU that reads the file.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The minimum and the maximum duration of a pause in reading.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// Decides when to pause the reading of packets. All atomic accesses are `Relaxed`, because their
/// order affects only the speed of reading.
#[derive(Debug)]
pub(super) struct Brake {
    /// The thresholds for a pause in reading: numbers of bytes in the jobs' buffers. A pause in
    /// reading begins when the fullest buffer contains `high` bytes, and ends when the fullest
    /// buffer contains fewer than `low` bytes.
    high: usize,
    low: usize,
    /// A pause in reading also ends if any job's buffer contains fewer than `hungry` bytes, unless
    /// the fullest buffer contains `high` bytes.
    hungry: usize,
    is_on: AtomicBool,
    pause_micros: AtomicU64,
}

impl Brake {
    /// `buffer` is the size of each job's buffer in bytes. The capacity of an
    /// [`Output`](steerage::Output) is less than half of this buffer size.
    pub(super) fn new(buffer: usize) -> Self {
        Self {
            high: buffer / 8 * 3,
            low: buffer / 4,
            hungry: buffer / 16,
            is_on: AtomicBool::new(false),
            pause_micros: AtomicU64::new(PAUSE_MIN.as_micros() as u64),
        }
    }

    /// Returns how long to pause reading, or `None` to continue reading. `waiting` contains the
    /// number of bytes in the buffer of each job.
    pub(super) fn pause(&self, waiting: impl Iterator<Item = usize>) -> Option<Duration> {
        let (mut least, mut most) = (usize::MAX, 0);
        waiting.for_each(|bytes| (least, most) = (least.min(bytes), most.max(bytes)));
        let was_on = self.is_on.load(Ordering::Relaxed);
        let is_on = most >= self.high || (was_on && most >= self.low && least >= self.hungry);
        if is_on != was_on {
            self.is_on.store(is_on, Ordering::Relaxed);
        }
        if !is_on && !was_on {
            return None;
        }
        let micros = self.pause_micros.load(Ordering::Relaxed);
        let longer = match (is_on, least >= self.hungry) {
            (true, true) => micros * 2,
            (true, false) => micros,
            // The pause in reading was too long, because a job had almost no input left at the end
            // of the pause.
            (false, false) => micros / 2,
            (false, true) => micros,
        };
        let longer = longer.clamp(PAUSE_MIN.as_micros() as u64, PAUSE_MAX.as_micros() as u64);
        self.pause_micros.store(longer, Ordering::Relaxed);
        is_on.then_some(Duration::from_micros(longer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_goes_on_once_the_fullest_has_room_or_another_job_is_hungry() {
        let brake = Brake::new(1600);
        let pauses = |waiting: [usize; 2]| brake.pause(waiting.into_iter()).is_some();
        assert!(!pauses([0, 0]) && !pauses([599, 599]));
        assert!(pauses([600, 300]) && pauses([450, 200]));
        assert!(!pauses([399, 150]) && !pauses([599, 150]));
        assert!(pauses([600, 300]) && !pauses([500, 99]));
        // As long as the buffer of one job is full, reading more packets cannot help another job
        // whose buffer is empty.
        assert!(pauses([600, 0]));
        // No job has a buffer.
        assert_eq!(Brake::new(1600).pause(std::iter::empty()), None);
    }

    #[test]
    fn pauses_get_longer_unless_a_job_starves() {
        let brake = Brake::new(1600);
        let pause = |least| brake.pause([700, least].into_iter()).unwrap();
        let pauses: Vec<u128> = (0..5).map(|_| pause(500).as_millis()).collect();
        assert_eq!(pauses, [2, 4, 8, 8, 8]);
        assert_eq!(brake.pause([300, 50].into_iter()), None);
        assert_eq!(pause(50).as_millis(), 4);
    }
}
