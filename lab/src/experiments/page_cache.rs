//! Measures the cost of sending a page to a worker CPU and back, by size of the local page cache.

mod page_loop;
mod path;

use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use steerage::limits::{LPC_PAGES_PER_CPU, POLL_BUDGET};
use steerage_mem::ring::Consumer;

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::load::thread_time;
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::runs::{Busy, CpuPair};

use page_loop::PageLoop;

/// The number of polls (batches of pages) after which the pages of a poll return to their queue.
const POLLS_UNDER_WAY: usize = 8;

/// The number of polls whose pages return together. These pages fit into a backlog of default size.
const POLLS_OF_BURST: usize = 15;

const FRAME_BYTES: usize = 1500;

/// The number of queues of a sending machine in the published measurement.
const PUBLISHED_QUEUES: usize = 32;

const QUEUES: [u32; 5] = [1, 2, 8, 32, 64];

const MANY_QUEUES: [u32; 3] = [8, 32, 64];

/// Estimated nanoseconds per page whose bytes no CPU reads or writes. `FRAME_NANOS`: per page into
/// which a frame is written.
const NANOS: f64 = 12.0;
const FRAME_NANOS: f64 = 120.0;

const CACHE_PAGES: usize = LPC_PAGES_PER_CPU;

const CACHES: [(&str, usize); 2] = [("cache on", CACHE_PAGES), ("cache off", 0)];

const CACHE_SIZES: [usize; 5] = [0, 64, 256, 1024, CACHE_PAGES];

const LPC_PAGES: [(&str, usize); 3] = [("cache on", LPC_PAGES_PER_CPU), ("1024 pages", 1024), ("cache off", 0)];

const CONTROL: &str = "control, off as well";

type Queue = (PageLoop, Consumer);

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    vec![pages(settings), frames(settings), sizes(settings), whole_path(settings), at_one_rate(settings)]
}

fn whole_path(settings: &Settings) -> Experiment {
    let count = settings.cpus.len();
    let mut experiment = Experiment::new("page-cache-path", 5, settings);
    let (warm_up, time) = (settings.warm_up / 4, settings.measured);
    experiment.takes(warm_up + time);
    for queues in settings.points(&MANY_QUEUES) {
        for (name, lpc_pages) in LPC_PAGES.into_iter().chain([(CONTROL, 0)]) {
            let on = settings.cpus.clone();
            let run = move || {
                let path = path::once(&on, queues as usize, lpc_pages, None, (warm_up, time))?;
                Ok(Measurement::of("cpu_ns", path.cpu_ns).and("mpps", path.per_second / 1e6))
            };
            experiment.case(name, Some(queues.into()), count.max(2), run);
        }
    }
    experiment
}

/// The experiment at the packet rate at which the CPUs are always busy without the page cache, as
/// in the published measurement. A run with the page cache at this packet rate measures how busy
/// the CPUs are. Each round determines the packet rate again.
fn at_one_rate(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("page-cache-rate", 5, settings);
    let times = (settings.warm_up / 4, settings.measured);
    experiment.takes(times.0 + times.1);
    let rate_of_round = Arc::new(Mutex::new(None));
    for (name, lpc_pages) in [CACHES[1], CACHES[0], (CONTROL, 0)] {
        let (on, rate_of_round) = (settings.cpus.clone(), Arc::clone(&rate_of_round));
        experiment.case(name, None, on.len().max(2), move || {
            let run = |rate| path::once(&on, PUBLISHED_QUEUES, lpc_pages, rate, times);
            let mut known = rate_of_round.lock().unwrap_or_else(PoisonError::into_inner);
            if name == CACHES[1].0 {
                *known = Some(run(None)?.per_second);
            }
            let rate = known.ok_or_else(|| LabError::set_up("the rate", "the run without the cache failed"))?;
            let path = run(Some(rate))?;
            let gigabits = |per_second: f64| per_second * (8 * FRAME_BYTES) as f64 / 1e9;
            Ok(Measurement::of("gbit", gigabits(path.per_second))
                .and("offered_gbit", gigabits(rate))
                .and("cpu_percent", path.cpu_percent)
                .and("lost_percent", path.lost_percent))
        });
    }
    experiment
}

