use std::str::FromStr;

use steerage::Timestamp;

const MILLIONTHS: u64 = 1_000_000;

/// Above this factor, a replay would hardly ever wait.
const FACTOR_MAX: f64 = 1e6;

/// The speed of a replay, as a multiple of the recorded speed.
///
/// ```
/// use steerage_capture::Pace;
///
/// let pace: Pace = "2.5".parse()?;
/// let error = "fast".parse::<Pace>().unwrap_err();
/// println!("{error}");
/// # Ok::<(), steerage_capture::ParsePaceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The factor in millionths, because an integer scales times without rounding errors.
    factor: u64,
}

impl Pace {
    /// The recorded speed.
    pub const RECORDED: Self = Self { factor: MILLIONTHS };

    /// Returns a pace of `factor` times the recorded speed: a factor of 2 takes half the time.
    /// Returns `None` if `factor` is not between a millionth and a million.
    pub fn times(factor: f64) -> Option<Self> {
        let millionths = (factor * MILLIONTHS as f64).round();
        (factor <= FACTOR_MAX && millionths >= 1.0).then_some(Self { factor: millionths as u64 })
    }
}

/// The error for an invalid pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a factor from 0.000001 to 1000000, such as 1 or 2.5; files go before it")]
pub struct ParsePaceError;

impl FromStr for Pace {
    type Err = ParsePaceError;

    fn from_str(text: &str) -> Result<Self, ParsePaceError> {
        text.parse().ok().and_then(Self::times).ok_or(ParsePaceError)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Paced {
    pace: Pace,
    start: Option<(Timestamp, u64)>,
}

impl Paced {
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, start: None }
    }

    pub(super) fn begin_file(&mut self) {
        self.start = None;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.start.is_some()
    }

    pub(super) fn begin(&mut self, now: Timestamp, nanos: u64) {
        self.start = Some((now, nanos));
    }

    pub(super) fn until(&self, now: Timestamp) -> u64 {
        let Some((start, first)) = self.start else { return u64::MAX };
        let elapsed = u128::from(now.as_nanos().saturating_sub(start.as_nanos()));
        let recorded = elapsed * u128::from(self.pace.factor) / u128::from(MILLIONTHS);
        u64::try_from(u128::from(first) + recorded).unwrap_or(u64::MAX)
    }

    pub(super) fn due(&self, nanos: u64) -> Timestamp {
        let Some((start, first)) = self.start else { return Timestamp::ZERO };
        let recorded = u128::from(nanos.saturating_sub(first));
        let after = (recorded * u128::from(MILLIONTHS)).div_ceil(u128::from(self.pace.factor));
        Timestamp::from_nanos(start.as_nanos().saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_due_at_the_time_named_and_not_before() {
        for factor in [0.000_001, 0.3, 1.0, 2.5, 3.0, 999_999.0] {
            let mut paced = Paced::new(Pace::times(factor).unwrap());
            let (start, first) = (Timestamp::from_nanos(77), 1_700_000_000_000_000_123);
            paced.begin(start, first);
            for after in [0, 1, 2, 999, 1_000_000_007, 8_640_000_000_000] {
                let due = paced.due(first + after);
                assert!(paced.until(due) >= first + after, "{factor}: {after}");
                assert!(
                    after == 0
                        || due == start
                        || paced.until(Timestamp::from_nanos(due.as_nanos() - 1)) < first + after
                );
            }
        }
    }

    #[test]
    fn twice_as_fast_takes_half_the_time() {
        let mut paced = Paced::new("2".parse().unwrap());
        assert_eq!(paced.until(Timestamp::from_nanos(5)), u64::MAX);
        paced.begin(Timestamp::from_nanos(1000), 50);
        assert_eq!(paced.due(2050), Timestamp::from_nanos(2000));
        assert_eq!(paced.due(3), Timestamp::from_nanos(1000));
    }

    #[test]
    fn factors_that_make_no_sense_are_refused() {
        for wrong in ["", "0", "-1", "0.0000001", "1000001", "NaN", "inf", "fast", "a.pcap"] {
            assert_eq!(wrong.parse::<Pace>(), Err(ParsePaceError), "{wrong}");
        }
        assert_eq!("1".parse(), Ok(Pace::RECORDED));
    }
}
