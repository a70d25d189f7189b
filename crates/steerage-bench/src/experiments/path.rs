//! What a packet costs the receiving CPU and the worker: by whose hash, how many targets and what traffic.

use steerage::{
    Builder,
    limits::{LPC_PAGES_PER_CPU, POLL_BUDGET},
};

use crate::benchmark::{Benchmark, Description, Settings};
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::report::ChartKind;
use crate::runs::{ReadsHeaders, run};

const DESCRIPTION: Description = Description {
    name: "path",
    title: "The receive path: what a packet costs",
    question: "Frames of 64 bytes in 65,536 flows, written by the receiving CPU as a device would. It receives and does nothing \
               else; another CPU is all of the targets, each with a ring and a backlog of its own, and reads the headers. The \
               ledger is on, buckets may move at any time, nothing is lost.",
    published: None,
    x: "",
    rounds: 5,
};

/// What a packet takes, about.
const NANOS: f64 = 40.0;

/// A way through it.
struct Case {
    name: &'static str,
    frames: FrameOptions,
    targets: usize,
    lpc_pages: usize,
}

/// The one that is told in terms of others, and of peers.
const FIRST: &str = "device hash, 1 target";

/// What the number of flows does.
const FEW_FLOWS: &str = "our hash, 1,000 flows";
const MANY_FLOWS: &str = "our hash, 10 million flows";

fn cases(frames: u64) -> Vec<Case> {
    let device = FrameOptions { mix: Mix::Uniform, device_hash: true, list: POLL_BUDGET, flows: FLOWS, frames };
    let ours = FrameOptions { device_hash: false, ..device };
    let mixed = FrameOptions { mix: Mix::Mixed, ..ours };
    let case = |name, frames, targets| Case { name, frames, targets, lpc_pages: LPC_PAGES_PER_CPU };
    vec![
        case(FIRST, device, 1),
        case("no hash needed, 1 target", ours, 1),
        // Two targets, since with one there is nothing to choose and so nothing to hash.
        case("device hash, 2 targets", device, 2),
        case("device hash, 16 targets", device, 16),
        case("our hash, 2 targets", ours, 2),
        case("our hash, 16 targets", ours, 16),
        case("our hash, 2 targets, mixed", mixed, 2),
        case(FEW_FLOWS, FrameOptions { flows: 1000, ..ours }, 2),
        case(MANY_FLOWS, FrameOptions { flows: 10_000_000, ..ours }, 2),
        Case { lpc_pages: 0, ..case("page cache off, 1 target", device, 1) },
    ]
}

pub(super) fn benchmarks(settings: &Settings) -> Vec<Benchmark> {
    let mut benchmark = Benchmark::new(DESCRIPTION, settings)
        .metric("receive_ns", "receiving CPU", "ns a packet", false)
        .metric("work_ns", "worker", "ns a packet", false)
        .metric("mpps", "handled", "Mpps", true)
        .chart(ChartKind::Bars, "receive_ns", "What a packet costs the receiving CPU")
        .chart(ChartKind::Bars, "work_ns", "What it costs the worker");
    let (frames, on) = (settings.frames(NANOS), settings.pair());
    let cases = cases(frames);
    for case in &cases[1..] {
        benchmark = benchmark.compare(FIRST, case.name);
    }
    benchmark = benchmark.compare(MANY_FLOWS, FEW_FLOWS);
    for case in cases {
        benchmark.case(case.name, None, 2, move || {
            let builder = Builder::new().lpc_pages(case.lpc_pages);
            let times = run(on, builder, case.frames.input(), frames, case.targets, ReadsHeaders::default)?;
            Ok(times.of_all(frames)?.measurement())
        });
    }
    vec![benchmark]
}