fn pages(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("page-cache", 5, settings);
    let pages = settings.frames(NANOS) as usize;
    for queues in settings.points(&QUEUES) {
        for (name, cache_pages) in CACHES {
            add(&mut experiment, settings, name, Shape::pages(queues, cache_pages), pages);
        }
    }
    let on = settings.pair();
    for (name, cache_pages) in CACHES {
        let run = move || across(on, Shape::pages(1, cache_pages).queues()?, pages);
        experiment.case(format!("across, {name}"), Some(1.0), 2, run);
    }
    experiment
}

pub(super) fn there_and_back(on: CpuPair, pages: usize) -> Result<Measurement, LabError> {
    across(on, Shape::pages(1, CACHE_PAGES).queues()?, pages)
}

fn frames(settings: &Settings) -> Experiment {
    let mut experiment = Experiment::new("page-cache-frames", 5, settings);
    let pages = settings.frames(FRAME_NANOS) as usize;
    for queues in settings.points(&MANY_QUEUES) {
        for (name, cache_pages) in CACHES {
            let shape = Shape { frame_bytes: FRAME_BYTES, ..Shape::pages(queues, cache_pages) };
            add(&mut experiment, settings, name, shape, pages);
            let inline = Shape { comes_home: ComesHome::Inline, ..shape };
            add(&mut experiment, settings, &format!("inline, {name}"), inline, pages);
        }
    }
    experiment
}

fn sizes(settings: &Settings) -> Experiment {
    let name = |pages: usize| if pages == 0 { CACHES[1].0.to_owned() } else { format!("{pages} pages") };
    let mut experiment = Experiment::new("page-cache-size", 5, settings);
    let pages = settings.frames(FRAME_NANOS) as usize;
    for queues in settings.points(&MANY_QUEUES) {
        let cases = CACHE_SIZES.map(|cache_pages| (name(cache_pages), cache_pages));
        for (name, cache_pages) in cases.into_iter().chain([(CONTROL.to_owned(), 0)]) {
            let frames = Shape { frame_bytes: FRAME_BYTES, ..Shape::pages(queues, cache_pages) };
            let shape = Shape { comes_home: ComesHome::InBursts, ..frames };
            add(&mut experiment, settings, &name, shape, pages);
        }
    }
    experiment
}

