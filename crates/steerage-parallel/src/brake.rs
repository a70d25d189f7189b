//! Alternates long periods of reading a file with long pauses, so that the jobs can keep up.
//!
//! Without long pauses, the CPU that reads the packets would wake up every millisecond to check
//! whether the fullest buffer has room. In most cases, the buffer would have no room, because the
//! jobs are slower than the reading CPU.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// All atomic accesses of this type are `Relaxed`, because their order affects only the speed of
/// reading.
#[derive(Debug)]
pub(super) struct Brake {
    /// Bytes in the jobs' buffers: a pause begins when the fullest buffer contains `high` bytes,
    /// and ends when it contains fewer than `low` bytes.
    high: usize,
    low: usize,
    /// A pause in reading ends if any job's buffer contains fewer than `hungry` bytes, unless the
    /// fullest buffer contains at least `high` bytes.
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

    /// Returns how long to pause, or `None` to continue. `waiting` has the number of bytes in each
    /// job's buffer.
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
            // The pause was too long: at its end, a job had almost no input left.
            (false, false) => micros / 2,
            _ => micros,
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
        // While the buffer of one job is full, reading pauses even if another job's buffer is
        // empty.
        assert!(pauses([600, 0]));
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
