//! The times of probes: a failed probe may cost only a small part of the time that the load lasts.

use std::time::Duration;

use steerage_flow::Timestamp;

use crate::limits::Tuning;

/// The load is expected to last as long as it has lasted so far. So the first waits between probes
/// are short, and each wait is twice as long as the wait before it. A wait is never longer than the
/// time of which the failed probe took the share [`budget`](Tuning::budget).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When the load began. `None` before the first load check, and after a change of the CPUs.
    since: Option<Timestamp>,
    next: Timestamp,
}

impl Pace {
    /// Begins with the first load check. Later calls change nothing.
    pub(super) fn begin(&mut self, now: Timestamp) {
        if self.since.is_none() {
            *self = Self { since: Some(now), next: now };
        }
    }

    /// Whether a probe may begin.
    pub(super) fn allows(&self, now: Timestamp) -> bool {
        self.since.is_some() && now >= self.next
    }

    /// How long the load has lasted.
    pub(super) fn lasted(&self, now: Timestamp) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A probe took this time and has failed.
    pub(super) fn failed(&mut self, now: Timestamp, took: Duration, tuning: &Tuning) {
        self.next = now + self.lasted(now).min(took.div_f64(tuning.budget));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_probes_take_a_small_share_of_the_time() {
        let (tuning, probe) = (Tuning::default(), Duration::from_millis(30));
        let mut pace = Pace::default();
        let mut now = Timestamp::ZERO + Duration::from_secs(5);
        pace.begin(now);
        now = now + 2 * probe;
        let mut waits = Vec::new();
        for _ in 0..9 {
            let before = now;
            while !pace.allows(now) {
                now = now + Duration::from_millis(10);
            }
            waits.push(now.since(before).as_millis());
            now = now + probe;
            pace.failed(now, probe, &tuning);
            pace.begin(now);
        }
        assert_eq!(waits, [0, 90, 210, 450, 930, 1890, 3000, 3000, 3000]);
        assert!(!Pace::default().allows(now));
    }
}
