//! When flows end by time, and what time it is.

use std::time::Duration;

use steerage::Timestamp;

/// How long a TCP flow that was closed is waited on, for its last acknowledgement and for what was sent twice: longer than
/// most round trips and than a first retransmission (RFC 6298 begins with 1 s).
pub const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer than its timeout a flow stays in the table: packets of several interfaces may come a little out of the
/// order of their times and must still find it. It makes no difference to records, which timeouts cut by the packets' own
/// times.
pub const LATE_MAX: Duration = Duration::from_secs(1);

/// In nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) active: u64,
    pub(super) inactive: u64,
    /// After TCP's last word.
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

/// The time of the packets, in nanoseconds since 1970: of those that have one, by what their device noted; of the others, by
/// the path's clock. Between packets it goes on with the path's clock.
#[derive(Debug)]
pub(super) struct Clock {
    /// When the path's clock began.
    epoch: u64,
    now: u64,
    /// What the path's clock said then.
    noted: Timestamp,
    /// Whether packets have times.
    timed: bool,
    /// Whether there was any packet.
    began: bool,
    /// How far a packet's time may lie behind: further back it is the time of another recording.
    back_max: u64,
}

impl Clock {
    pub(super) fn new(epoch: u64, back_max: u64) -> Self {
        Self { epoch, now: epoch, noted: Timestamp::ZERO, timed: false, began: false, back_max }
    }

    /// The time of a packet.
    #[inline(always)]
    pub(super) fn of_packet(&self, time: Option<u64>, path: Timestamp) -> u64 {
        match time {
            Some(time) => time,
            // The others have times: what is closest.
            None if self.timed => self.now,
            None => self.epoch + path.as_nanos(),
        }
    }

    /// Takes note of a batch's last packet.
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

    /// What it is by the last packet.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The same, of packets alone: 0 if there were none.
    pub(super) fn of_packets(&self) -> u64 {
        if self.began { self.now } else { 0 }
    }

    /// Goes on to what the path's clock says.
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
        // Recorded before the run: the first time counts though it lies behind.
        clock.note(990 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        assert_eq!((clock.of_packet(Some(7), at(9)), clock.of_packet(None, at(9))), (7, 990 * S));
        clock.note(989 * S, true, at(1));
        assert_eq!(clock.now(), 990 * S);
        // The next file was recorded the day before.
        clock.note(100 * S, true, at(2));
        assert_eq!(clock.now(), 100 * S);
        clock.advance(at(4));
        assert_eq!(clock.now(), 102 * S);
    }
}
