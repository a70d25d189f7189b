//! What a packet costs the receiving CPU and the worker: by whose hash, how many targets, what traffic, what list, with and
//! without the local page cache.
//!
//! `cargo bench -p steerage-bench --bench path [-- ROUNDS [PART-OF-A-NAME]]`. Cases run in turn, A B C A B C ...; before and after
//! each run it is measured how far apart the two CPUs are, and near and far are never pooled.
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use steerage::{LPC_SIZE_DEFAULT, POLL_BUDGET};
use steerage_bench::frames::{FrameOptions, Mix};
use steerage_bench::measure::{Case, in_turn, run};

const FRAMES: u64 = 10_000_000;

fn cases() -> Vec<Case> {
    let frames = FrameOptions { mix: Mix::Uniform, device_hash: true, list: POLL_BUDGET, frames: FRAMES };
    let base = Case { name: "device hash, 1 target", frames, targets: 1, lpc_size: LPC_SIZE_DEFAULT };
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
        Case { name: "page cache off, 1 target", lpc_size: 0, ..base },
    ]
}

fn main() {
    println!("frames of 64 bytes, 65,536 flows");
    in_turn(cases().into_iter().map(|case| (case.name.to_owned(), case)).collect(), 7, run);
}
