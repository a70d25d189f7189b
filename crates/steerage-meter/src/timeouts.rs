use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steerage::Timestamp;

/// The time for which a closed TCP flow stays in the table: longer than most round-trip times and
/// the first retransmission timeout (1 s in RFC 6298).
pub const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which a flow stays in the table after its timeout, because packets from different
/// interfaces may be out of order. Timestamps decide when a record ends.
pub const LATE_MAX: Duration = Duration::from_secs(1);

/// All timeouts are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// The active timeout since the first packet of a record. If `clock` is set, 0: quick checks
    /// then fail, and [`cuts`](Self::cuts) decides.
    pub(super) active: u64,
    /// Records are cut at the multiples of this interval since 1970. 0 if `active` is set.
    pub(super) clock: u64,
    pub(super) inactive: u64,
    pub(super) closed: u64,
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Timeouts {
    pub(super) fn new(active: Duration, by_clock: bool, inactive: Duration) -> Self {
        let (active, inactive) = (nanos(active).max(1), nanos(inactive).max(1));
        let (active, clock) = if by_clock { (0, active) } else { (active, 0) };
        Self { active, clock, inactive, closed: nanos(CLOSED_TIMEOUT).min(inactive) }
    }

    pub(super) fn cuts(&self, first: u64, last: u64, time: u64) -> bool {
        if self.clock == 0 {
            return time.saturating_sub(first) >= self.active;
        }
        // A multiple of `clock` is later than `last`, and not later than `time`.
        time > last && time % self.clock < time - last
    }
}

/// The first packet timestamp on any CPU, for packets on CPUs that have not seen a timestamp yet.
#[derive(Clone, Debug)]
pub(super) struct FirstTime(Arc<AtomicU64>);

impl FirstTime {
    const UNKNOWN: u64 = u64::MAX;

    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::UNKNOWN)))
    }

    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|time| *time != Self::UNKNOWN)
    }

    // `Relaxed` suffices, because the first timestamp is the only shared value.
    fn set(&self, time: u64) {
        let _ = self.0.compare_exchange(Self::UNKNOWN, time, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The packet clock, in nanoseconds since 1970.
///
/// A packet without a timestamp has the previous packet's time. If no packet has a timestamp, all
/// times are those of the packet path's own clock. Between packets, the packet clock advances like
/// the packet path's own clock.
#[derive(Debug)]
pub(super) struct Clock {
    /// The wall-clock time at which the packet path's clock was 0.
    epoch: u64,
    now: u64,
    noted: Timestamp,
    packet_time: Option<u64>,
    first_time: FirstTime,
    began: bool,
    /// If a packet is earlier than its predecessor by more than this, another recording has begun.
    back_max: u64,
}

impl Clock {
    pub(super) fn new(epoch: u64, back_max: u64, first_time: FirstTime) -> Self {
        Self { epoch, now: epoch, noted: Timestamp::ZERO, packet_time: None, first_time, began: false, back_max }
    }

    /// Returns the time for packets without a timestamp at the start of a batch. `first` is the
    /// first timestamp in the batch.
    pub(super) fn packet_time(&self, first: impl FnOnce() -> Option<u64>) -> Option<u64> {
        self.packet_time.or_else(first).or_else(|| self.first_time.get())
    }

    #[inline(always)]
    pub(super) fn of_packet(&self, latest: Option<u64>, path: Timestamp) -> u64 {
        latest.unwrap_or_else(|| self.epoch + path.as_nanos())
    }

    /// `timed` is true if the last packet of the batch or an earlier packet had a timestamp.
    #[inline]
    pub(super) fn note(&mut self, time: u64, timed: bool, path: Timestamp) {
        let first = timed && self.packet_time.is_none();
        if time >= self.now || self.now - time > self.back_max || first {
            self.now = time;
            self.noted = path;
        }
        if first {
            self.first_time.set(time);
        }
        self.packet_time = if timed { Some(time) } else { self.packet_time };
        self.began = true;
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn of_packets(&self) -> u64 {
        if self.began { self.now } else { 0 }
    }

    pub(super) fn advance(&mut self, path: Timestamp) {
        self.now = self.now.saturating_add(nanos(path.since(self.noted)));
        self.noted = path;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * S)
    }

    fn clock() -> Clock {
        Clock::new(1000 * S, 60 * S, FirstTime::new())
    }

    #[test]
    fn without_times_it_is_the_path_clock() {
        let mut clock = clock();
        assert_eq!((clock.packet_time(|| None), clock.of_packet(None, at(3))), (None, 1003 * S));
        clock.note(1003 * S, false, at(3));
        clock.advance(at(5));
        assert_eq!((clock.now(), clock.packet_time(|| None)), (1005 * S, None));
    }

    #[test]
    fn with_times_it_is_the_recording() {
        let mut clock = clock();
        // The packets were recorded before the run: the first timestamp sets the clock back.
        assert_eq!(clock.packet_time(|| Some(990 * S)), Some(990 * S));
        clock.note(990 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        clock.note(989 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        assert_eq!(clock.packet_time(|| Some(7)), Some(989 * S));
        // The next capture file was recorded a day earlier.
        clock.note(100 * S, true, at(2));
        assert_eq!(clock.now(), 100 * S);
        clock.advance(at(4));
        assert_eq!(clock.now(), 102 * S);
    }

    #[test]
    fn the_time_of_another_cpu_is_better_than_none() {
        let (mut one, first_time) = (clock(), FirstTime::new());
        let mut others = [(); 2].map(|()| Clock::new(1000 * S, 60 * S, first_time.clone()));
        others[0].note(990 * S, true, at(1));
        others[0].note(991 * S, true, at(1));
        assert_eq!(others[1].packet_time(|| None), Some(990 * S));
        assert_eq!(others[1].packet_time(|| Some(5)), Some(5));
        one.note(1001 * S, false, at(1));
        assert_eq!(one.packet_time(|| None), None);
    }
}
