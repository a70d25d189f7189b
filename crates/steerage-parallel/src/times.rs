//! Reads the time at the start of each line, for `--order time`.

use super::lines::{ACTION, LINE_BYTES_MAX};

const SECOND: i64 = 1_000_000_000;
const HALF_A_DAY: i64 = 12 * 3600 * SECOND;

/// All times in seconds since April 1973 have at least nine digits. A number with fewer digits,
/// such as the frame number at the start of a line of tshark, is not a time.
const DIGITS_MIN: usize = 9;

/// The starts of JSON lines whose first member is a time (tshark -T ek, Zeek, Suricata).
const KEYS: [&[u8]; 4] = [b"{\"timestamp\":", b"{\"ts\":", b"{\"time\":", b"{\"@timestamp\":"];

const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsorted {
    /// Neither this line of a job's output nor any line before it begins with a time.
    NoTime(String),
    TooLong,
}

/// Divides a job's output into records. A record is a line with a time, and the lines without a
/// time after it.
#[derive(Debug, Default)]
pub(super) struct Times {
    header: usize,
    last: Option<i64>,
    days: i64,
}

impl Times {
    /// Up to `header` lines at the start have no time, and come before all other lines.
    pub(super) fn new(header: usize) -> Self {
        Self { header, ..Self::default() }
    }

    /// Returns the length and time of the first record, or `None` if the record may be incomplete.
    pub(super) fn next(&mut self, bytes: &[u8], ended: bool) -> Result<Option<(usize, i64)>, Unsorted> {
        let mut lines = Lines { bytes, at: 0, ended };
        let Some(line) = lines.next() else { return too_long(bytes) };
        // A line that begins with a time is no header line, whatever the number of header lines.
        if self.header > 0 && time_of(line).is_none() {
            self.header -= 1;
            return Ok(Some((lines.at, i64::MIN)));
        }
        self.header = 0;
        let time = if line.starts_with(ACTION) {
            let Some(document) = lines.next() else { return too_long(bytes) };
            time_of(document)
        } else {
            time_of(line)
        };
        let Some(time) = time else {
            // The header lines and the last line of Zeek's output begin with `#`.
            if line.starts_with(b"#") || line.trim_ascii().is_empty() {
                let is_last = ended && lines.at == bytes.len();
                let time = self.last.map_or(i64::MIN, |last| if is_last { i64::MAX } else { last });
                return Ok(Some((lines.at, time)));
            }
            return Err(Unsorted::NoTime(String::from_utf8_lossy(line).trim_end().chars().take(80).collect()));
        };
        loop {
            let end = lines.at;
            match lines.next() {
                Some(line) if !line.starts_with(ACTION) && !line.starts_with(b"#") && time_of(line).is_none() => {}
                Some(_) => return Ok(Some((end, self.continued(time)))),
                None if ended && end == bytes.len() => return Ok(Some((end, self.continued(time)))),
                None => return too_long(bytes),
            }
        }
    }

    /// Returns the first time of a job's output after it was compared with `earliest`, the earliest
    /// time of all jobs. An earlier time of day belongs to the next day.
    pub(super) fn not_before(&mut self, earliest: i64, time: i64) -> i64 {
        if !is_of_day(time) || time >= earliest {
            return time;
        }
        self.days += 1;
        time + 2 * HALF_A_DAY
    }

    /// Adds a day to a time of day for each midnight that has passed.
    fn continued(&mut self, time: i64) -> i64 {
        let is_of_day = is_of_day(time);
        if is_of_day {
            self.days += i64::from(self.last.is_some_and(|last| time + HALF_A_DAY < last));
        }
        self.last = Some(time);
        if is_of_day { time.saturating_add(self.days.saturating_mul(2 * HALF_A_DAY)) } else { time }
    }
}

fn is_of_day(time: i64) -> bool {
    (0..2 * HALF_A_DAY).contains(&time)
}

/// Returns the earliest of the first times of the jobs' outputs. The times of day that follow
/// midnight are smaller than those before it, so the earliest is the one with which the times take
/// the shortest part of a day, which may contain midnight. Returns `None` if the times have dates.
pub(super) fn earliest_of_day(times: impl Iterator<Item = i64>) -> Option<i64> {
    let mut times: Vec<i64> = times.filter(|time| is_of_day(*time)).collect();
    times.sort_unstable();
    let (first, last) = (*times.first()?, *times.last()?);
    let pauses = times.windows(2).map(|pair| (pair[1] - pair[0], pair[1]));
    let over_midnight = (2 * HALF_A_DAY - (last - first), first);
    // Of two equal pauses, the one over midnight counts.
    pauses.chain([over_midnight]).max_by_key(|(pause, _)| *pause).map(|(_, after)| after)
}

fn too_long(bytes: &[u8]) -> Result<Option<(usize, i64)>, Unsorted> {
    if bytes.len() > LINE_BYTES_MAX { Err(Unsorted::TooLong) } else { Ok(None) }
}

struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
    ended: bool,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let end = end.or(self.ended.then_some(rest.len()))?;
        self.at += end;
        Some(&rest[..end])
    }
}

