//! Measures how long a cache line takes from one CPU to another.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpu::{CpuId, pin};

/// The number of round trips of the cache line in a sample. A round trip takes at least 100 ns, and
/// reading the clock twice takes 50 ns.
const ROUND_TRIPS: u32 = 32;

/// The number of samples. The median of the samples is correct even if other work disturbs almost
/// half of them.
const SAMPLES: usize = 31;

/// The time limit for measuring one pair of CPUs. A measurement takes 0.1 to 0.4 ms if both CPUs
/// are free. A measurement ends without a result if another thread uses one of the CPUs for a whole
/// time slice.
pub const PAIR_TIME_MAX: Duration = Duration::from_millis(5);

/// The maximum number of pairs that one call measures, usually in 15 ms, at most in 160 ms.
pub const PAIRS_MAX: usize = 32;

/// The number of reads of the cache line between two readings of the clock. The number of reads is
/// small enough to keep the time limit, and so large that reading the clock does not disturb the
/// measurement.
const CLOCK_EVERY: u32 = 256;

// Values of the cache line. Values between `READY` and `END` count the line's trips from one CPU to
// the other.
/// The answering thread has not started yet.
const ABSENT: u32 = 0;
const READY: u32 = 1;
/// The measurement has ended, or one of the two threads cannot take part.
const END: u32 = u32::MAX;

