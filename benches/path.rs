//! What a packet costs the receiving CPU and the worker: by whose hash, how many targets, what traffic, what list, with and
//! without the local page cache.
//!
//! `cargo bench -p steerage-bench --bench path [-- ROUNDS [PART-OF-A-NAME]]`. Cases run in turn, A B C A B C ...; before and after
//! each run it is measured how far apart the two CPUs are, and near and far are never pooled.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::collections::BTreeMap;

use steerage::{LOCAL_PAGES, POLL_BUDGET};
use steerage_bench::frames::{FrameOptions, Mix};
use steerage_bench::measure::{Case, Figures, RX_CPU, run};
use steerage_bench::placement::{Placement, pin};

const FRAMES: u64 = 10_000_000;

fn cases() -> Vec<Case> {
    let frames = FrameOptions { mix: Mix::Uniform, device_hash: true, list: POLL_BUDGET, frames: FRAMES };
    let base = Case { name: "device hash, 1 target", frames, targets: 1, local_pages: LOCAL_PAGES };
    let ours = FrameOptions { device_hash: false, ..frames };
    let mixed = FrameOptions { mix: Mix::Mixed, ..ours };
    let list = |list| FrameOptions { list, ..frames };
    vec![
        base,
        Case { name: "device hash, 16 targets", targets: 16, ..base },
        Case { name: "no hash needed, 1 target", frames: ours, ..base },
        // Two targets, since with one there is nothing to choose and so nothing to hash.
        Case { name: "device hash, 2 targets", targets: 2, ..base },
        Case { name: "our hash, 2 targets", frames: ours, targets: 2, ..base },
        Case { name: "our hash, 16 targets", frames: ours, targets: 16, ..base },
        Case { name: "our hash, 2 targets, mixed", frames: mixed, targets: 2, ..base },
        Case { name: "lists of 1", frames: FrameOptions { frames: FRAMES / 10, ..list(1) }, ..base },
        Case { name: "lists of 8", frames: list(8), ..base },
        Case { name: "lists of 32", frames: list(32), ..base },
        Case { name: "lists of 64", frames: list(64), ..base },
        Case { name: "page cache off, 1 target", local_pages: 0, ..base },
    ]
}

fn median(of: &mut [f64]) -> (f64, f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[0], of[of.len() - 1])
}

fn main() {
    // `cargo bench` passes --bench.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let rounds: usize = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(7);
    let part = args.next().unwrap_or_default();
    pin(RX_CPU);
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name.contains(&part)).collect();
    let mut seen: BTreeMap<(usize, Placement), Vec<Figures>> = BTreeMap::new();
    for _ in 0..rounds {
        for (at, case) in cases.iter().enumerate() {
            let figures = run(case);
            seen.entry((at, figures.placement)).or_default().push(figures);
        }
    }
    println!("{rounds} rounds of {FRAMES} frames, 64 bytes, 65,536 flows; ns a packet, median [least..most]\n");
    println!("{:<28} {:<6} {:>4}  {:<24} {:<24} whole", "case", "where", "runs", "receive", "worker");
    for ((at, placement), figures) in &seen {
        if *placement == Placement::Moved {
            continue;
        }
        let column = |of: fn(&Figures) -> f64| {
            let (mid, low, high) = median(&mut figures.iter().map(of).collect::<Vec<_>>());
            format!("{mid:.2} [{low:.2}..{high:.2}]")
        };
        println!(
            "{:<28} {:<6} {:>4}  {:<24} {:<24} {}",
            cases[*at].name,
            placement.to_string(),
            figures.len(),
            column(|f| f.receive),
            column(|f| f.work),
            column(|f| f.whole),
        );
    }
}
