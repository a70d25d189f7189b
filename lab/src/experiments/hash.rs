//! The time to get a frame's key and hash, and to dissect the frame completely, for several kinds
//! of traffic.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fastrand::Rng;
use steerage::{
    LinkType, Timestamp,
    flow::{self, FlowHash, FlowHasher, HashKey, Layers},
    limits::POLL_BUDGET,
};
use steerage_flow::{BothDirections, FragmentTable, FrameAccess, FrameHasher};

use crate::benchmark::{Benchmark, Description, Settings};
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::report::ChartKind;
use crate::traffic::{TRAFFIC_KINDS, frames};

const DESCRIPTION: Description = Description {
    name: "hash",
    title: "Reading headers: key and keyed hash, by traffic",
    question: "What does it take to get from a frame to its flow's key and the key's hash, both directions alike, in batches of 64? And \
               to dissect it, as tools do? The frames lie in the second-level cache, and their order is random in each pass. Tags in \
               tags, tunnels and fragments take longer than plain frames.",
    published: None,
    x: "",
    rounds: 15,
};

/// Frames of a case: 128 KiB of them.
const FRAMES: usize = 1024;

/// An estimate of the time per frame, in nanoseconds, including its dissection.
const NANOS: f64 = 30.0;

/// A case takes this part of a run's time. It measures a few nanoseconds in one thread, which other
/// load hardly disturbs.
const PART: u32 = 10;

struct Item {
    frame: Vec<u8>,
    hash: FlowHash,
}

struct Items;

impl FrameAccess<Item> for Items {
    #[inline(always)]
    fn bytes<'f>(&'f self, item: &'f Item) -> &'f [u8] {
        &item.frame
    }

    #[inline(always)]
    fn set_hash(&self, item: &mut Item, hash: FlowHash) {
        item.hash = hash;
    }
}

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    let settings = Settings { measured: settings.measured / PART, ..settings.clone() };
    let mut benchmark = Benchmark::new(DESCRIPTION, &settings)
        .metric("hash_ns", "key and hash", "ns a frame", false)
        .metric("dissect_ns", "dissected", "ns a frame", false)
        .chart(ChartKind::Bars, "hash_ns", "Key and hash, by traffic")
        .chart(ChartKind::Bars, "dissect_ns", "Dissected, by traffic");
    let plain = TRAFFIC_KINDS[0].name;
    for kind in &TRAFFIC_KINDS[1..] {
        benchmark = benchmark.compare(plain, kind.name);
    }
    let passes = (settings.frames(2.0 * NANOS) as usize / FRAMES).max(1);
    let cpu = settings.pair().receive;
    for kind in &TRAFFIC_KINDS {
        let mut items: Vec<Item> =
            frames(kind, FRAMES).into_iter().map(|frame| Item { frame, hash: FlowHash(0) }).collect();
        // The path hashes in this way if both directions of a flow stay together.
        let hasher = FrameHasher::new(FlowHasher::keyed(&HashKey::MICROSOFT), Layers::Inner, BothDirections);
        let mut fragments = FragmentTable::new();
        let arrival = (LinkType::ETHERNET, Timestamp::ZERO);
        benchmark.case(kind.name, None, 1, move || {
            pin(cpu)?;
            let hashed = nanos_each(passes, &mut items, |items| {
                for batch in items.chunks_mut(POLL_BUDGET) {
                    hasher.hash_batch(batch, Items, arrival, &mut fragments);
                }
            });
            let dissected = nanos_each(passes, &mut items, |items| {
                for item in items {
                    black_box(flow::dissect(&item.frame, LinkType::ETHERNET, Layers::Inner));
                }
            });
            Ok(Measurement::of("hash_ns", hashed).and("dissect_ns", dissected))
        });
    }
    vec![benchmark]
}

/// The time per item that `work` takes. The items are shuffled before each pass, because a branch
/// predictor learns an order that repeats. The first pass only loads them into the cache.
fn nanos_each(passes: usize, items: &mut [Item], mut work: impl FnMut(&mut [Item])) -> f64 {
    let mut rng = Rng::with_seed(1);
    work(items);
    let mut time = Duration::ZERO;
    for _ in 0..passes {
        rng.shuffle(items);
        let start = Instant::now();
        work(black_box(&mut *items));
        time += start.elapsed();
    }
    time.as_nanos() as f64 / (passes * FRAMES) as f64
}
