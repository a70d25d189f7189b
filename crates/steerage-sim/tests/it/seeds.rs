//! `STEERAGE_SEED=n` selects the seed n, and `STEERAGE_SEEDS=n` the first n seeds.

pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STEERAGE_SEED") {
        Ok(seed) => vec![seed.parse().expect("STEERAGE_SEED is a number")],
        Err(_) => {
            let asked = std::env::var("STEERAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
            (1..=asked.unwrap_or(count)).collect()
        }
    }
}

/// Returns true if all `count` seeds run. With fewer seeds, a test does not check its totals.
pub(crate) fn all_run(count: u64) -> bool {
    seeds(count).len() as u64 >= count
}
