//! Clock, sleep and random numbers, of a machine or of a simulator.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use steerage_flow::Timestamp;
use steerage_mem::park::{self, Bell};

/// Provides the clock, sleep and random numbers. Each CPU has its own.
///
/// ```
/// # mod steerage { pub use steerage_flow::Timestamp; pub mod threads { pub use {steerage_core::platform::Platform, steerage_mem::park::Bell}; } }
/// use std::io;
/// use std::os::fd::BorrowedFd;
/// use std::time::Duration;
///
/// use steerage::Timestamp;
/// use steerage::threads::{Bell, Platform};
///
/// /// Virtual time: a sleep takes no time, and the clock jumps to its end.
/// struct Virtual(Timestamp);
///
/// impl Platform for Virtual {
///     fn now(&self) -> Timestamp {
///         self.0
///     }
///
///     fn park(&mut self, _bell: &Bell, _devices: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()> {
///         self.0 = until.unwrap_or(self.0 + Duration::from_millis(1));
///         Ok(())
///     }
///
///     fn random(&mut self) -> u64 {
///         4
///     }
/// }
/// ```
pub trait Platform {
    /// The time now. All CPUs read the same clock.
    fn now(&self) -> Timestamp;

    /// Sleeps until the bell rings, a device is readable, or `until` has come (`None`: no limit).
    ///
    /// # Errors
    /// Returns the kernel's error if the CPU cannot wait for one of the `devices`.
    fn park(&mut self, bell: &Bell, devices: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()>;

    /// Returns a random number, which decides which backlog a CPU handles first.
    fn random(&mut self) -> u64;
}

/// The [`Platform`] of a real machine. For an example, see [`Softnet`](crate::softnet::Softnet).
#[derive(Clone, Debug)]
pub struct Machine {
    start: Instant,
    random: fastrand::Rng,
}

impl Machine {
    /// All CPUs of an instance share the `start` of the clock, but have different seeds.
    pub fn new(start: Instant, seed: u64) -> Self {
        Self { start, random: fastrand::Rng::with_seed(seed) }
    }
}

impl Platform for Machine {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    fn park(&mut self, bell: &Bell, devices: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()> {
        let timeout = until.map(|until| until.since(self.now()));
        park::wait(bell, devices, timeout)
    }

    fn random(&mut self) -> u64 {
        // This random number may be predictable, because it only decides in which order backlogs
        // are handled.
        self.random.u64(..)
    }
}
