//! A device with a ring of 4096 pages: metadata made early or late, small frames copied out of the ring's pages or not; and at
//! several rates, what is lost since the ring was full.
//!
//! `cargo bench -p steerage-bench --bench ring [-- ROUNDS [PART-OF-A-NAME]]`. Cases run in turn; see `path` for how.

use steerage::Builder;
use steerage_bench::measure::{in_turn, run_lossy, run_with};
use steerage_bench::nic::{Metadata, NicOptions};

const FRAMES: u64 = 3_000_000;

/// Of small frames, in millions a second: from what early metadata keeps up with far away to what late does not near.
const RATES: [u64; 8] = [4, 6, 8, 12, 16, 20, 25, 30];

/// How many of them come at each rate: a second's fourth part.
const RATED: u64 = 4;

struct Case {
    nic: NicOptions,
    copybreak: usize,
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for frame_bytes in [64, 256, 512, 1024, 1514] {
        let late = NicOptions { frame_bytes, frames: FRAMES, metadata: Metadata::Late, rate: None };
        let early = NicOptions { metadata: Metadata::Early, ..late };
        cases.push((format!("{frame_bytes} bytes, late"), Case { nic: late, copybreak: 0 }));
        cases.push((format!("{frame_bytes} bytes, early"), Case { nic: early, copybreak: 0 }));
        cases.push((format!("{frame_bytes} bytes, late, copied"), Case { nic: late, copybreak: frame_bytes }));
    }
    for rate in RATES.map(|millions| 1_000_000 * millions) {
        let late = NicOptions { frame_bytes: 64, frames: rate / RATED, metadata: Metadata::Late, rate: Some(rate) };
        let early = NicOptions { metadata: Metadata::Early, ..late };
        let name = |when| format!("{} Mpps, {when}", rate / 1_000_000);
        cases.push((name("late"), Case { nic: late, copybreak: 0 }));
        cases.push((name("early"), Case { nic: early, copybreak: 0 }));
    }
    cases
}

fn main() {
    in_turn(cases(), 5, |case| {
        let (input, make) = case.nic.input();
        let builder = Builder::new().copybreak(case.copybreak);
        match case.nic.rate {
            None => run_with(builder, input, case.nic.frames, 1, make),
            Some(_) => run_lossy(builder, input, case.nic.frames, 1, make).0,
        }
    });
}
