//! The timeouts of flows, and the packet clock.

use std::time::Duration;

use steerage::Timestamp;

/// How long a closed TCP flow stays in the table for its last acknowledgement and for
/// retransmissions. The value exceeds most round-trip times and the first retransmission timeout (1
/// s in RFC 6298).
pub const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a flow stays in the table after its timeout. Packets of several interfaces may arrive
/// slightly out of timestamp order, and must still find their flow. The records do not change,
/// because the packets' own timestamps decide at which time a record ends.
pub const LATE_MAX: Duration = Duration::from_secs(1);

/// The timeouts in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) active: u64,
    pub(super) inactive: u64,
    pub(super) closed: u64,
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Timeouts {
    pub(super) fn new(active: Duration, inactive: Duration) -> Self {
        let inactive = nanos(inactive).max(1);
        Self { active: nanos(active).max(1), inactive, closed: nanos(CLOSED_TIMEOUT).min(inactive) }
    }
}

/// The packet clock, in nanoseconds since 1970.
///
/// A packet's time is its device timestamp. The time of a packet without a device timestamp is the
/// time of the path's clock. Between packets, the packet clock advances with the path's clock.
#[derive(Debug)]
pub(super) struct Clock {
    /// The wall time at which the path's clock began.
    epoch: u64,
    now: u64,
    noted: Timestamp,
    timed: bool,
    began: bool,
    /// The furthest that a packet's time may go back. A packet with an earlier time belongs to
    /// another recording.
    back_max: u64,
}

impl Clock {
    pub(super) fn new(epoch: u64, back_max: u64) -> Self {
        Self { epoch, now: epoch, noted: Timestamp::ZERO, timed: false, began: false, back_max }
    }

    #[inline(always)]
    pub(super) fn of_packet(&self, time: Option<u64>, path: Timestamp) -> u64 {
        match time {
            Some(time) => time,
            // Other packets have timestamps, so the time of the last packet with a timestamp is the
            // best estimate.
            None if self.timed => self.now,
            None => self.epoch + path.as_nanos(),
        }
    }

    #[inline]
    pub(super) fn note(&mut self, time: u64, timed: bool, path: Timestamp) {
        let first = timed && !self.timed;
        if time >= self.now || self.now - time > self.back_max || first {
            self.now = time;
            self.noted = path;
        }
        self.timed |= timed;
        self.began = true;
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The current time of the clock, or 0 if no packet has arrived.
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

    #[test]
    fn without_times_it_is_the_path_clock() {
        let mut clock = Clock::new(1000 * S, 60 * S);
        assert_eq!(clock.of_packet(None, at(3)), 1003 * S);
        clock.note(1003 * S, false, at(3));
        clock.advance(at(5));
        assert_eq!(clock.now(), 1005 * S);
    }

    #[test]
    fn with_times_it_is_the_recording() {
        let mut clock = Clock::new(1000 * S, 60 * S);
        // The packets were recorded before the run. The first time sets the clock, although it is
        // earlier than the clock.
        clock.note(990 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        assert_eq!((clock.of_packet(Some(7), at(9)), clock.of_packet(None, at(9))), (7, 990 * S));
        clock.note(989 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        // The next capture file was recorded a day earlier.
        clock.note(100 * S, true, at(2));
        assert_eq!(clock.now(), 100 * S);
        clock.advance(at(4));
        assert_eq!(clock.now(), 102 * S);
    }
}