/// Returns the time at the start of a line, in nanoseconds since 1970, or since midnight if the
/// time has no date.
pub(super) fn time_of(line: &[u8]) -> Option<i64> {
    let line = KEYS.iter().find_map(|key| line.strip_prefix(*key)).unwrap_or(line);
    let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'[' | b'"'))?;
    let mut text = Text(&line[start..]);
    text.epoch().or_else(|| Text(&line[start..]).date()).or_else(|| Text(&line[start..]).time_of_day())
}

struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn number(&mut self) -> Option<(i64, usize)> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.0.split_at(digits);
        self.0 = rest;
        Some((std::str::from_utf8(number).ok()?.parse().ok()?, digits))
    }

    fn digits(&mut self, wanted: usize) -> Option<i64> {
        self.number().filter(|(_, digits)| *digits == wanted).map(|(number, _)| number)
    }

    fn one_of(&mut self, bytes: &[u8]) -> Option<()> {
        let rest = self.0.strip_prefix(&[*self.0.first().filter(|first| bytes.contains(first))?])?;
        self.0 = rest;
        Some(())
    }

    /// Parses a time since 1970: seconds with a fraction, or whole milliseconds, microseconds or
    /// nanoseconds.
    fn epoch(&mut self) -> Option<i64> {
        let (number, digits) = self.number().filter(|(_, digits)| *digits >= DIGITS_MIN)?;
        let unit = match digits {
            ..12 => SECOND,
            12..15 => SECOND / 1_000,
            15..18 => SECOND / 1_000_000,
            _ => 1,
        };
        let fraction = if unit == SECOND { self.fraction() } else { 0 };
        let ends = self.0.first().is_none_or(|next| !next.is_ascii_alphanumeric() && !matches!(next, b'-' | b'_'));
        number.checked_mul(unit)?.checked_add(fraction).filter(|_| ends)
    }

    /// Returns the fraction of a second after a point or a comma, in nanoseconds.
    fn fraction(&mut self) -> i64 {
        let before = self.0;
        // A comma after the seconds may also separate columns. A fraction of a second has a
        // multiple of three digits.
        let digits: Vec<u8> = match self.one_of(b".,") {
            Some(()) => self.0.iter().copied().take_while(u8::is_ascii_digit).collect(),
            None => return 0,
        };
        if digits.is_empty() || (before.starts_with(b",") && digits.len() % 3 != 0) {
            self.0 = before;
            return 0;
        }
        self.0 = &self.0[digits.len()..];
        digits.iter().chain(&[b'0'; 9]).take(9).fold(0, |nanos, digit| nanos * 10 + i64::from(digit - b'0'))
    }

    /// Parses a time with a date, such as `2026-01-31T09:00:04.5Z`, `01/31/2026-09:00:04.5` or `Jan
    /// 31, 2026 09:00:04.5`.
    fn date(&mut self) -> Option<i64> {
        let (year, month, day) = if self.0.first()?.is_ascii_digit() {
            let (first, digits) = self.number()?;
            self.one_of(b"-/")?;
            let second = self.digits(2)?;
            self.one_of(b"-/")?;
            let (third, third_digits) = self.number()?;
            match (digits, third_digits) {
                (4, 2) => (first, second, third),
                (2, 4) => (third, first, second),
                _ => return None,
            }
        } else {
            let month = MONTHS.iter().position(|month| self.0.starts_with(month))? + 1;
            self.0 = self.0[3..].trim_ascii_start();
            let (day, _) = self.number()?;
            self.one_of(b",");
            self.one_of(b" ")?;
            (self.digits(4)?, month as i64, day)
        };
        self.one_of(b" T-")?;
        let time = self.time_of_day()?;
        ((1..=12).contains(&month) && (1..=31).contains(&day)).then_some(())?;
        let seconds = days(year, month, day) * 86_400 - self.zone();
        seconds.checked_mul(SECOND)?.checked_add(time)
    }

    fn time_of_day(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.one_of(b":")?;
        let minute = self.digits(2)?;
        self.one_of(b":")?;
        let second = self.digits(2)?;
        (hour < 24 && minute < 60 && second <= 60).then_some(())?;
        Some((hour * 3600 + minute * 60 + second) * SECOND + self.fraction())
    }

    /// Parses a time zone such as `+02:00` or `+0200`. Returns the seconds by which local time is
    /// ahead of UTC.
    fn zone(&mut self) -> i64 {
        let sign = match self.0.first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return 0,
        };
        let digits: Vec<i64> = self.0[1..]
            .iter()
            .filter(|byte| **byte != b':')
            .map_while(|byte| (*byte as char).to_digit(10))
            .map(i64::from)
            .take(4)
            .collect();
        match digits.as_slice() {
            [h, i, m, n] => sign * ((h * 10 + i) * 3600 + (m * 10 + n) * 60),
            _ => 0,
        }
    }
}

