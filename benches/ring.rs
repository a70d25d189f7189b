//! A device with a ring of 4096 pages: metadata made early or late, small frames copied out of the ring's pages or not.
//!
//! `cargo bench -p steerage-bench --bench ring [-- ROUNDS [PART-OF-A-NAME]]`. Cases run in turn; see `path` for how.

use steerage::Builder;
use steerage_bench::measure::{in_turn, run_with};
use steerage_bench::nic::{Metadata, NicOptions};

const FRAMES: u64 = 3_000_000;

struct Case {
    nic: NicOptions,
    copybreak: usize,
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for frame_bytes in [64, 256, 512, 1024, 1514] {
        let late = NicOptions { frame_bytes, frames: FRAMES, metadata: Metadata::Late };
        let early = NicOptions { metadata: Metadata::Early, ..late };
        cases.push((format!("{frame_bytes} bytes, late"), Case { nic: late, copybreak: 0 }));
        cases.push((format!("{frame_bytes} bytes, early"), Case { nic: early, copybreak: 0 }));
        cases.push((format!("{frame_bytes} bytes, late, copied"), Case { nic: late, copybreak: frame_bytes }));
    }
    cases
}

fn main() {
    in_turn(cases(), 5, |case| {
        let (input, make) = case.nic.input();
        run_with(Builder::new().copybreak(case.copybreak), input, FRAMES, 1, make)
    });
}
