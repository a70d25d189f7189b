//! What it costs to get from a frame to its key and its hash, and to dissect it: by traffic.
//!
//! `cargo bench -p steerage-bench --bench dissect [-- ROUNDS [PART-OF-A-NAME]]`. The frames of a case lie in memory that fits
//! the second-level cache and are gone through in batches of a poll's budget. Rounds of all cases alternate; a case's figure
//! is its best round's, which other work on the machine disturbs least.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::Instant;

use steerage::flow::{self, Layers};
use steerage::{FlowHash, FlowHasher, FlowKey, HashKey, LinkType, POLL_BUDGET};
use steerage_bench::measure::RX_CPU;
use steerage_bench::placement::pin;
use steerage_bench::samples::{SAMPLES, frames};
use steerage_mem::hash::Hashing;

/// Frames of a case: 128 KiB of them.
const FRAMES: usize = 1024;
/// How often a round goes through them.
const PASSES: usize = 100;

struct Item {
    frame: Vec<u8>,
    hash: FlowHash,
}

/// As the path does it for [`Affinity::BothDirections`](steerage::Affinity).
struct BothDirections;

impl Hashing<Item> for BothDirections {
    #[inline(always)]
    fn key(&self, item: &Item) -> FlowKey {
        match flow::flow_key(&item.frame, LinkType::ETHERNET, Layers::Inner) {
            Some(key) => key.both_directions(),
            None => FlowKey::from_bytes(&[]),
        }
    }

    #[inline(always)]
    fn store(&self, item: &mut Item, hash: FlowHash) {
        item.hash = hash;
    }
}

fn nanos_each(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..PASSES).for_each(|_| work());
    start.elapsed().as_nanos() as f64 / (PASSES * FRAMES) as f64
}

fn main() {
    // `cargo bench` passes --bench.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let rounds: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(51);
    let part = args.next().unwrap_or_default();
    pin(RX_CPU);
    let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    let mut cases: Vec<(&str, Vec<Item>, [f64; 2])> = SAMPLES
        .iter()
        .filter(|sample| sample.name.contains(&part))
        .map(|sample| {
            let items = frames(sample, FRAMES).into_iter().map(|frame| Item { frame, hash: FlowHash(0) });
            (sample.name, items.collect(), [f64::INFINITY; 2])
        })
        .collect();
    for _ in 0..rounds {
        for (_, items, best) in &mut cases {
            let hashed = nanos_each(|| {
                for batch in black_box(&mut *items).chunks_mut(POLL_BUDGET) {
                    hasher.hash_batch_with(batch, &BothDirections);
                }
            });
            let dissected = nanos_each(|| {
                for item in black_box(&*items) {
                    black_box(flow::dissect(&item.frame, LinkType::ETHERNET, Layers::Inner));
                }
            });
            *best = [best[0].min(hashed), best[1].min(dissected)];
        }
    }
    println!("best of {rounds} rounds, {} frames each; ns a frame\n", PASSES * FRAMES);
    println!("{:<28} {:>10} {:>10}", "traffic", "key + hash", "dissect");
    for (name, _, [hashed, dissected]) in &cases {
        println!("{name:<28} {hashed:>10.1} {dissected:>10.1}");
    }
}