/// Returns half of the time of a round trip, or `None` if there were too few samples.
pub(crate) fn one_way(asking: CpuId, answering: CpuId) -> Option<Duration> {
    let line = Line::default();
    thread::scope(|scope| {
        let name = || thread::Builder::new().name("latency".to_owned());
        // The thread that ends first makes the other thread end too.
        let answers = || if pin(answering).is_ok() { line.answer() } else { line.end() };
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
    let start = Instant::now();
    let clock = || start.elapsed();
    // The answering thread may still run on this thread's CPU: see `answer`.
    while !line.is_ready() && !line.is_over() && clock() < PAIR_TIME_MAX {
        thread::yield_now();
    }
    let mut samples: [Duration; SAMPLES] = line.ask(ROUND_TRIPS, &clock, PAIR_TIME_MAX)?;
    samples.sort_unstable();
    Some(samples[SAMPLES / 2])
}

/// A cache line that two CPUs pass back and forth. The type is 128 bytes long, because some
/// machines fetch cache lines in pairs.
///
/// All accesses are `Relaxed`: both CPUs see the values of one line in the same order, and no other
/// memory depends on the values.
///
/// ```
/// use std::thread;
/// use std::time::{Duration, Instant};
///
/// use steerage_topology::probe::Line;
///
/// let line = Line::default();
/// let start = Instant::now();
/// thread::scope(|scope| {
///     scope.spawn(|| line.answer());
///     // Three samples of 32 round trips each. `None` if a thread had no CPU.
///     let one_way: Option<[Duration; 3]> = line.ask(32, &|| start.elapsed(), Duration::from_secs(1));
///     line.end();
///     println!("a cache line takes {one_way:?}");
/// });
/// ```
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Line(AtomicU32);

impl Line {
    /// Sends the cache line back as soon as it arrives, until the other thread ends the
    /// measurement. The measuring thread and the answering thread may have been started on the same
    /// CPU.
    pub fn answer(&self) {
        // The measuring thread may still be on this CPU, and needs time to move to its own CPU.
        self.answer_while(thread::yield_now, || true);
    }

    /// Sends the cache line back as soon as it arrives, until the other thread ends the measurement
    /// or `clock` reaches `deadline`. No other thread may run on the calling thread's CPU.
    pub fn answer_until(&self, clock: &dyn Fn() -> Duration, deadline: Duration) {
        self.answer_while(std::hint::spin_loop, || clock() < deadline);
    }

    fn answer_while(&self, wait: impl Fn(), goes_on: impl Fn() -> bool) {
        // This thread must not overwrite `END`, which ends the measurement.
        let _ = self.0.compare_exchange(ABSENT, READY, Ordering::Relaxed, Ordering::Relaxed);
        loop {
            for _ in 0..CLOCK_EVERY {
                match self.0.load(Ordering::Relaxed) {
                    END => return,
                    READY => wait(),
                    trip if is_going(trip) => {
                        let _ = self.0.compare_exchange(trip, trip + 1, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    _ => std::hint::spin_loop(),
                }
            }
            if !goes_on() {
                return self.end();
            }
        }
    }

    /// Returns true if a thread is ready to answer.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed) == READY
    }

    /// Returns true if one of the threads has ended the measurement.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == END
    }

    /// Ends the measurement.
    pub fn end(&self) {
        self.0.store(END, Ordering::Relaxed);
    }

    /// Measures the time that the cache line takes to the other CPU in `SAMPLES` samples. Each
    /// sample is half of the mean time of `round_trips` round trips. `clock` returns the time since
    /// some fixed moment. Returns `None` if no thread answers before `clock` reaches `deadline`.
    /// Allocates no memory.
    pub fn ask<const SAMPLES: usize>(
        &self,
        round_trips: u32,
        clock: &dyn Fn() -> Duration,
        deadline: Duration,
    ) -> Option<[Duration; SAMPLES]> {
        self.wait_for(READY, clock, deadline)?;
        let mut trip = READY;
        let mut samples = [Duration::ZERO; SAMPLES];
        for sample in &mut samples {
            let start = clock();
            for _ in 0..round_trips {
                trip += 1;
                self.0.store(trip, Ordering::Relaxed);
                trip += 1;
                self.wait_for(trip, clock, deadline)?;
            }
            *sample = clock().saturating_sub(start) / (2 * round_trips);
        }
        Some(samples)
    }

    fn wait_for(&self, awaited: u32, clock: &dyn Fn() -> Duration, deadline: Duration) -> Option<()> {
        loop {
            for _ in 0..CLOCK_EVERY {
                match self.0.load(Ordering::Relaxed) {
                    found if found == awaited => return Some(()),
                    END => return None,
                    _ => {}
                }
            }
            if clock() >= deadline {
                return None;
            }
        }
    }
}

/// Returns true if the answering thread must reply to `trip`. The measuring thread stores even
/// numbers from 2, and the answering thread stores the next odd number.
fn is_going(trip: u32) -> bool {
    trip > READY && trip % 2 == 0
}

const _: () = {
    assert!(PAIR_TIME_MAX.as_millis() as usize * PAIRS_MAX <= 200);
    assert!(SAMPLES as u32 * ROUND_TRIPS * 2 + 2 < END);
};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn ticking() -> impl Fn() -> Duration {
        let read = Cell::new(0);
        move || Duration::from_nanos(read.replace(read.get() + 1))
    }

    #[test]
    fn a_cpu_that_is_left_alone_gives_up_at_its_deadline() {
        let (line, clock) = (Line::default(), ticking());
        line.answer_until(&clock, Duration::from_nanos(10));
        assert!(line.is_over() && clock() == Duration::from_nanos(11));
        let (line, clock) = (Line::default(), ticking());
        assert_eq!(line.ask::<3>(1, &clock, Duration::from_nanos(10)), None);
        assert!(!line.is_over() && clock() == Duration::from_nanos(11));
    }

    #[test]
    fn a_measurement_that_has_ended_is_not_answered() {
        let line = Line::default();
        line.end();
        line.answer_until(&|| unreachable!("the line is looked at first"), Duration::ZERO);
    }

    #[test]
    fn a_trip_takes_its_share_of_the_time_between_two_readings() {
        let line = Line::default();
        let samples = thread::scope(|scope| {
            scope.spawn(|| line.answer());
            // The clock of this test advances by 8 ns at each reading.
            let (read, never) = (Cell::new(0), Duration::MAX);
            let samples = line.ask::<3>(2, &|| Duration::from_nanos(8 * read.replace(read.get() + 1)), never);
            line.end();
            samples
        });
        let samples = samples.expect("it is answered");
        assert!(samples.iter().all(|sample| sample.as_nanos() >= 2 && sample.as_nanos() % 2 == 0), "{samples:?}");
    }
}
