//! [`Demand`]: the peak load of the last one or two seconds, and whether the CPUs are short of
//! time.

use std::time::Duration;

use steerage_flow::Timestamp;

/// The peak of the demand (the load that the group has to handle), in packets per nanosecond.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The demand's peak in the current period and in the previous period. A period of demand lasts
    /// for the time `dwell`. The current and the previous period together last for one to two times
    /// `dwell`.
    now: f64,
    before: f64,
    since: Timestamp,
    /// The time of the last load check that found CPUs short of time.
    short: Option<Timestamp>,
}

impl Demand {
    /// Records a load check. Returns true if the group is pressed, which means that its CPUs were
    /// short of time in two load checks within the time `dwell`. A load check that is late counts
    /// as two. A single load check that is on time is not enough, because it may have been
    /// disturbed.
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
