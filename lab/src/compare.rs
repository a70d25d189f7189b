//! Compares one series with another, and decides whether the difference counts.
//!
//! **The rule.** Machines drift, so two series are compared only within a round, in which they ran
//! one after the other, and only if both ran at the same placement. Each round gives one ratio. The
//! ratio is above 1 if the first series is better, whether more of the metric is better or less.
//! Then:
//!
//! - Fewer than [`ROUNDS_MIN`] ratios say nothing: *too few runs*.
//! - The *spread* is the interval from the k-th lowest to the k-th highest ratio. k is the largest
//!   number for which the true median lies inside with a probability of at least 95 %. The sign
//!   test gives this probability, whatever the distribution of the ratios (Conover, Practical
//!   Nonparametric Statistics, 3.2). With fewer than nine rounds the spread is from the lowest to
//!   the highest ratio. With three to six rounds the probability is then only 75 % to 97 %, and
//!   therefore the next rule exists.
//! - There is a difference only if three conditions hold. The whole spread lies on one side of 1.
//!   The median is farther from 1 than the spread is wide, *as a ratio*: 1.27 is enough for
//!   [1.21..1.30]. The median does not round to 1.00 ([`LEAST_TOLD`]).
//! - Otherwise there is *no difference* if the spread includes 1 and goes no farther from it than [`ALIKE`].
//! - Everything else is *unclear*: the runs differ too much for either verdict.
//!
//! If the two series are swapped, the verdict is reversed and nothing else changes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use crate::placement::Placement;
use crate::report::{Experiment, Pair};
use crate::stats::{Group, Spread, by_x, groups};

/// The fewest rounds that are compared. Two rounds agree with each other by luck in one of two
/// cases.
pub const ROUNDS_MIN: usize = 3;

/// The smallest gain that does not round to 1.00.
pub const LEAST_TOLD: f64 = 1.005;

/// Two series that differ by a smaller ratio are considered equal.
pub const ALIKE: f64 = 1.1;

/// The probability that the true median is outside of the spread, if there are enough rounds.
const CHANCE_OUTSIDE: f64 = 0.05;

/// Ratios above this are shown as `over 999`, since the divisor was almost 0.
const RATIO_TOLD_MAX: f64 = 999.0;

/// One series compared with another at one point and one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The point on the axis.
    pub x: Option<f64>,
    /// How far apart the CPUs were.
    pub placement: Placement,
    /// The median of the ratios: above 1 the first series is better. 0 if there are no rounds.
    pub ratio: f64,
    /// The lower end of the spread.
    pub low: f64,
    /// The upper end of the spread.
    pub high: f64,
    /// The number of rounds in which both series ran.
    pub rounds: usize,
    /// The verdict.
    pub verdict: Verdict,
}

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first series is better.
    Better,
    /// The second series is better.
    Worse,
    /// There is no difference that matters.
    NoDifference,
    /// The spread is too wide for any other verdict.
    Unclear,
    /// There are not enough rounds.
    TooFew,
}

/// Formats the comparison as the tables show it: `1.27 times [1.21..1.30]`,
/// `no difference (0.97..1.04)`.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (times(self.low), times(self.high));
        match self.verdict {
            Verdict::Better | Verdict::Worse => {
                let worse = if self.verdict == Verdict::Worse { ", worse" } else { "" };
                write!(f, "{} times [{low}..{high}]{worse}", times(self.ratio))
            }
            Verdict::NoDifference => write!(f, "no difference ({low}..{high})"),
            Verdict::Unclear => write!(f, "unclear ({low}..{high})"),
            Verdict::TooFew => write!(f, "too few runs ({} of {ROUNDS_MIN})", self.rounds),
        }
    }
}

/// Formats a ratio.
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        // NaN matches none of these conditions.
        _ if ratio > RATIO_TOLD_MAX => format!("over {RATIO_TOLD_MAX}"),
        _ if ratio >= 99.95 => format!("{ratio:.0}"),
        _ if ratio >= 9.995 => format!("{ratio:.1}"),
        _ if ratio >= 0.0995 => format!("{ratio:.2}"),
        _ => format!("{ratio:.3}"),
    }
}

