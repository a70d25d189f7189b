//! The seeds that a test runs.
//!
//! To run only the seed n: `STEERAGE_SEED=n cargo test -p steerage-sim --test it history::`. The
//! environment variable `STEERAGE_SEEDS=n` limits a run to the first n seeds.

pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STEERAGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STEERAGE_SEED is a number")],
        Err(_) => {
            let asked = std::env::var("STEERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
            (1..=asked.unwrap_or(count)).collect()
        }
    }
}

/// Returns true if at least `count` seeds run. Some tests check totals over all seeds. A run with
/// fewer seeds may not reach these totals.
pub(crate) fn all_run(count: u64) -> bool {
    seeds(count).len() as u64 >= count
}
