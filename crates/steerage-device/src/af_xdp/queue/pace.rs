//! Decides when a queue's CPU runs the driver, and for how long frames may wait in the ring.

use std::time::Duration;

use steerage::Timestamp;

use super::super::COALESCE_MIN;

/// If a busily polled queue has frames in its ring, the queue runs the driver at least once in this
/// time. At 10 million packets per second, a card's ring of 2,048 frames is full after 200 us.
const STALL_MAX: Duration = Duration::from_micros(150);

/// If more than one fourth of the ring fills up during a wait, the next wait is half as long, and
/// otherwise twice as long. At a constant rate of frames, a wait therefore fills at most half of
/// the ring.
const COALESCE_PART: u64 = 4;

/// The time by which the kernel prolongs a sleep (`PR_SET_TIMERSLACK` of prctl(2)).
const TIMER_SLACK: Duration = Duration::from_micros(50);

#[derive(Clone, Copy, Debug)]
pub(super) struct BusyPolling {
    /// The time between two runs of the driver (system calls) while no frames arrive.
    interval: Duration,
    last: Timestamp,
}

impl BusyPolling {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, last: Timestamp::ZERO }
    }

    /// Returns true if the driver should run. `found`: the poll found frames. `more`: the poll left
    /// frames in the ring. If the poll emptied the socket's rx ring, the card's ring may have more
    /// frames. Frames in the ring are handled first, but only for [`STALL_MAX`], because the card's
    /// ring fills up meanwhile.
    pub(super) fn is_due(&mut self, now: Timestamp, found: bool, more: bool) -> bool {
        let since = now.since(self.last);
        let is_due = match (found, more) {
            (_, true) => since >= STALL_MAX,
            (true, false) => true,
            (false, false) => since >= self.interval,
        };
        if is_due {
            self.last = now;
        }
        is_due
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Coalescing {
    longest: Duration,
    wait: Duration,
    waits: bool,
    /// The time of the last poll with frames, and the number of frames delivered until then.
    last: Timestamp,
    delivered: u64,
}

impl Coalescing {
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, wait: longest, waits: false, last: Timestamp::ZERO, delivered: 0 }
    }

    /// Returns how long frames may wait after a poll that emptied the ring. `delivered` is the
    /// total number of delivered frames. Returns `None` (the next frame wakes the CPU) if the poll
    /// found no frame, or if frames arrive at intervals longer than `wait`.
    pub(super) fn after_poll(&mut self, now: Timestamp, delivered: u64, ring: u32) -> Option<Duration> {
        let arrived = delivered - std::mem::replace(&mut self.delivered, delivered);
        let waited = std::mem::replace(&mut self.waits, false);
        if arrived == 0 {
            return None;
        }
        let gap = now.since(std::mem::replace(&mut self.last, now));
        if waited {
            let is_full = arrived > u64::from(ring) / COALESCE_PART;
            let next = if is_full { self.wait / 2 } else { self.wait * 2 };
            self.wait = next.clamp(COALESCE_MIN, self.longest);
        }
        self.waits = waited || gap <= self.wait + TIMER_SLACK;
        self.waits.then_some(self.wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_fills_up_shortens_the_wait() {
        const LONGEST: Duration = Duration::from_millis(8);
        let mut coalescing = Coalescing::new(LONGEST);
        let (ring, mut delivered, mut now) = (1024, 0, Timestamp::ZERO);
        // The rates are in frames per millisecond.
        for (rate, least, most) in [(20, 8.0, 8.0), (100, 2.0, 4.0), (1_000_000, 0.001, 0.001), (1, 8.0, 8.0)] {
            let mut wait = coalescing.wait;
            for _ in 0..20 {
                now = now + wait;
                delivered += ((f64::from(rate) * wait.as_secs_f64() * 1e3) as u64).max(1);
                wait = coalescing.after_poll(now, delivered, ring).unwrap();
            }
            let millis = wait.as_secs_f64() * 1e3;
            assert!(least <= millis && millis <= most, "{rate} frames per millisecond: {wait:?}");
        }
    }

    #[test]
    fn the_driver_runs_at_its_interval_and_after_a_stall() {
        let mut busy = BusyPolling::new(Duration::from_micros(20));
        let mut at = |micros, found, more| busy.is_due(Timestamp::ZERO + Duration::from_micros(micros), found, more);
        assert_eq!([5, 20, 25, 39, 40].map(|micros| at(micros, false, false)), [false, true, false, false, true]);
        assert_eq!([60, 189, 190, 300].map(|micros| at(micros, true, true)), [false, false, true, false]);
        assert_eq!([at(301, true, false), at(302, true, false), at(303, false, false)], [true, true, false]);
    }

    /// If frames arrive at long intervals, a wait for further frames would only add a second sleep.
    #[test]
    fn only_frames_at_short_intervals_wait() {
        let wait = Duration::from_micros(50);
        let mut coalescing = Coalescing::new(wait);
        let mut at = |micros, delivered| {
            let now = Timestamp::ZERO + Duration::from_micros(micros);
            coalescing.after_poll(now, delivered, 1024)
        };
        assert_eq!([at(1000, 1), at(2000, 2), at(2001, 2), at(3000, 3)], [None; 4]);
        // Coalescing goes on until 50 us pass without a new frame.
        assert_eq!([at(3010, 4), at(3060, 5), at(3300, 6)], [Some(wait); 3]);
        assert_eq!([at(3350, 6), at(3450, 7), at(3460, 8)], [None, None, Some(wait)]);
    }
}
