use steerage::Timestamp;

pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A steady stream of frames, whose first frame is due at the first poll.
#[derive(Debug)]
pub(crate) struct Schedule {
    start: Option<Timestamp>,
    /// Frames per nanosecond as a fraction of integers, so that no rounding error accumulates.
    frames: u64,
    nanos: u64,
}

impl Schedule {
    /// The rate is `frames` frames in `nanos` nanoseconds.
    pub(crate) fn new(frames: u64, nanos: u64) -> Self {
        Self { start: None, frames, nanos }
    }

    pub(crate) fn due(&mut self, now: Timestamp) -> u64 {
        let start = *self.start.get_or_insert(now);
        if self.frames == 0 {
            return 0;
        }
        let elapsed = u128::from(now.as_nanos().saturating_sub(start.as_nanos()));
        let due = elapsed * u128::from(self.frames) / u128::from(self.nanos) + 1;
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    pub(crate) fn time_of(&self, frames: u64) -> Timestamp {
        let start = self.start.unwrap_or_default().as_nanos();
        if self.frames == 0 {
            return Timestamp::from_nanos(u64::MAX);
        }
        let after = (u128::from(frames) * u128::from(self.nanos)).div_ceil(u128::from(self.frames));
        Timestamp::from_nanos(start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest numbers that [`synthetic`](crate::synthetic) uses.
    fn schedule(rate: u64) -> Schedule {
        Schedule::new(rate << 32, NANOS_PER_SECOND << 32)
    }

    #[test]
    fn a_second_holds_exactly_the_rate() {
        for rate in [1, 3, 7, 999_983, 1_000_000_000] {
            let mut schedule = schedule(rate);
            let start = 12_345;
            assert_eq!(schedule.due(Timestamp::from_nanos(start)), 1);
            for seconds in [1, 2, 1000, 31_557_600] {
                let now = Timestamp::from_nanos(start + seconds * NANOS_PER_SECOND);
                assert_eq!(schedule.due(now), rate * seconds + 1, "{rate} a second for {seconds} s");
            }
        }
    }

    #[test]
    fn the_time_named_is_the_first_at_which_the_frame_is_due() {
        for rate in [1, 3, 999_983, 1_000_000_000] {
            let mut schedule = schedule(rate);
            schedule.due(Timestamp::from_nanos(77));
            for frame in [1, 2, 3, 1000, 1_000_003] {
                let time = schedule.time_of(frame);
                assert!(schedule.due(time) > frame, "{rate} a second, frame {frame}");
                assert!(
                    schedule.due(Timestamp::from_nanos(time.as_nanos() - 1)) <= frame,
                    "{rate} a second, frame {frame}"
                );
            }
        }
    }

    #[test]
    fn a_share_of_nothing_is_never_due() {
        let mut schedule = Schedule::new(0, NANOS_PER_SECOND);
        assert_eq!(schedule.due(Timestamp::from_nanos(u64::MAX)), 0);
        assert_eq!(schedule.time_of(0).as_nanos(), u64::MAX);
    }
}
