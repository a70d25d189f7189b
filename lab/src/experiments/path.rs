//! The cost of a packet on the receiving CPU and on the worker, by the source of the hash, the
//! number of targets (rings to other CPUs), and the kind of traffic.

use steerage::{
    Builder,
    limits::{LPC_PAGES_PER_CPU, POLL_BUDGET},
};

use super::page_cache;
use crate::experiment::{Experiment, Settings};
use crate::frames::{FLOWS, FrameOptions, Mix};
use crate::runs::{ReadsHeaders, run, run_alone, run_bare};

/// Estimated nanoseconds per packet.
const NANOS: f64 = 40.0;

struct Case {
    name: &'static str,
    frames: FrameOptions,
    targets: usize,
    lpc_pages: usize,
}

fn cases(frames: u64) -> Vec<Case> {
    let device = FrameOptions { mix: Mix::Uniform, device_hash: true, list: POLL_BUDGET, flows: FLOWS, frames };
    let ours = FrameOptions { device_hash: false, ..device };
    let mixed = FrameOptions { mix: Mix::Mixed, ..ours };
    let case = |name, frames, targets| Case { name, frames, targets, lpc_pages: LPC_PAGES_PER_CPU };
    vec![
        case("device hash, 1 target", device, 1),
        case("no hash needed, 1 target", ours, 1),
        // With one target, the receive path need not choose a CPU, and computes no hash.
        case("device hash, 2 targets", device, 2),
        case("device hash, 16 targets", device, 16),
        case("our hash, 2 targets", ours, 2),
        case("our hash, 16 targets", ours, 16),
        case("our hash, 2 targets, mixed", mixed, 2),
        case("our hash, 1,000 flows", FrameOptions { flows: 1000, ..ours }, 2),
        case("our hash, 10 million flows", FrameOptions { flows: 10_000_000, ..ours }, 2),
        Case { lpc_pages: 0, ..case("page cache off, 1 target", device, 1) },
    ]
}

pub(super) fn plan(settings: &Settings) -> Vec<Experiment> {
    let mut experiment = Experiment::new("path", 5, settings);
    let (frames, on) = (settings.frames(NANOS), settings.pair());
    let cases = cases(frames);
    let device = cases[0].frames;
    for case in cases {
        experiment.case(case.name, None, 2, move || {
            let builder = Builder::new().lpc_pages(case.lpc_pages);
            let times = run(on, builder, case.frames.input(), frames, case.targets, ReadsHeaders::default)?;
            Ok(times.of_all(frames)?.measurement())
        });
    }
    for (name, prefetches) in [("bare loop with prefetch", true), ("bare loop", false)] {
        experiment.case(name, None, 2, move || Ok(run_bare(on, device, prefetches)?.measurement()));
    }
    // The case on one CPU runs only if there are two CPUs, like the cases with which it is
    // compared.
    experiment.case("one CPU does all", None, 2, move || {
        let (times, _) = run_alone(on.receive, Builder::new(), device.input(), frames, ReadsHeaders::default)?;
        Ok(times.measurement())
    });
    experiment.case("pages alone, there and back", None, 2, move || page_cache::there_and_back(on, frames as usize));
    vec![experiment]
}
