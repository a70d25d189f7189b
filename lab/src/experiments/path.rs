//! The cost of a packet on the receiving CPU and the worker, by the source of the hash, the number
//! of targets and the traffic.

use steerage::{
    Builder,
    limits::{LPC_PAGES_PER_CPU, POLL_BUDGET},
};

use super::page_cache;
use crate::benchmark::{Benchmark, Description, Settings};
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::report::ChartKind;
use crate::runs::{ReadsHeaders, run, run_alone, run_bare};

const DESCRIPTION: Description = Description {
    name: "path",
    title: "The receive path: what a packet costs",
    question: "Frames of 64 bytes in 65,536 flows, written by the receiving CPU as a device would. It receives and does nothing \
               else; another CPU is all of the targets, each with a ring and a backlog of its own, and reads the headers. The \
               ledger is on, buckets may move at any time, nothing is lost. Beside it, a bare loop hands the same frames over without \
               pool, ledger, limits or moves, which is the least that two CPUs must do.",
    published: None,
    x: "",
    rounds: 5,
};

/// An estimate of the time per packet, in nanoseconds.
const NANOS: f64 = 40.0;

/// One way through the path.
struct Case {
    name: &'static str,
    frames: FrameOptions,
    targets: usize,
    lpc_pages: usize,
}

/// The names of series that the summary is about.
pub(crate) mod series {
    pub(crate) const ONE_TARGET: &str = "device hash, 1 target";
    pub(crate) const TWO_TARGETS: &str = "device hash, 2 targets";
    pub(crate) const SIXTEEN_TARGETS: &str = "device hash, 16 targets";
    pub(crate) const OUR_HASH: &str = "our hash, 2 targets";
    pub(crate) const MIXED: &str = "our hash, 2 targets, mixed";
    pub(crate) const INLINE: &str = "one CPU does all";
    pub(crate) const PAGES: &str = "pages alone, there and back";
    pub(crate) const BARE: &str = "bare loop with prefetch";
    pub(crate) const BARE_UNFETCHED: &str = "bare loop";
}

/// These two series show the effect of the number of flows.
const FEW_FLOWS: &str = "our hash, 1,000 flows";
const MANY_FLOWS: &str = "our hash, 10 million flows";

fn cases(frames: u64) -> Vec<Case> {
    let device = FrameOptions { mix: Mix::Uniform, device_hash: true, list: POLL_BUDGET, flows: FLOWS, frames };
    let ours = FrameOptions { device_hash: false, ..device };
    let mixed = FrameOptions { mix: Mix::Mixed, ..ours };
    let case = |name, frames, targets| Case { name, frames, targets, lpc_pages: LPC_PAGES_PER_CPU };
    vec![
        case(series::ONE_TARGET, device, 1),
        case("no hash needed, 1 target", ours, 1),
        // Two targets, because with one target the path has nothing to choose and does not hash.
        case(series::TWO_TARGETS, device, 2),
        case(series::SIXTEEN_TARGETS, device, 16),
        case(series::OUR_HASH, ours, 2),
        case("our hash, 16 targets", ours, 16),
        case(series::MIXED, mixed, 2),
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
        .chart(ChartKind::Bars, "receive_ns", "Cost of a packet on the receiving CPU")
        .chart(ChartKind::Bars, "work_ns", "Cost on the worker");
    let (frames, on) = (settings.frames(NANOS), settings.pair());
    let cases = cases(frames);
    for case in &cases[1..] {
        benchmark = benchmark.compare(series::ONE_TARGET, case.name);
    }
    benchmark = benchmark.compare(MANY_FLOWS, FEW_FLOWS);
    for of in [series::ONE_TARGET, series::TWO_TARGETS, series::SIXTEEN_TARGETS] {
        benchmark = benchmark.compare(of, series::BARE);
    }
    benchmark = benchmark.compare(series::MIXED, series::OUR_HASH).compare(series::BARE, series::BARE_UNFETCHED);
    let device = cases[0].frames;
    for case in cases {
        benchmark.case(case.name, None, 2, move || {
            let builder = Builder::new().lpc_pages(case.lpc_pages);
            let times = run(on, builder, case.frames.input(), frames, case.targets, ReadsHeaders::default)?;
            Ok(times.of_all(frames)?.measurement())
        });
    }
    for (name, prefetches) in [(series::BARE, true), (series::BARE_UNFETCHED, false)] {
        benchmark.case(name, None, 2, move || Ok(run_bare(on, device, prefetches)?.measurement()));
    }
    // This case is compared with the others, so it also requires two CPUs.
    benchmark.case(series::INLINE, None, 2, move || {
        let (times, _) = run_alone(on.receive, Builder::new(), device.input(), frames, ReadsHeaders::default)?;
        Ok(times.measurement())
    });
    benchmark.case(series::PAGES, None, 2, move || page_cache::there_and_back(on, frames as usize));
    vec![benchmark]
}