fn add(experiment: &mut Experiment, settings: &Settings, name: &str, shape: Shape, pages: usize) {
    let cpus = shape.cpus(settings.cpus.len());
    let on: Vec<usize> = settings.cpus.iter().copied().take(cpus).collect();
    experiment.case(name, Some(shape.queues as f64), cpus, move || contend(&on, shape, pages));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ComesHome {
    /// The pages of a poll return before the next poll.
    Inline,
    /// Each poll returns the pages that were sent [`POLLS_UNDER_WAY`] polls earlier.
    Steadily,
    /// The pages of many polls return together.
    InBursts,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    queues: usize,
    cache_pages: usize,
    /// If 0, no CPU reads or writes the bytes of a page.
    frame_bytes: usize,
    comes_home: ComesHome,
}

impl Shape {
    fn pages(queues: u32, cache_pages: usize) -> Self {
        Self { queues: queues as usize, cache_pages, frame_bytes: 0, comes_home: ComesHome::Steadily }
    }

    /// Returns the number of CPUs. Several queues need at least two CPUs, so that the queues
    /// contend for the page pool.
    fn cpus(&self, there_are: usize) -> usize {
        self.queues.min(there_are.max(2))
    }

    fn queues(&self) -> Result<Vec<Queue>, LabError> {
        let made = PageLoop::new(self.queues, self.cache_pages);
        made.map_err(|error| LabError::set_up("memory for the pages", error))
    }

    fn send(&self, (queue, _): &mut Queue) -> usize {
        match self.frame_bytes {
            0 => queue.send(POLL_BUDGET),
            bytes => queue.send_frames(POLL_BUDGET, |page| {
                page[..bytes].fill(bytes as u8);
                bytes
            }),
        }
    }

    fn give_back(&self, (_, consumer): &mut Queue) {
        if self.frame_bytes == 0 {
            // Like a mempool of DPDK, `take_cached` does not prefetch the bytes.
            consumer.take_cached(POLL_BUDGET);
        } else {
            consumer.take(POLL_BUDGET);
            black_box(consumer.frames().map(|frame| sum(frame.bytes())).fold(0, u64::wrapping_add));
        }
        consumer.finish();
    }

    fn turn(&self, queue: &mut Queue) -> usize {
        let polls = match self.comes_home {
            ComesHome::Inline | ComesHome::Steadily => 1,
            ComesHome::InBursts => POLLS_OF_BURST,
        };
        let sent = (0..polls).map(|_| self.send(queue)).sum();
        (0..polls).for_each(|_| self.give_back(queue));
        sent
    }

    fn go_round(&self, queues: &mut [Queue], pages: usize) -> Round {
        if self.comes_home == ComesHome::Steadily {
            for queue in &mut *queues {
                (1..POLLS_UNDER_WAY).for_each(|_| {
                    self.send(queue);
                });
            }
        }
        let (start, cpu_before) = (Instant::now(), thread_time());
        let mut sent = 0;
        while sent < pages {
            for queue in &mut *queues {
                sent += self.turn(queue);
            }
        }
        let cpu = thread_time().saturating_sub(cpu_before);
        let took = start.elapsed();
        let served = queues.iter().map(|(queue, _)| queue.served());
        let (fast, slow) = served.fold((0, 0), |(fast, slow), one| (fast + one.0, slow + one.1));
        Round { pages: sent, took, cpu, fast, slow }
    }
}

#[derive(Clone, Copy, Debug)]
struct Round {
    pages: usize,
    took: Duration,
    cpu: Duration,
    fast: u64,
    slow: u64,
}

fn sum(frame: &[u8]) -> u64 {
    let words = frame.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    words.fold(0, u64::wrapping_add)
}

fn contend(cpus: &[usize], shape: Shape, pages: usize) -> Result<Measurement, LabError> {
    let mut queues = shape.queues()?;
    let start = Barrier::new(cpus.len());
    let rounds: Vec<Round> = thread::scope(|scope| {
        let mut threads = Vec::with_capacity(cpus.len());
        for (nth, cpu) in cpus.iter().enumerate().rev() {
            let mut own = queues.split_off(queues.len() * nth / (nth + 1));
            let start = &start;
            threads.push(scope.spawn(move || {
                let pinned = pin(*cpu);
                start.wait();
                pinned.map(|()| shape.go_round(&mut own, pages))
            }));
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(LabError::Panicked))).collect::<Result<_, _>>()
    })?;
    let longest = rounds.iter().map(|round| round.took).max().unwrap_or_default();
    let cpu: Duration = rounds.iter().map(|round| round.cpu).sum();
    let all: usize = rounds.iter().map(|round| round.pages).sum();
    let (fast, slow) = rounds.iter().fold((0, 0), |(fast, slow), round| (fast + round.fast, slow + round.slow));
    let slowest = rounds.iter().map(|round| round.took.as_nanos() as f64 / round.pages as f64).fold(0.0, f64::max);
    Ok(Measurement::of("page_ns", slowest)
        .and("cpu_ns", cpu.as_nanos() as f64 / all as f64)
        .and("cpus", cpu.as_secs_f64() / longest.as_secs_f64())
        .and("cached_percent", 100.0 * fast as f64 / (fast + slow) as f64))
}

