//! The current distance between two CPUs. On a virtual machine the distance changes over time, and
//! with it the cost of sharing memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// The one-way time of a cache line that separates near from far if all times of an experiment are
/// alike. In that case it names the placement of all runs, and separates none of them. Measured: 49
/// to 80 ns near, and 120 to 220 ns far.
const FAR_NANOS: f64 = 100.0;

/// The smallest ratio of two typical times that count as near and far. On the measured hosts near
/// and far differ by a factor of at least 2, and times of one kind differ by at most 1.6.
const APART_MIN: f64 = 1.7;

/// The number of round trips of the cache line.
const ROUNDS: u64 = 3_000;

/// The distance between the CPUs during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The CPUs share a cache.
    Near,
    /// The CPUs share no cache.
    Far,
    /// The distance changed during the run, so the run is not used.
    Moved,
    /// Only one CPU was used.
    Alone,
}

/// The distance between the CPUs before a run and after it: the one-way time of a cache line, in
/// nanoseconds.
pub type Apart = [f64; 2];

/// The placement of each run. The times themselves show whether there are two placements: if the
/// times of a host only scatter, there is one.
pub fn classify(runs: &[Apart]) -> Vec<Placement> {
    let limit = limit(runs.iter().flatten().copied().collect());
    let placement = |run: &Apart| match run.map(|nanos| nanos > limit) {
        [false, false] => Placement::Near,
        [true, true] => Placement::Far,
        _ => Placement::Moved,
    };
    runs.iter().map(placement).collect()
}

/// The time that separates near from far. The times are divided into two parts so that the
/// differences within each part are smallest (by logarithm, as Otsu's method divides the pixels of
/// a picture). If the medians of both parts are alike, there is only one placement.
fn limit(mut times: Vec<f64>) -> f64 {
    times.retain(|nanos| nanos.is_finite() && *nanos > 0.0);
    times.sort_by(f64::total_cmp);
    let median = |part: &[f64]| part[part.len() / 2];
    let logs: Vec<f64> = times.iter().map(|nanos| nanos.ln()).collect();
    let between = |at: &usize| {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (low, high) = logs.split_at(*at);
        low.len() as f64 * high.len() as f64 * (mean(high) - mean(low)).powi(2)
    };
    let Some(at) = (1..times.len()).max_by(|a, b| between(a).total_cmp(&between(b))) else { return FAR_NANOS };
    let (near, far) = (median(&times[..at]), median(&times[at..]));
    if far / near >= APART_MIN {
        return (near * far).sqrt();
    }
    if median(&times) > FAR_NANOS { 0.0 } else { f64::INFINITY }
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

/// The distance of `cpus`: the median one-way time of a cache line, in nanoseconds, between the
/// first CPU and the farthest of the others. 0 if there is only one CPU.
///
/// # Errors
/// If this process may not use one of the CPUs.
pub fn probe(cpus: &[usize]) -> Result<f64, BenchError> {
    let Some((first, others)) = cpus.split_first() else { return Ok(0.0) };
    let mut farthest: f64 = 0.0;
    for other in others {
        farthest = farthest.max(one_way_nanos(*first, *other)?);
    }
    Ok(farthest)
}

/// The shared state of the two threads, which pass a ball back and forth.
struct Game {
    ball: Ball,
    /// Set if one of the threads cannot take part.
    over: AtomicBool,
}

#[repr(align(128))]
struct Ball(AtomicU64);

/// The number of checks for the ball before a check for the end of the game, which reads another
/// cache line.
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
    /// Waits for the ball, and returns whether it came. Acquire and release pair with the other
    /// side's operations. The game shares no data other than the ball.
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

    /// Times measured on this kind of machine: near, far, and a few during which the host moved a
    /// CPU.
    const EPYC: [f64; 16] =
        [58.0, 61.0, 60.0, 57.5, 63.0, 59.0, 196.0, 204.0, 199.5, 188.0, 207.0, 62.0, 60.5, 131.0, 95.0, 201.0];

    fn runs(times: &[f64]) -> Vec<Apart> {
        times.windows(2).map(|pair| [pair[0], pair[1]]).collect()
    }

    #[test]
    fn two_kinds_of_times_are_near_and_far() {
        use Placement::{Far, Moved, Near};
        let found = classify(&runs(&EPYC));
        let should_be = [Near, Near, Near, Near, Near, Moved, Far, Far, Far, Far, Moved, Near, Moved, Moved, Moved];
        assert_eq!(found, should_be);
        assert_eq!(classify(&[[60.0, 61.0], [200.0, 190.0]]), [Near, Far]);
    }

    #[test]
    fn times_that_only_scatter_are_one_kind() {
        // An Intel host: always 49 to 80 ns.
        let intel: Vec<f64> = (0..40).map(|nth| 49.0 + f64::from(nth * 17 % 32)).collect();
        assert!(classify(&runs(&intel)).iter().all(|placement| *placement == Placement::Near));
        assert!(classify(&[[49.0, 80.0], [80.0, 49.0]]).iter().all(|placement| *placement == Placement::Near));
        let far: Vec<f64> = intel.iter().map(|nanos| nanos * 3.0).collect();
        assert!(classify(&runs(&far)).iter().all(|placement| *placement == Placement::Far));
        assert_eq!(classify(&[[150.0, 160.0]]), [Placement::Far]);
        assert_eq!(classify(&[]), []);
    }

    #[test]
    fn a_disturbed_probe_spoils_its_own_runs_alone() {
        let mut times = vec![60.0; 20];
        times[7] = 900.0;
        let moved = classify(&runs(&times)).iter().filter(|placement| **placement == Placement::Moved).count();
        assert_eq!(moved, 2);
    }

    #[test]
    fn a_cpu_that_is_not_there_is_an_error_and_no_hang() {
        let nowhere = CpuSet::count() - 1;
        assert!(matches!(probe(&[0, nowhere]), Err(BenchError::Pin { cpu, .. }) if cpu == nowhere));
        assert!(matches!(probe(&[nowhere, 0]), Err(BenchError::Pin { cpu, .. }) if cpu == nowhere));
        assert_eq!(probe(&[0]).unwrap(), 0.0);
    }
}
