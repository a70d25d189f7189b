//! Parsers of option values that several commands share.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Parses one of these names, to the value that the name stands for.
pub(super) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(|(name, _)| name)).try_map(move |name| {
        let known = all.iter().find(|(known, _)| *known == name);
        known.map(|(_, value)| *value).ok_or("there is no such name")
    })
}

/// Parses a number from 1 to `most`.
pub(super) fn number(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {most}"))
}

/// Parses a number from 0 to `most`.
pub(super) fn up_to(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("write a number from 0 to {most}"))
}

/// Parses a time over 0: a number of seconds, or a number with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = seconds(text).ok().or_else(|| humantime::parse_duration(text).ok());
    parsed
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "write a number of seconds, or such as 500ms, 5m or 1h".to_owned())
}

/// Parses a number of packets, at least 1.
pub(super) fn packets(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|packets| *packets > 0).ok_or("write a number from 1 on")
}

/// Parses a number of seconds, which may be 0 or have a fraction.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "write a number of seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|_| "write a number of seconds from 0 on".to_owned())
}

/// The shortest time between two reports. People cannot read reports that come faster.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Parses the time between two reports.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time < INTERVAL_MIN { Err("write 10 ms or more".to_owned()) } else { Ok(time) })
}

/// The shortest time after which a new file begins.
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// Parses the time after which a new file begins.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time < PERIOD_MIN { Err("write 1 s or more".to_owned()) } else { Ok(time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_second_at_least() {
        assert!(period("999ms").is_err() && period("1s").is_ok());
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        let millis = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(
            [millis("300"), millis("0.5"), millis("5m"), millis("1h 30m"), millis("20ms")].map(Result::unwrap),
            [300_000, 500, 300_000, 5_400_000, 20]
        );
        for wrong in ["", "0", "0s", "-1", "5 minutes ago", "inf"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_may_be_parts_of_one() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["", "-1", "inf", "NaN", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
