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

/// A line of its own: 128 bytes, since some machines fetch lines in pairs.
#[repr(align(128))]
struct Line(AtomicU32);

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
    let line = Line(AtomicU32::new(ABSENT));
    thread::scope(|scope| {
        let name = || thread::Builder::new().name("latency".to_owned());
        name().spawn_scoped(scope, || answer(&line, answering)).ok()?;
        let asks = name().spawn_scoped(scope, || {
            let median = pin(asking).ok().and_then(|()| ask(&line));
            // The other goes whatever came of it.
            line.0.store(END, Ordering::Relaxed);
            median
        });
        match asks {
            Ok(asks) => asks.join().ok().flatten(),
            Err(_) => {
                line.0.store(END, Ordering::Relaxed);
                None
            }
        }
    })
}

// Relaxed throughout: the line carries nothing but its own number, which both see in one order, and no other memory hangs on it.

/// Gives each trip back as soon as it comes.
fn answer(line: &Line, cpu: CpuId) {
    if pin(cpu).is_err() {
        line.0.store(END, Ordering::Relaxed);
        return;
    }
    // Not over the end: whoever has stored that reads no more.
    let _ = line.0.compare_exchange(ABSENT, READY, Ordering::Relaxed, Ordering::Relaxed);
    loop {
        match line.0.load(Ordering::Relaxed) {
            END => return,
            // The other may have been started on this CPU, and has to run to leave it.
            READY => thread::yield_now(),
            trip if is_going(trip) => {
                let _ = line.0.compare_exchange(trip, trip + 1, Ordering::Relaxed, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Trips go out by even numbers from 2 on, and come back by the odd ones.
fn is_going(trip: u32) -> bool {
    trip > READY && trip % 2 == 0
}

fn ask(line: &Line) -> Option<Duration> {
    let deadline = Instant::now() + PAIR_TIME_MAX;
    // As above: the other may still be on this CPU.
    while line.0.load(Ordering::Relaxed) == ABSENT && Instant::now() < deadline {
        thread::yield_now();
    }
    wait_for(line, READY, deadline)?;
    let mut trip = 2;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            line.0.store(trip, Ordering::Relaxed);
            wait_for(line, trip + 1, deadline)?;
            trip += 2;
        }
        samples.push(start.elapsed());
    }
    samples.sort_unstable();
    Some(samples[SAMPLES / 2] / (2 * ROUND_TRIPS))
}

fn wait_for(line: &Line, awaited: u32, deadline: Instant) -> Option<()> {
    loop {
        for _ in 0..CLOCK_EVERY {
            match line.0.load(Ordering::Relaxed) {
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

const _: () = {
    assert!(PAIR_TIME_MAX.as_millis() as usize * PAIRS_MAX <= 200);
    assert!(SAMPLES as u32 * ROUND_TRIPS * 2 + 2 < END);
};