/// Returns the days since January 1, 1970. A year begins in March in this computation, so that its
/// leap day is its last day.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    const EPOCH: i64 = 719_468;
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_common_programs_are_read() {
        let at = 1_767_258_004_149_355_721;
        for line in [
            "1767258004.149355721 IP 198.18.0.1 > 198.18.0.2: UDP",
            "1767258004.149355721\t60",
            "1767258004.149355721,60",
            "1767258004149355721 x",
            "{\"ts\":1767258004.149355721,\"uid\":1}",
            "2026-01-01 09:00:04.149355721 IP",
            "[2026-01-01T09:00:04,149355721] x",
            "{\"timestamp\":\"2026-01-01T10:00:04.149355721+0100\",\"flow_id\":1}",
            "2026-01-01T09:00:04.149355721Z",
            "01/01/2026-09:00:04.149355721  [**]",
            "Jan  1, 2026 09:00:04.149355721 UTC\t198.18.0.1",
        ] {
            assert_eq!(time_of(line.as_bytes()), Some(at), "{line}");
        }
        assert_eq!(time_of(b"{\"timestamp\":\"1767258004149\",\"layers\":{}}"), Some(at / 1_000_000 * 1_000_000));
        assert_eq!(time_of(b"09:00:04.5 IP"), Some((9 * 3600 + 4) * SECOND + SECOND / 2));
        assert_eq!(time_of(b"2024-03-01 00:00:00"), Some(1_709_251_200 * SECOND));
        for line in
            ["", "x", "    1   0.000000 198.18.0.1 > 198.18.0.2", "17672580041x", "2026-13-01 00:00:00", "1.5", "12:00"]
        {
            assert_eq!(time_of(line.as_bytes()), None, "{line}");
        }
    }

    fn records(header: usize, text: &str) -> Result<Vec<(&str, i64)>, Unsorted> {
        let (mut times, mut records, mut rest) = (Times::new(header), Vec::new(), text);
        while let Some((len, time)) = times.next(rest.as_bytes(), true)? {
            let (record, others) = rest.split_at(len);
            records.push((record, time / SECOND));
            rest = others;
        }
        assert!(rest.is_empty());
        Ok(records)
    }

    #[test]
    fn lines_without_a_time_stay_with_the_line_before() {
        let (first, last) = (i64::MIN / SECOND, i64::MAX / SECOND);
        let lines = "head\n1000000001 a\n\tmore\n\n1000000002 b\n#close\n";
        let expected = [
            ("head\n", first),
            ("1000000001 a\n\tmore\n\n", 1_000_000_001),
            ("1000000002 b\n", 1_000_000_002),
            ("#close\n", last),
        ];
        assert_eq!(records(1, lines).unwrap(), expected);
        assert_eq!(records(2, lines).unwrap(), expected);
        assert_eq!(records(0, lines), Err(Unsorted::NoTime("head".to_owned())));
        let ek = "{\"index\":{}}\n{\"timestamp\":\"1767258004149\"}\n{\"index\":{}}\n{\"timestamp\":\"1767258005149\"}";
        assert_eq!(
            records(0, ek).unwrap().iter().map(|(_, time)| *time).collect::<Vec<_>>(),
            [1_767_258_004, 1_767_258_005]
        );
        let mut times = Times::new(0);
        assert_eq!(times.next(b"1000000001 a\n", false), Ok(None));
        assert_eq!(times.next(b"1000000001 a\n1000000001 b", false), Ok(None));
        assert_eq!(times.next(&vec![b'x'; LINE_BYTES_MAX + 1], false), Err(Unsorted::TooLong));
    }

    #[test]
    fn midnight_begins_a_day() {
        let days: Vec<i64> =
            records(0, "23:59:59.9 a\n00:00:00.1 b\n00:00:00 c\n").unwrap().iter().map(|(_, time)| *time).collect();
        assert_eq!(days, [86_399, 86_400, 86_400]);
        // A time with a date is never moved to the next day.
        let lines = "23:59:59 a\n00:00:00 b\n9223372036854775807 c\n";
        let times: Vec<i64> = records(0, lines).unwrap().iter().map(|(_, time)| *time).collect();
        assert_eq!(times, [86_399, 86_400, i64::MAX / SECOND]);
    }

    #[test]
    fn the_earliest_time_of_day_may_be_before_midnight() {
        const HOUR: i64 = 3600 * SECOND;
        let earliest = |hours: &[i64]| earliest_of_day(hours.iter().map(|hour| hour * HOUR)).map(|time| time / HOUR);
        assert_eq!((earliest(&[0, 23, 1]), earliest(&[5, 23, 10])), (Some(23), Some(23)));
        assert_eq!((earliest(&[8, 12, 21]), earliest(&[7, 7]), earliest(&[12, 0])), (Some(8), Some(7), Some(0)));
        assert_eq!((earliest(&[]), earliest_of_day([1_000_000_000 * SECOND].into_iter())), (None, None));
        let mut times = Times::default();
        assert_eq!((times.not_before(23 * HOUR, HOUR), times.not_before(0, HOUR)), (25 * HOUR, HOUR));
    }
}
