//! Limits the rate at which records are sent, so that an IPFIX collector's receive buffer does not
//! overflow.
//!
//! Linux gives a UDP socket a receive buffer of 212,992 bytes (`net.core.rmem_default`), and counts
//! all memory of a datagram. A full datagram takes 2,304 bytes of the buffer if it comes over
//! loopback, and up to 4,352 bytes if it comes from a network card. The buffer holds 48 full
//! messages from a network card, or 92 over loopback.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The default rate over UDP: 10,000 records per second are 500 full messages. At this rate, a
/// receive buffer for 48 messages is full after 90 ms in which the collector does not read.
const UDP_DEFAULT: u64 = 10_000;

/// The maximum number of messages in one system call if a rate is set. A default receive buffer has
/// room for six times as many.
const TOGETHER_MAX: u64 = 8;

/// The rate (records per second) divided by this number is the number of messages that one system
/// call may send. At 2,000 records per second, one message of 20 records is sent every 10 ms.
const RATE_TOGETHER: u64 = 2000;

/// After a longer delay, the thread does not make up for lost time, to avoid bursts. (At the
/// default rate, 5 messages are sent in 10 ms.)
const CATCH_UP_MAX: Duration = Duration::from_millis(10);

/// The highest rate at which records are sent to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportRate {
    /// As fast as possible.
    Max,
    /// The maximum number of records per second.
    Records(NonZero<u64>),
}

impl FromStr for ExportRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "max" => Ok(Self::Max),
            _ => text.parse().map(Self::Records).map_err(|_| "write records per second, or max"),
        }
    }
}

impl fmt::Display for ExportRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("max"),
            Self::Records(rate) => rate.fmt(f),
        }
    }
}

#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u64>,
    is_default: bool,
    is_udp: bool,
    is_hurried: bool,
    next_at: Instant,
}

impl Pace {
    pub(super) fn new(rate: Option<ExportRate>, is_udp: bool, now: Instant) -> Self {
        let records = match rate {
            None => is_udp.then_some(UDP_DEFAULT),
            Some(ExportRate::Max) => None,
            Some(ExportRate::Records(rate)) => Some(rate.get()),
        };
        Self { rate: records, is_default: rate.is_none(), is_udp, is_hurried: false, next_at: now }
    }

    pub(super) fn together(&self) -> Option<usize> {
        self.rate.map(|rate| (rate / RATE_TOGETHER).clamp(1, TOGETHER_MAX) as usize)
    }

    pub(super) fn is_default(&self) -> bool {
        self.is_default
    }

    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next_at.saturating_duration_since(now)
    }

    /// After a request to stop, records are sent at the default rate or faster, and over TCP
    /// without a limit.
    pub(super) fn hurry(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_hurried, true) {
            self.rate = self.rate.filter(|_| self.is_udp).map(|rate| rate.max(UDP_DEFAULT));
            self.next_at = self.next_at.min(now);
        }
    }

    pub(super) fn sent(&mut self, count: usize, now: Instant) {
        let Some(rate) = self.rate else { return };
        let from = now.checked_sub(CATCH_UP_MAX).map_or(self.next_at, |earliest| self.next_at.max(earliest));
        self.next_at = from + Duration::from_secs_f64(count as f64 / rate as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the total number of records, and the highest number within 10 ms. Each send is late
    /// by `late`.
    fn run(pace: &mut Pace, start: Instant, time: Duration, count: usize, late: Duration) -> (usize, usize) {
        let (mut now, mut sent, mut all) = (start, Vec::<(Instant, usize)>::new(), 0);
        while now < start + time {
            let wait = pace.wait(now);
            now += if wait.is_zero() { wait } else { wait + late };
            pace.sent(count, now);
            sent.push((now, count));
            all += count;
        }
        let within = |from: Instant| {
            let these = sent.iter().filter(|(at, _)| *at >= from && *at < from + Duration::from_millis(10));
            these.map(|(_, count)| count).sum::<usize>()
        };
        (all, sent.iter().map(|(at, _)| within(*at)).max().unwrap())
    }

    #[test]
    fn records_keep_to_the_rate_without_bursts() {
        let start = Instant::now();
        for late in [0, 200, 5000].map(Duration::from_micros) {
            let mut pace = Pace::new(None, true, start);
            let (all, burst) = run(&mut pace, start, Duration::from_secs(2), 20, late);
            assert!((19_000..=20_300).contains(&all), "{all} records in 2 s, {late:?} late");
            assert!(burst <= 240, "{burst} records in 10 ms, {late:?} late");
        }
        // After a second without sending, there is no larger burst that makes up for this second.
        let mut pace = Pace::new(None, true, start);
        let late = start + Duration::from_secs(1);
        let (_, burst) = run(&mut pace, late, Duration::from_millis(100), 20, Duration::ZERO);
        assert!(burst <= 240, "{burst}");
    }

    #[test]
    fn who_sets_the_rate_gets_it() {
        let now = Instant::now();
        let waits = |rate: Option<&str>, is_udp, is_hurried| {
            let mut pace = Pace::new(rate.map(|rate| rate.parse().unwrap()), is_udp, now);
            if is_hurried {
                pace.hurry(now);
            }
            (0..100).for_each(|_| pace.sent(1000, now));
            pace.wait(now).as_secs_f64().round()
        };
        assert_eq!(waits(Some("100"), true, false), 1000.0);
        assert_eq!(waits(Some("1000000"), true, false), 0.0);
        assert_eq!([waits(Some("max"), true, false), waits(None, false, false)], [0.0, 0.0]);
        assert_eq!(waits(None, true, false), 10.0);
        assert_eq!([waits(Some("100"), true, true), waits(Some("100"), false, true)], [10.0, 0.0]);
        let mut slow = Pace::new("1".parse().ok(), true, now);
        assert_eq!(slow.together(), Some(1));
        slow.sent(100, now);
        slow.hurry(now);
        assert_eq!((slow.wait(now), slow.together()), (Duration::ZERO, Some(5)));
    }
}
