//! What the path needs of the world around it, so that the same path runs on a machine and in a simulator.

use std::fmt;
use std::io;
use std::ops::Add;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant, SystemTime};

use steerage_mem::park::{self, Bell};

/// A point in time on the platform's clock, in nanoseconds since some fixed start. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// `nanos` nanoseconds after the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is before.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// When a frame was received, as its device noted: nanoseconds since 1970-01-01 00:00 UTC.
///
/// Another clock than [`Timestamp`]'s: it tells the time of day, may be set back, and in a capture is that of another
/// machine in another year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// `nanos` nanoseconds after 1970-01-01 00:00 UTC.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; nothing if it is before.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
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

/// Clock, sleep and chance. Each CPU has one of its own.
pub trait Platform {
    /// The time now. The same clock on all CPUs.
    fn now(&self) -> Timestamp;

    /// Sleeps until the bell rings, a device is readable or `until` has come (`None`: no limit). May end early.
    ///
    /// # Errors
    /// The kernel's, if it cannot wait on one of `devices`.
    fn park(&mut self, bell: &Bell, devices: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()>;

    /// A number by chance: where the CPUs' order of service starts. In a simulator it comes from the seed.
    fn random(&mut self) -> u64;
}

/// The machine we run on.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    start: Instant,
    chance: u64,
}

impl Machine {
    /// A clock that starts at `start`, shared by all CPUs of an instance. `seed`: another one for each of them.
    pub fn new(start: Instant, seed: u64) -> Self {
        // The golden ratio's bits, as usual, so that small seeds are far apart and none is 0.
        Self { start, chance: (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) }
    }
}

impl Platform for Machine {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp(self.start.elapsed().as_nanos() as u64)
    }

    fn park(&mut self, bell: &Bell, devices: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()> {
        let timeout = until.map(|until| until.since(self.now()));
        park::wait(bell, devices, timeout)
    }

    fn random(&mut self) -> u64 {
        // xorshift64: it spreads service, it guards nothing.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }
}
