//! One series in terms of another, and whether that may be called a difference.
//!
//! **The rule.** Machines drift, so two series are compared only within a round, in which they were run one after the other,
//! and only where both were run at one placement. Each round gives one ratio. It is turned so that above 1 the first is
//! better, whether more of the metric is better or less. Of the ratios:
//!
//! - Fewer than [`ROUNDS_MIN`] say nothing: *too few runs*.
//! - The *spread* is the interval from the k-th lowest to the k-th highest ratio, with the largest k for which the true median
//!   lies inside with a chance of 95 % at least, whatever the ratios' distribution (the sign test; Conover, Practical
//!   Nonparametric Statistics, 3.2). Below nine rounds that is from the least to the most. With three rounds the chance is
//!   75 %, with four 88, with five 94, with six 97: hence the next point.
//! - A difference is told only if the whole spread lies on one side of 1, *and* the median is farther from 1 than the spread
//!   is wide, both as ratios (1.27 of [1.21..1.30]: 1.27 against 1.30 / 1.21), and only if it would not be written as 1.00
//!   ([`LEAST_TOLD`]).
//! - Otherwise it is *no difference*, if the spread is around 1 and no farther from it than [`ALIKE`]; that much has been seen.
//!   All else is *unclear*: the runs differ too much for one or the other.
//!
//! Swapping the two turns the verdict and changes nothing else.

use std::collections::BTreeMap;
use std::fmt;

use super::{Spread, by_x, groups};
use crate::placement::Placement;
use crate::report::{Experiment, Pair};

/// Fewer rounds tell nothing: two that agree by chance are one in two.
pub const ROUNDS_MIN: usize = 3;

/// A gain below this rounds to 1.00.
pub const LEAST_TOLD: f64 = 1.005;

/// Two series that differ by less than this are as good as each other.
pub const ALIKE: f64 = 1.1;

/// The chance that the true median is outside of the spread, where there are rounds enough.
const CHANCE_OUTSIDE: f64 = 0.05;

/// Ratios are not told more exactly from here on: something divided by almost nothing.
const RATIO_TOLD_MAX: f64 = 999.0;

/// One series in terms of another at one point and one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// At which point.
    pub x: Option<f64>,
    /// Where the CPUs were.
    pub placement: Placement,
    /// The median of the ratios; above 1 the first is better. 0 without rounds.
    pub ratio: f64,
    /// Where the spread begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// How many rounds have both.
    pub rounds: usize,
    /// What may be said.
    pub verdict: Verdict,
}

/// What may be said of two series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first is better.
    Better,
    /// The second is.
    Worse,
    /// There is none that would matter.
    NoDifference,
    /// The spread is too wide for any of these.
    Unclear,
    /// Not rounds enough.
    TooFew,
}

/// As a table says it: `1.27 times [1.21..1.30]`, `no difference (0.97..1.04)`.
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

/// A ratio as it is written.
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        // NaN is none of these.
        _ if ratio > RATIO_TOLD_MAX => format!("over {RATIO_TOLD_MAX}"),
        _ if ratio >= 99.95 => format!("{ratio:.0}"),
        _ if ratio >= 9.995 => format!("{ratio:.1}"),
        _ if ratio >= 0.0995 => format!("{ratio:.2}"),
        _ => format!("{ratio:.3}"),
    }
}

/// A pair at every point and placement at which both were run; nothing if the experiment has no such metric.
pub fn compare(experiment: &Experiment, pair: &Pair) -> Vec<Comparison> {
    let Some(metric) = experiment.metrics.iter().find(|metric| metric.name == pair.metric) else { return Vec::new() };
    let groups = groups(experiment);
    let mut found = Vec::new();
    for of in groups.iter().filter(|group| group.series == pair.of) {
        let same =
            |over: &&super::Group<'_>| over.series == pair.over && over.x == of.x && over.placement == of.placement;
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

/// By round; of several runs in one their median.
fn by_round(group: &super::Group<'_>, metric: &str) -> BTreeMap<usize, f64> {
    let mut rounds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for sample in &group.samples {
        if let Some(value) = sample.values.get(metric) {
            rounds.entry(sample.round).or_default().push(*value);
        }
    }
    rounds.into_iter().filter_map(|(round, values)| Some((round, Spread::of(&values)?.median))).collect()
}

/// How many times `more` is of `less`. Nothing of nothing is as much; a loss that is gone is a gain without bounds.
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
    // Of a ratio and its inverse the logarithms are as far from 0. Equal ones have no width, be they infinite.
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

/// How many ratios may be left out at either end. The true median is outside with a chance of twice that of at most so many
/// heads in `rounds` throws of a coin.
fn outside(rounds: usize) -> usize {
    // From here on the binomial distribution is a normal one, and powers of a half are none too small to be added up.
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
            // One less leaves the chance below; none is left out where even the ends have too large a one.
            return heads.saturating_sub(1);
        }
        ways = ways * (rounds - heads) as f64 / (heads + 1) as f64;
        heads += 1;
    }
}