/// Compares two series at each point and placement at which both ran. Returns nothing if the
/// experiment has no such metric.
pub fn compare(experiment: &Experiment, pair: &Pair) -> Vec<Comparison> {
    let Some(metric) = experiment.metrics.iter().find(|metric| metric.name == pair.metric) else { return Vec::new() };
    let groups = groups(experiment);
    let mut found = Vec::new();
    for of in groups.iter().filter(|group| group.series == pair.of) {
        let same = |over: &&Group<'_>| over.series == pair.over && over.x == of.x && over.placement == of.placement;
        let Some(over) = groups.iter().find(same) else { continue };
        let (ours, theirs) = (by_round(of, &pair.metric), by_round(over, &pair.metric));
        let of_round = |(round, ours): (&usize, &f64)| {
            let theirs = *theirs.get(round)?;
            Some(if metric.more_is_better { gain(*ours, theirs) } else { gain(theirs, *ours) })
        };
        found.push(judge(of.x, of.placement, ours.iter().filter_map(of_round).collect()));
    }
    found.sort_by(|a, b| a.placement.cmp(&b.placement).then(by_x(a.x, b.x)));
    found
}

/// The value of each round. If a round has several runs, it is their median.
fn by_round(group: &Group<'_>, metric: &str) -> BTreeMap<usize, f64> {
    let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for sample in &group.samples {
        if let Some(value) = sample.values.get(metric) {
            rounds.entry(sample.round).or_default().push(*value);
        }
    }
    rounds.into_iter().filter_map(|(round, values)| Some((round, Spread::of(&values)?.median))).collect()
}

/// The ratio of two values. Two zeros are equal, so their ratio is 1. The ratio of a value to zero
/// is infinite.
fn gain(more: f64, less: f64) -> f64 {
    if more == less { 1.0 } else { more / less }
}

fn judge(x: Option<f64>, placement: Placement, mut ratios: Vec<f64>) -> Comparison {
    ratios.sort_by(f64::total_cmp);
    let rounds = ratios.len();
    let Some(spread) = Spread::of_sorted(&ratios).filter(|_| rounds >= ROUNDS_MIN) else {
        let ratio = Spread::of_sorted(&ratios).map_or(0.0, |spread| spread.median);
        return Comparison { x, placement, ratio, low: ratio, high: ratio, rounds, verdict: Verdict::TooFew };
    };
    let outside = outside(rounds);
    let (ratio, low, high) = (spread.median, ratios[outside], ratios[rounds - 1 - outside]);
    // By logarithm, a ratio and its inverse are equally far from 1. Two equal ends have no width,
    // even if both are infinite.
    let width = if low == high { 0.0 } else { high.ln() - low.ln() };
    let tiny = ratio.ln().abs() < LEAST_TOLD.ln();
    let told = ratio.ln().abs() >= width && !tiny;
    let alike = low >= 1.0 / ALIKE && high <= ALIKE;
    let verdict = match (low > 1.0, high < 1.0) {
        (true, _) if told => Verdict::Better,
        (_, true) if told => Verdict::Worse,
        (false, false) if alike => Verdict::NoDifference,
        _ if alike && tiny => Verdict::NoDifference,
        _ => Verdict::Unclear,
    };
    Comparison { x, placement, ratio, low, high, rounds, verdict }
}

/// The number of ratios that lie outside of the spread at either end. The probability that the true
/// median also lies there is twice the probability of at most this number of heads in `rounds`
/// throws of a coin.
fn outside(rounds: usize) -> usize {
    // Above this the normal approximation is close enough. Below it, the powers of one half are
    // large enough for an exact sum.
    const EXACT_MAX: usize = 200;
    /// Two-sided, 5 %.
    const DEVIATIONS: f64 = 1.96;
    if rounds > EXACT_MAX {
        let n = rounds as f64;
        return ((n - DEVIATIONS * n.sqrt()) / 2.0 - 1.0) as usize;
    }
    let (mut ways, mut chance, mut heads) = (1.0, 0.0, 0_usize);
    loop {
        chance += ways * 0.5_f64.powi(rounds as i32);
        if 2.0 * chance > CHANCE_OUTSIDE {
            // With one head fewer the probability is low enough. If even zero heads are too
            // probable, no ratio is left out.
            return heads.saturating_sub(1);
        }
        ways = ways * (rounds - heads) as f64 / (heads + 1) as f64;
        heads += 1;
    }
}
