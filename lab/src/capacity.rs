//! Finds, by bisection, the highest packet rate at which a receive path loses no packets.

use std::time::Duration;

use crate::error::LabError;

/// A loss of up to this percentage counts as none, as in the published measurement of `build_skb`.
pub const NONE_LOST: f64 = 0.1;

/// The maximum number of times that a search doubles or halves the rate, enough for every CPU.
const DOUBLINGS: u32 = 9;

/// After six bisections between a rate and its double, the error is at most 2 %.
const BISECTIONS: u32 = 6;

/// The number of runs at each rate. The least loss counts, because other programs only increase the
/// loss.
const TRIES: u32 = 3;

/// The approximate number of runs of a search.
pub const SEARCH_RUNS: u32 = 2 * (BISECTIONS + DOUBLINGS / 2);

/// The loss of a run at one rate.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// The percentage of packets that were lost.
    pub lost_percent: f64,
    /// The percentage of time in which the receiving CPU was busy.
    pub cpu_percent: f64,
}

/// Returns the number of frames that arrive in `time` at `rate` frames per second.
pub fn frames_in(time: Duration, rate: f64) -> u64 {
    ((time.as_secs_f64() * rate) as u64).max(1)
}

/// Makes several runs at `rate` packets per second, and returns the least loss.
///
/// # Errors
/// Returns the error of a run.
pub fn least_loss(rate: f64, run: impl Fn(f64) -> Result<Loss, LabError>) -> Result<Loss, LabError> {
    let mut least = run(rate)?;
    for _ in 1..TRIES {
        if least.lost_percent <= NONE_LOST {
            break;
        }
        let again = run(rate)?;
        least = if again.lost_percent < least.lost_percent { again } else { least };
    }
    Ok(least)
}

/// Returns the highest number of packets per second of which at most `most_lost` percent are lost.
/// The search begins at `from`. The result is 0 if even `from / 512` is too high.
///
/// # Errors
/// Returns the error of a run.
pub fn highest_rate(most_lost: f64, from: f64, run: impl Fn(f64) -> Result<Loss, LabError>) -> Result<f64, LabError> {
    let keeps_up = |rate| least_loss(rate, &run).map(|loss| loss.lost_percent <= most_lost);
    let mut low = from;
    let mut halvings = 0;
    while !keeps_up(low)? {
        if halvings == DOUBLINGS {
            return Ok(0.0);
        }
        (low, halvings) = (low / 2.0, halvings + 1);
    }
    let mut high = 2.0 * low;
    // If the rate was halved, `2.0 * low` is known to be too high.
    while halvings == 0 && high < from * f64::from(1 << DOUBLINGS) && keeps_up(high)? {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if keeps_up(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_below_and_above_the_first() {
        let at = |capacity: f64| {
            move |rate: f64| Ok(Loss { lost_percent: 100.0 * (1.0 - (capacity / rate).min(1.0)), cpu_percent: 0.0 })
        };
        for capacity in [2.1e3, 7e3, 0.3e6, 1.6e6, 30e6, 200e6] {
            let found = highest_rate(NONE_LOST, 1e6, at(capacity)).unwrap();
            assert!((found / capacity - 1.0).abs() < 0.02, "{found} for {capacity}");
            let found = highest_rate(15.0, 1e6, at(capacity)).unwrap();
            assert!((found / capacity * 0.85 - 1.0).abs() < 0.02, "{found} for {capacity}");
        }
        assert_eq!(highest_rate(NONE_LOST, 1e6, at(1e3)).unwrap(), 0.0, "the search ends");
    }

    #[test]
    fn a_disturbed_run_does_not_count() {
        let runs = std::cell::Cell::new(0);
        let run = |_| {
            runs.set(runs.get() + 1);
            Ok(Loss { lost_percent: if runs.get() % 2 == 1 { 30.0 } else { 0.0 }, cpu_percent: 0.0 })
        };
        assert_eq!(least_loss(1.0, run).unwrap().lost_percent, 0.0);
        assert_eq!(runs.get(), 2);
    }
}
