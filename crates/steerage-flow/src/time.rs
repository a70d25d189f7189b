use std::fmt;
use std::ops::Add;
use std::time::{Duration, SystemTime};

/// A point in time on a monotonic clock, in nanoseconds since a fixed start.
///
/// ```
/// use std::time::Duration;
/// use steerage_flow::Timestamp;
///
/// let start = Timestamp::from_nanos(1_500_000_000);
/// let later = start + Duration::from_millis(250);
/// assert_eq!(later.since(start), Duration::from_millis(250));
/// assert_eq!(start.since(later), Duration::ZERO);
/// assert_eq!(later.to_string(), "1.750000000");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// Creates the point in time `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns this point in time as nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later than `self`.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    #[inline]
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The time at which a device received a frame: nanoseconds since 1970-01-01 00:00 UTC.
///
/// A wall time cannot be compared with a [`Timestamp`]: the clock of wall times may be set back,
/// and the wall times in a capture are from the machine that wrote the capture.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use steerage_flow::WallTime;
///
/// let received = WallTime::from_nanos(1_700_000_000_000_000_000);
/// assert_eq!(SystemTime::from(received), SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// Creates the time `nanos` nanoseconds after 1970-01-01 00:00 UTC.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since 1970-01-01 00:00 UTC.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later than `self`.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A clock that follows the timestamps of packets, for state that expires. The clock never goes
/// backwards, even if packets of several interfaces arrive out of order.
///
/// A capture file is read much faster than its packets arrived, so the machine's clock does not
/// match the packets. Only [`see`](Self::see) advances a packet clock, and not a handler's tick (a
/// call without packets).
///
/// ```
/// use std::time::Duration;
/// use steerage_flow::{PacketClock, Timestamp, WallTime};
///
/// let mut clock = PacketClock::default();
/// // In a handler: clock.see(packet.time(), cpu.now())
/// let first = clock.see(Some(WallTime::from_nanos(1_000)), Timestamp::ZERO);
/// clock.see(Some(WallTime::from_nanos(60_000_000_000)), Timestamp::ZERO);
/// // A packet that comes late does not set the clock back.
/// clock.see(Some(WallTime::from_nanos(2_000)), Timestamp::ZERO);
/// assert!(clock.now().since(first) > Duration::from_secs(59));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketClock(WallTime);

impl PacketClock {
    /// Advances the clock to a packet's time, or to `now` (the time of the CPU that runs the
    /// handler) if the device records no times. Returns the new time.
    #[inline]
    pub fn see(&mut self, packet: Option<WallTime>, now: Timestamp) -> WallTime {
        self.0 = self.0.max(packet.unwrap_or(WallTime(now.0)));
        self.0
    }

    /// Returns the latest time of all packets so far.
    pub const fn now(&self) -> WallTime {
        self.0
    }
}

impl From<WallTime> for SystemTime {
    fn from(time: WallTime) -> Self {
        Self::UNIX_EPOCH + Duration::from_nanos(time.0)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp(self.0).fmt(f)
    }
}
