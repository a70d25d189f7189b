//! Holds an input back that is a file: it is read in long steps, with long pauses between them.
//!
//! The path would otherwise look every millisecond whether the fullest buffer has room for another few packets. Jobs are slower
//! than that, so most of these looks find nothing, and each takes a wake-up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a pause is at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// Decides when to pause. Relaxed throughout: it matters to nothing but the pace.
#[derive(Debug)]
pub(super) struct Brake {
    /// The bytes that wait for the job with the most of them: a pause begins from `high` on and ends below `low`.
    high: usize,
    low: usize,
    /// It also ends if less than that waits for a job, unless the fullest has `high`.
    hungry: usize,
    is_on: AtomicBool,
    pause_micros: AtomicU64,
}

impl Brake {
    /// For jobs that have a buffer of so many bytes each. An output has room for less than half of that.
    pub(super) fn new(buffer: usize) -> Self {
        Self {
            high: buffer / 8 * 3,
            low: buffer / 4,
            hungry: buffer / 16,
            is_on: AtomicBool::new(false),
            pause_micros: AtomicU64::new(PAUSE_MIN.as_micros() as u64),
        }
    }

    /// For how long nothing is read, given how many bytes wait for each job.
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
            // A job had nearly nothing left.
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
        // Nothing can be done for a hungry job while another one is full.
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
