//! From a frame to its key and its hash, and to all that can be told of it: by traffic.

use std::hint::black_box;
use std::time::Instant;

use steerage::flow::{self, Layers};
use steerage::{
    FlowKey, LinkType,
    flow::{FlowHash, FlowHasher, HashKey},
    limits::POLL_BUDGET,
};
use steerage_flow::Hashing;

use crate::benchmark::{Benchmark, Description, Settings};
use crate::measurement::Measurement;
use crate::placement::pin;
use crate::report::ChartKind;
use crate::traffic::{TRAFFIC_KINDS, frames};

const DESCRIPTION: Description = Description {
    name: "hash",
    title: "Reading headers: key and keyed hash, by traffic",
    question: "What does it take to get from a frame to its flow's key and the key's hash, both directions alike, in batches of 64? And \
               to dissect it, as tools do? The frames lie in the second-level cache. What is plain takes a straight line; tags in \
               tags, tunnels and fragments take a walk.",
    published: None,
    x: "",
    rounds: 15,
};

/// Frames of a case: 128 KiB of them.
const FRAMES: usize = 1024;

/// What a frame takes, about, and dissected.
const NANOS: f64 = 30.0;

/// How long a case takes of a run's time: it is about nanoseconds that nobody disturbs much.
const PART: u32 = 10;

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
        let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
        benchmark.case(kind.name, None, 1, move || {
            pin(cpu)?;
            let hashed = nanos_each(passes, || {
                for batch in black_box(&mut *items).chunks_mut(POLL_BUDGET) {
                    hasher.hash_batch_with(batch, &BothDirections);
                }
            });
            let dissected = nanos_each(passes, || {
                for item in black_box(&*items) {
                    black_box(flow::dissect(&item.frame, LinkType::ETHERNET, Layers::Inner));
                }
            });
            Ok(Measurement::of("hash_ns", hashed).and("dissect_ns", dissected))
        });
    }
    vec![benchmark]
}

/// Of a frame, where `work` goes through all of them. The first pass fetches them.
fn nanos_each(passes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let start = Instant::now();
    (0..passes).for_each(|_| work());
    start.elapsed().as_nanos() as f64 / (passes * FRAMES) as f64
}
