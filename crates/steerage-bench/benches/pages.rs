//! What a page costs on its way to a worker and home: alone, with other queues at the shared pool, and across CPUs; with the
//! local cache and without.
//!
//! `cargo bench -p steerage-bench --bench pages [-- ROUNDS [PART-OF-A-NAME]]`. Cases run in turn; see `path` for how. Figures are
//! nanoseconds a page: *receive* is CPU 0's, *worker* CPU 1's, *whole* from the first page to the last over all pages of one
//! CPU.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use steerage::testing::PageLoop;
use steerage::{LPC_SIZE_DEFAULT, POLL_BUDGET};
use steerage_bench::measure::{Busy, Figures, RX_CPU, WORK_CPU, in_turn};
use steerage_bench::placement::{Placement, one_way_nanos, pin};
use steerage_mem::ring::Consumer;

/// Of each CPU.
const PAGES: usize = 20_000_000;

/// So many polls' pages are under way in a queue before its worker finishes the first of them.
const POLLS_UNDER_WAY: usize = 8;

#[derive(Clone, Copy)]
enum Shape {
    /// So many queues, dealt out to both CPUs; each CPU works off its own. What they share is the shared pool.
    Queues(usize),
    /// CPU 0 receives, CPU 1 works.
    Across,
}

struct Case {
    shape: Shape,
    lpc_size: usize,
}

fn cases() -> Vec<(String, Case)> {
    let shapes = [
        ("1 queue", Shape::Queues(1)),
        ("2 queues", Shape::Queues(2)),
        ("8 queues", Shape::Queues(8)),
        ("across CPUs", Shape::Across),
    ];
    let both = |(name, shape)| {
        let caches = [("cache on", LPC_SIZE_DEFAULT), ("cache off", 0)];
        caches.map(|(cache, lpc_size)| (format!("{name}, {cache}"), Case { shape, lpc_size }))
    };
    shapes.into_iter().flat_map(both).collect()
}

/// Sends and works off these queues in turn until `PAGES` pages went round.
fn go_round(queues: &mut [(PageLoop, Consumer)]) -> Duration {
    for (queue, _) in &mut *queues {
        (1..POLLS_UNDER_WAY).for_each(|_| assert_eq!(queue.send(POLL_BUDGET), POLL_BUDGET, "pages for all"));
    }
    let start = Instant::now();
    let mut sent = 0;
    while sent < PAGES {
        for (queue, consumer) in &mut *queues {
            sent += queue.send(POLL_BUDGET);
            consumer.take(POLL_BUDGET);
            consumer.finish();
        }
    }
    start.elapsed()
}

fn each(time: Duration) -> f64 {
    time.as_nanos() as f64 / PAGES as f64
}

/// Returns the time of each CPU, and of all.
fn contend(mut first: Vec<(PageLoop, Consumer)>) -> (f64, f64, f64) {
    let mut second = first.split_off(first.len().div_ceil(2));
    if second.is_empty() {
        let time = each(go_round(&mut first));
        return (time, 0.0, time);
    }
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let start = &start;
        let other = scope.spawn(move || {
            pin(WORK_CPU);
            start.wait();
            go_round(&mut second)
        });
        start.wait();
        let mine = go_round(&mut first);
        let theirs = other.join().expect("pages only go round");
        (each(mine), each(theirs), each(mine.max(theirs)))
    })
}

fn across(mut queue: PageLoop, mut consumer: Consumer) -> (f64, f64, f64) {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let start = &start;
        // Its end moves to its own stack: on ours it would lie beside what we write.
        let worker = scope.spawn(move || {
            pin(WORK_CPU);
            start.wait();
            let (mut busy, mut done) = (Busy::default(), 0);
            while done < PAGES {
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
        });
        start.wait();
        let (begin, mut busy, mut sent) = (Instant::now(), Busy::default(), 0);
        while sent < PAGES {
            busy.during(|| {
                let count = queue.send(POLL_BUDGET.min(PAGES - sent));
                sent += count;
                count > 0
            });
        }
        let work = worker.join().expect("a worker that ends");
        (each(busy.time()), each(work), each(begin.elapsed()))
    })
}

fn run(case: &Case) -> Figures {
    pin(RX_CPU);
    let queues = match case.shape {
        Shape::Queues(count) => count,
        Shape::Across => 1,
    };
    let mut loops = PageLoop::new(queues, case.lpc_size).expect("memory for the pages");
    let before = one_way_nanos(WORK_CPU);
    let (receive, work, whole) = match case.shape {
        Shape::Queues(_) => contend(loops),
        Shape::Across => {
            let (queue, consumer) = loops.remove(0);
            across(queue, consumer)
        }
    };
    let placement = Placement::of(before, one_way_nanos(WORK_CPU));
    Figures { placement, receive, work, whole, lossy: None }
}

fn main() {
    in_turn(cases(), 7, run);
}
