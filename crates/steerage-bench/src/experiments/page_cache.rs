//! What a page costs on its way to a worker and home, with the local cache and without.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use steerage::limits::{LPC_SIZE_DEFAULT, POLL_BUDGET};
use steerage::testing::PageLoop;
use steerage_mem::ring::Consumer;

use crate::benchmark::{Benchmark, Description, Settings};
use crate::error::BenchError;
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::report::ChartKind;
use crate::runs::{Busy, CpuPair};

const DESCRIPTION: Description = Description {
    name: "page-cache",
    title: "The local page cache: queues that contend for pages",
    question: "Pages go round in polls of 64, and nobody touches their bytes. The queues are dealt out to two CPUs, each of which works \
               off its own: all that they share is the pool. What does a page cost with the cache local to each queue, and without? \
               Across: one CPU takes pages and hands them over, another gives them back.",
    published: "Amazon, ENA's Linux driver (local page cache, 2021): 330 in place of 260 Gbps, 1.27 times, with many queues; the \
                cache keeps them from waiting for each other at the page allocator.",
    x: "queues",
    rounds: 5,
};

/// So many polls' pages are under way in a queue before its worker finishes the first of them.
const POLLS_UNDER_WAY: usize = 8;

const QUEUES: [u32; 3] = [1, 2, 8];

/// What a page takes, about.
const NANOS: f64 = 12.0;

const CACHES: [(&str, usize); 2] = [("cache on", LPC_SIZE_DEFAULT), ("cache off", 0)];

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("page_ns", "a page's round", "ns", false)
        .metric("receive_ns", "receiving CPU", "ns a page", false)
        .metric("work_ns", "worker", "ns a page", false)
        .compare("cache on", "cache off")
        .compare("across, cache on", "across, cache off")
        .chart(ChartKind::Bars, "page_ns", "What a page's round costs, by queues");
    let (pages, on) = (settings.frames(NANOS) as usize, settings.pair());
    for queues in settings.points(&QUEUES) {
        for (name, lpc_size) in CACHES {
            let cpus = if queues > 1 { 2 } else { 1 };
            benchmark
                .case(name, Some(queues.into()), cpus, move || contend(on, loops(queues as usize, lpc_size)?, pages));
        }
    }
    for (name, lpc_size) in CACHES {
        benchmark.case(format!("across, {name}"), Some(1.0), 2, move || across(on, loops(1, lpc_size)?, pages));
    }
    vec![benchmark]
}

fn loops(queues: usize, lpc_size: usize) -> Result<Vec<(PageLoop, Consumer)>, BenchError> {
    PageLoop::new(queues, lpc_size).map_err(|error| BenchError::set_up("memory for the pages", error))
}

/// Sends and works off these queues in turn until so many pages went round.
fn go_round(queues: &mut [(PageLoop, Consumer)], pages: usize) -> Duration {
    for (queue, _) in &mut *queues {
        (1..POLLS_UNDER_WAY).for_each(|_| {
            queue.send(POLL_BUDGET);
        });
    }
    let start = Instant::now();
    let mut sent = 0;
    while sent < pages {
        for (queue, consumer) in &mut *queues {
            sent += queue.send(POLL_BUDGET);
            consumer.take(POLL_BUDGET);
            consumer.finish();
        }
    }
    start.elapsed()
}

/// The queues on both CPUs, each CPU with its own.
fn contend(on: CpuPair, mut first: Vec<(PageLoop, Consumer)>, pages: usize) -> Result<Measurement, BenchError> {
    let each = |time: Duration| time.as_nanos() as f64 / pages as f64;
    let mut second = first.split_off(first.len().div_ceil(2));
    pin(on.receive)?;
    if second.is_empty() {
        return Ok(Measurement::of("page_ns", each(go_round(&mut first, pages))));
    }
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = pin(on.work);
            start.wait();
            pinned.map(|()| go_round(&mut second, pages))
        });
        start.wait();
        let mine = go_round(&mut first, pages);
        let theirs = other.join().unwrap_or(Err(BenchError::Panicked))?;
        Ok(Measurement::of("page_ns", each(mine.max(theirs))))
    })
}

/// One queue, from CPU to CPU.
fn across(on: CpuPair, mut loops: Vec<(PageLoop, Consumer)>, pages: usize) -> Result<Measurement, BenchError> {
    let each = |time: Duration| time.as_nanos() as f64 / pages as f64;
    let Some((mut queue, consumer)) = loops.pop() else { return Ok(Measurement::default()) };
    pin(on.receive)?;
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            // Before anything is sent: or there would be nobody to give pages back.
            pin(on.work)?;
            let _ = ready.send(());
            // Its end moves to its own stack: on ours it would lie beside what we write.
            Ok(give_back(consumer, pages))
        });
        if is_ready.recv().is_err() {
            return worker.join().unwrap_or(Err(BenchError::Panicked)).and(Err(BenchError::Panicked));
        }
        let (begin, mut busy, mut sent) = (Instant::now(), Busy::default(), 0);
        while sent < pages {
            busy.during(|| {
                let count = queue.send(POLL_BUDGET.min(pages - sent));
                sent += count;
                count > 0
            });
        }
        let work = worker.join().unwrap_or(Err(BenchError::Panicked))?;
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
            done += consumer.take(POLL_BUDGET);
            consumer.finish();
            true
        });
    }
    busy.time()
}
