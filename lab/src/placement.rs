//! Measures the distance between CPUs, which changes over time on a virtual machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::LabError;

const ROUNDS: u64 = 3_000;

/// Pins the calling thread to a CPU.
///
/// # Errors
/// Returns an error if this process may not use the CPU.
pub fn pin(cpu: usize) -> Result<(), LabError> {
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|error| LabError::Pin { cpu, error })
}

/// Returns the distance of `cpus`: the median one-way time in nanoseconds for a cache line from the
/// first CPU to the farthest one, or 0 if there is only one CPU.
///
/// # Errors
/// Returns an error if this process may not use one of the CPUs.
pub fn probe(cpus: &[usize]) -> Result<f64, LabError> {
    let Some((first, others)) = cpus.split_first() else { return Ok(0.0) };
    let mut farthest: f64 = 0.0;
    for other in others {
        farthest = farthest.max(one_way_nanos(*first, *other)?);
    }
    Ok(farthest)
}

/// Two threads pass a cache line, the *ball*, back and forth.
struct Game {
    ball: Ball,
    over: AtomicBool,
}

#[repr(align(128))]
struct Ball(AtomicU64);

/// The number of checks of `ball` (a number that two threads pass back and forth) between two
/// checks of `over`, which is in another cache line.
const LOOKS: u32 = 4096;

fn one_way_nanos(one: usize, other: usize) -> Result<f64, LabError> {
    let game = Game { ball: Ball(AtomicU64::new(0)), over: AtomicBool::new(false) };
    let take_part = |cpu| pin(cpu).inspect_err(|_| game.over.store(true, Ordering::Relaxed));
    thread::scope(|scope| {
        let theirs = scope.spawn(|| take_part(other).map(|()| game.answer()));
        let mine = scope.spawn(|| take_part(one).map(|()| game.serve()));
        theirs.join().map_err(|_| LabError::Panicked)??;
        mine.join().map_err(|_| LabError::Panicked)?
    })
}

impl Game {
    /// The acquire load pairs with the other thread's release store. The threads share only `ball`,
    /// whose number they pass back and forth, and `over`.
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
    fn a_cpu_that_is_not_there_is_an_error_and_no_hang() {
        let nowhere = CpuSet::count() - 1;
        assert!(matches!(probe(&[0, nowhere]), Err(LabError::Pin { cpu, .. }) if cpu == nowhere));
        assert!(matches!(probe(&[nowhere, 0]), Err(LabError::Pin { cpu, .. }) if cpu == nowhere));
        assert_eq!(probe(&[0]).unwrap(), 0.0);
    }
}