fn across(on: CpuPair, mut loops: Vec<(PageLoop, Consumer)>, pages: usize) -> Result<Measurement, LabError> {
    let each = |time: Duration| time.as_nanos() as f64 / pages as f64;
    let Some((mut queue, consumer)) = loops.pop() else { return Ok(Measurement::default()) };
    pin(on.receive)?;
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            // If pinning failed after pages were sent, no thread would return them.
            pin(on.work)?;
            let _ = ready.send(());
            // The ring's consumer end moves to the worker's stack, so that it shares no cache lines
            // with data that the sender writes.
            Ok(give_back(consumer, pages))
        });
        if is_ready.recv().is_err() {
            return worker.join().unwrap_or(Err(LabError::Panicked)).and(Err(LabError::Panicked));
        }
        let (begin, mut busy, mut sent) = (Instant::now(), Busy::default(), 0);
        while sent < pages {
            busy.during(|| {
                let count = queue.send(POLL_BUDGET.min(pages - sent));
                sent += count;
                count > 0
            });
        }
        let work = worker.join().unwrap_or(Err(LabError::Panicked))?;
        let whole = Measurement::of("page_ns", each(begin.elapsed()));
        Ok(whole.and("receive_ns", each(busy.time())).and("work_ns", each(work)))
    })
}

fn give_back(mut consumer: Consumer, pages: usize) -> Duration {
    let (mut busy, mut done) = (Busy::default(), 0);
    while done < pages {
        busy.during(|| {
            if consumer.waiting() == 0 {
                return false;
            }
            done += consumer.take_cached(POLL_BUDGET);
            consumer.finish();
            true
        });
    }
    busy.time()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of pages is so large that the first use of a page takes only a small part of the
    /// time.
    const PAGES: usize = 50_000;

    fn contended(cache_pages: usize, comes_home: ComesHome) -> Measurement {
        let shape = Shape { comes_home, frame_bytes: FRAME_BYTES, ..Shape::pages(5, cache_pages) };
        contend(&[0, 0], shape, PAGES).unwrap()
    }

    #[test]
    fn with_a_cache_pages_come_from_it_and_without_from_the_pool() {
        for comes_home in [ComesHome::Inline, ComesHome::Steadily, ComesHome::InBursts] {
            let (on, off) = (contended(CACHE_PAGES, comes_home), contended(0, comes_home));
            assert!(on.values["cached_percent"] > 95.0, "{comes_home:?}: {on:?}");
            assert_eq!(off.values["cached_percent"], 0.0, "{comes_home:?}: {off:?}");
            for measured in [on, off] {
                // CPU time and elapsed time may differ a little, because they are measured by two
                // clocks.
                assert!((0.0..=2.02).contains(&measured.values["cpus"]), "{measured:?}");
                assert!(measured.values["cpu_ns"] > 0.0 && measured.values["page_ns"] > 0.0, "{measured:?}");
            }
        }
    }

    #[test]
    fn a_larger_cache_takes_more_of_a_burst() {
        let part = |pages| contended(pages, ComesHome::InBursts).values["cached_percent"];
        let parts = CACHE_SIZES.map(part);
        // A page cache of at least 1,024 pages has space for a whole burst.
        assert!(parts[..4].is_sorted_by(|a, b| a < b) && parts[3..].iter().all(|part| *part > 95.0), "{parts:?}");
    }

    #[test]
    fn all_numbers_of_queues_and_sizes_are_there() {
        let quick = Settings { ends_only: false, ..Settings::quick(vec![0, 1]) };
        let [pages, frames, sizes, path, _rate] = &plan(&quick)[..] else { panic!("five parts") };
        let points = |experiment: &Experiment, series: &str| {
            let of = experiment.cases.iter().filter(|case| case.series == series);
            of.filter_map(|case| case.x).collect::<Vec<_>>()
        };
        for series in ["cache on", "cache off"] {
            assert_eq!(points(pages, series), [1.0, 2.0, 8.0, 32.0, 64.0]);
            assert_eq!(points(frames, series), [8.0, 32.0, 64.0]);
            assert_eq!(points(frames, &format!("inline, {series}")), [8.0, 32.0, 64.0]);
        }
        for series in ["cache off", "64 pages", "256 pages", "1024 pages", "2048 pages", CONTROL] {
            assert_eq!(points(sizes, series), [8.0, 32.0, 64.0], "{series}");
        }
        for series in ["cache on", "1024 pages", "cache off", CONTROL] {
            assert_eq!(points(path, series), [8.0, 32.0, 64.0], "{series}");
        }
    }
}
