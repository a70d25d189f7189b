//! Where two CPUs are from one another just now: on a virtual machine that changes, and costs with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// One-way time of a cache line above which two CPUs share no cache. Measured 60 ns near and 200 ns far.
const FAR_NANOS: f64 = 110.0;

/// How often the ball goes to and fro.
const ROUNDS: u64 = 3_000;

/// Where they were during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// They share a cache.
    Near,
    /// They don't.
    Far,
    /// It changed meanwhile: of no use.
    Moved,
    /// There is one CPU only.
    Alone,
}

impl Placement {
    /// From the one-way times before and after.
    pub fn of(before: f64, after: f64) -> Self {
        match (before > FAR_NANOS, after > FAR_NANOS) {
            (false, false) => Self::Near,
            (true, true) => Self::Far,
            _ => Self::Moved,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Moved => "moved",
            Self::Alone => "alone",
        })
    }
}

/// Pins the calling thread.
///
/// # Panics
/// If the machine does not have the CPU.
pub fn pin(cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).expect("a CPU number that fits the set");
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("a CPU that this process may use");
}

/// The median time that a line takes one way, in nanoseconds, from the calling, pinned thread to `cpu`.
pub fn one_way_nanos(cpu: usize) -> f64 {
    #[repr(align(128))]
    struct Ball(AtomicU64);
    let ball = Arc::new(Ball(AtomicU64::new(0)));
    let theirs = Arc::clone(&ball);
    let partner = std::thread::spawn(move || {
        pin(cpu);
        for round in 0..ROUNDS {
            // Acquire and release pair with the other side's: the ball is all there is.
            while theirs.0.load(Ordering::Acquire) != 2 * round + 1 {
                std::hint::spin_loop();
            }
            theirs.0.store(2 * round + 2, Ordering::Release);
        }
    });
    let mut nanos: Vec<u64> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            ball.0.store(2 * round + 1, Ordering::Release);
            while ball.0.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
            start.elapsed().as_nanos() as u64
        })
        .collect();
    partner.join().expect("the partner only plays ball");
    nanos.sort_unstable();
    nanos[nanos.len() / 2] as f64 / 2.0
}
