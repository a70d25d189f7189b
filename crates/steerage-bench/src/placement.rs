//! How far two CPUs are apart at the moment. On a virtual machine the distance changes over time, and with it the cost of sharing
//! memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// One-way time of a cache line above which two CPUs share no cache. Measured 60 ns near and 200 ns far.
const FAR_NANOS: f64 = 110.0;

/// The number of round trips of the cache line.
const ROUNDS: u64 = 3_000;

/// How far the CPUs were apart during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// They share a cache.
    Near,
    /// They share none.
    Far,
    /// It changed during the run, so the run is not used.
    Moved,
    /// Only one CPU was used.
    Alone,
}

impl Placement {
    /// The placement, from the one-way times before and after the run.
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

/// Pins the calling thread to a CPU.
///
/// # Errors
/// If this process may not use the CPU.
pub fn pin(cpu: usize) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| BenchError::Pin { cpu, error })
}

/// How far `cpus` are apart: the median time that a cache line takes one way, in nanoseconds, from the first of them to that
/// which is farthest. 0 where there is only one.
///
/// # Errors
/// If this process may not use one of them.
pub fn probe(cpus: &[usize]) -> Result<f64, BenchError> {
    let Some((first, others)) = cpus.split_first() else { return Ok(0.0) };
    let mut farthest: f64 = 0.0;
    for other in others {
        farthest = farthest.max(one_way_nanos(*first, *other)?);
    }
    Ok(farthest)
}

/// What two threads play with.
struct Game {
    ball: Ball,
    /// One of them cannot play.
    over: AtomicBool,
}

#[repr(align(128))]
struct Ball(AtomicU64);

/// How often it is looked for the ball before it is looked for the end of the game, which costs a line of its own.
const LOOKS: u32 = 4096;

fn one_way_nanos(one: usize, other: usize) -> Result<f64, BenchError> {
    let game = Game { ball: Ball(AtomicU64::new(0)), over: AtomicBool::new(false) };
    let take_part = |cpu| pin(cpu).inspect_err(|_| game.over.store(true, Ordering::Relaxed));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| take_part(other).map(|()| game.answer()));
        let mine = scope.spawn(|| take_part(one).map(|()| game.serve()));
        theirs.join().map_err(|_| BenchError::Panicked)??;
        mine.join().map_err(|_| BenchError::Panicked)?
    })
}

impl Game {
    /// Waits for the ball: whether it came. Acquire and release pair with the other side's: the ball is all there is.
    fn is_there(&self, number: u64) -> bool {
        loop {
            for _ in 0..LOOKS {
                if self.ball.0.load(Ordering::Acquire) == number {
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
        }
    }

    fn answer(&self) {
        let rounds = (0..ROUNDS).take_while(|round| self.is_there(2 * round + 1));
        rounds.for_each(|round| self.ball.0.store(2 * round + 2, Ordering::Release));
    }

    fn serve(&self) -> f64 {
        let mut nanos: Vec<u64> = Vec::with_capacity(ROUNDS as usize);
        for round in 0..ROUNDS {
            let start = Instant::now();
            self.ball.0.store(2 * round + 1, Ordering::Release);
            if !self.is_there(2 * round + 2) {
                return 0.0;
            }
            nanos.push(start.elapsed().as_nanos() as u64);
        }
        nanos.sort_unstable();
        nanos[nanos.len() / 2] as f64 / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_what_was_far_before_and_after() {
        assert_eq!(Placement::of(60.0, 61.0), Placement::Near);
        assert_eq!(Placement::of(200.0, 180.0), Placement::Far);
        assert_eq!(Placement::of(60.0, 200.0), Placement::Moved);
        assert_eq!(Placement::of(200.0, 60.0), Placement::Moved);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_no_hang() {
        let nowhere = CpuSet::count() - 1;
        assert!(matches!(probe(&[0, nowhere]), Err(BenchError::Pin { cpu, .. }) if cpu == nowhere));
        assert!(matches!(probe(&[nowhere, 0]), Err(BenchError::Pin { cpu, .. }) if cpu == nowhere));
        assert_eq!(probe(&[0]).unwrap(), 0.0);
    }
}
