//! The peak load of the last one or two seconds, and whether the CPUs are short of time.

use std::time::Duration;

use steerage_flow::Timestamp;

/// The peak load, in packets per nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The peaks of the current and the previous period, each `dwell` long.
    now: f64,
    before: f64,
    since: Timestamp,
    short: Option<Timestamp>,
}

impl Demand {
    /// Returns true if the CPUs were short of time in two load checks within `dwell`, or in one
    /// late check. A single load check that is on time may have seen only a short disturbance.
    pub(super) fn note(&mut self, now: Timestamp, rate: f64, is_short: bool, is_late: bool, dwell: Duration) -> bool {
        if now.since(self.since) >= dwell {
            (self.before, self.now, self.since) = (self.now, 0.0, now);
        }
        let is_pressed = is_short && (is_late || self.short.is_some_and(|last| now.since(last) <= dwell));
        if is_short {
            self.short = Some(now);
        }
        if !is_short || is_pressed {
            self.now = self.now.max(rate);
        }
        is_pressed
    }

    pub(super) fn peak(&self) -> f64 {
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_lasts_for_a_dwell_and_one_disturbed_check_is_none() {
        let (dwell, at) = (Duration::from_secs(1), |millis| Timestamp::ZERO + Duration::from_millis(millis));
        let mut demand = Demand::default();
        assert!(!demand.note(at(10), 1.0, false, false, dwell));
        assert!(!demand.note(at(20), 9.0, true, false, dwell) && demand.peak() == 1.0);
        assert!(demand.note(at(500), 9.0, true, false, dwell) && demand.peak() == 9.0);
        for millis in (510..2000).step_by(10) {
            demand.note(at(millis), 2.0, false, false, dwell);
            assert_eq!(demand.peak(), 9.0, "{millis}");
        }
        for millis in (2000..3000).step_by(10) {
            demand.note(at(millis), 2.0, false, false, dwell);
        }
        assert_eq!(demand.peak(), 2.0);
        assert!(demand.note(at(9000), 3.0, true, true, dwell), "a late check stands for several");
    }
}
