//! How long a cache line takes from one CPU to another, by handing one to and fro.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Topology;
use crate::cpu::{CpuId, CpuMask, pin};

/// Round trips that are timed together: two readings of the clock (25 ns each) beside 32 trips of 100 ns and more.
const ROUND_TRIPS: u32 = 32;

/// Of so many such times the median counts: half of them may be spoiled by whatever else runs.
const SAMPLES: usize = 31;

/// The longest that a pair is tried for. It takes 0.1 to 0.4 ms where both CPUs are free; where one is taken by another thread
/// for a time slice, nothing can be told, and it is given up.
pub const PAIR_TIME_MAX: Duration = Duration::from_millis(5);

/// The most pairs that are measured at a time: 160 ms at worst, 15 ms as a rule. Of more CPUs some of each cache are.
pub const PAIRS_MAX: usize = 32;

/// How often whoever waits looks at the clock, in reads of the line: often enough to keep to the time, and seldom enough for the
/// clock not to be what is measured.
const CLOCK_EVERY: u32 = 256;

/// The answering thread is not there yet; it is there; it is to go, or will not come. Between them the numbers of the trips.
const ABSENT: u32 = 0;
const READY: u32 = 1;
const END: u32 = u32::MAX;

impl Topology {
    /// Measures how long a cache line takes between `owner` and each of `candidates`, by two threads that are pinned for it and
    /// spin: [`PAIR_TIME_MAX`] a pair at most, besides the time that they wait for their CPUs, and [`PAIRS_MAX`] pairs; of more
    /// CPUs a part of those that share a cache stands for all. [`joining_order`](Self::joining_order) goes by it from then on. A pair that could not be
    /// measured, since a CPU is busy or must not be used, is left as it was. Returns how many were.
    ///
    /// On virtual machines it is worth repeating: the host moves their CPUs about, and two that were 60 ns apart may be 200 ns apart
    /// a second later.
    pub fn measure(&mut self, owner: CpuId, candidates: &CpuMask) -> usize {
        let mut measured = 0;
        for cpu in self.sample(owner, candidates) {
            if let Some(latency) = one_way(owner, cpu) {
                self.set_latency(owner, cpu, latency);
                measured += 1;
            }
        }
        measured
    }

    pub(super) fn set_latency(&mut self, one: CpuId, other: CpuId, latency: Duration) {
        self.latencies.insert((one.min(other), one.max(other)), latency);
    }

    /// Whom to measure: all of few; of many as many of each cache, in turn.
    pub(super) fn sample(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let mut by_cache: BTreeMap<Option<CpuId>, Vec<CpuId>> = BTreeMap::new();
        for cpu in candidates.iter().filter(|cpu| *cpu != owner) {
            by_cache.entry(self.cache(cpu).and_then(CpuMask::first)).or_default().push(cpu);
        }
        let longest = by_cache.values().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|at| by_cache.values().filter_map(move |cpus| cpus.get(at).copied()));
        in_turn.take(PAIRS_MAX).collect()
    }
}

/// Half of a round trip. `None` if it did not come to enough of them.
fn one_way(asking: CpuId, answering: CpuId) -> Option<Duration> {
    let line = Line::default();
    thread::scope(|scope| {
        let name = || thread::Builder::new().name("latency".to_owned());
        // It goes when the other does, whatever came of it.
        let answers = || if pin(answering).is_ok() { line.answer(None) } else { line.end() };
        name().spawn_scoped(scope, answers).ok()?;
        let asks = name().spawn_scoped(scope, || {
            let median = pin(asking).ok().and_then(|()| ask(&line));
            line.end();
            median
        });
        match asks {
            Ok(asks) => asks.join().ok().flatten(),
            Err(_) => {
                line.end();
                None
            }
        }
    })
}

fn ask(line: &Line) -> Option<Duration> {
    let deadline = Instant::now() + PAIR_TIME_MAX;
    // As in `answer`: the other may still be on this CPU.
    while !line.is_ready() && !line.is_over() && Instant::now() < deadline {
        thread::yield_now();
    }
    let mut samples = line.ask(SAMPLES, ROUND_TRIPS, deadline)?;
    samples.sort_unstable();
    Some(samples[SAMPLES / 2])
}

/// A line of its own that goes to and fro between two CPUs: 128 bytes, since some machines fetch lines in pairs.
///
/// Relaxed throughout: it carries nothing but its own number, which both see in one order, and no other memory hangs on it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Line(AtomicU32);

impl Line {
    /// Gives each trip back as soon as it comes, until the other ends it; or until then, by who has this CPU to itself.
    pub(crate) fn answer(&self, deadline: Option<Instant>) {
        // Not over the end: whoever has stored that reads no more.
        let _ = self.0.compare_exchange(ABSENT, READY, Ordering::Relaxed, Ordering::Relaxed);
        loop {
            for _ in 0..CLOCK_EVERY {
                match self.0.load(Ordering::Relaxed) {
                    END => return,
                    // The other may have been started on this CPU, and has to run to leave it.
                    READY if deadline.is_none() => thread::yield_now(),
                    trip if is_going(trip) => {
                        let _ = self.0.compare_exchange(trip, trip + 1, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return self.end();
            }
        }
    }

    /// Whether somebody stands ready to answer.
    pub(crate) fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed) == READY
    }

    /// Whether one of them has ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == END
    }

    /// Nobody asks or answers from here on.
    pub(crate) fn end(&self) {
        self.0.store(END, Ordering::Relaxed);
    }

    /// How long one way takes: so often, each time the mean of so many round trips. `None` if nobody answers until then.
    pub(crate) fn ask(&self, samples: usize, round_trips: u32, deadline: Instant) -> Option<Vec<Duration>> {
        self.wait_for(READY, deadline)?;
        let mut trip = READY;
        let sample = |_| {
            let start = Instant::now();
            for _ in 0..round_trips {
                trip += 1;
                self.0.store(trip, Ordering::Relaxed);
                trip += 1;
                self.wait_for(trip, deadline)?;
            }
            Some(start.elapsed() / (2 * round_trips))
        };
        (0..samples).map(sample).collect()
    }

    fn wait_for(&self, awaited: u32, deadline: Instant) -> Option<()> {
        loop {
            for _ in 0..CLOCK_EVERY {
                match self.0.load(Ordering::Relaxed) {
                    found if found == awaited => return Some(()),
                    END => return None,
                    _ => {}
                }
            }
            if Instant::now() >= deadline {
                return None;
            }
        }
    }
}

/// Trips go out by even numbers from 2 on, and come back by the odd ones.
fn is_going(trip: u32) -> bool {
    trip > READY && trip % 2 == 0
}

const _: () = {
    assert!(PAIR_TIME_MAX.as_millis() as usize * PAIRS_MAX <= 200);
    assert!(SAMPLES as u32 * ROUND_TRIPS * 2 + 2 < END);
};
