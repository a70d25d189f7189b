//! What runs come to: medians with their spread, and which differences may be told.
//!
//! Runs are pooled only where series, `x` and placement are the same. Runs during which the CPUs moved are in no pool:
//! they are counted ([`moved`]), and that is all.

mod compare;
#[cfg(test)]
mod tests;

pub use compare::{ALIKE, Comparison, LEAST_TOLD, ROUNDS_MIN, Verdict, compare};

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::placement::Placement;
use crate::report::{Experiment, Sample};

/// A group of runs in three numbers, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The one in the middle; of an even number the mean of the two.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
    /// How many.
    pub runs: usize,
}

impl Spread {
    /// Of these, in any order; of none there is nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self::of_sorted(&sorted)
    }

    fn of_sorted(sorted: &[f64]) -> Option<Self> {
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        // Infinite ones have no mean.
        let median = if low == high { low } else { f64::midpoint(low, high) };
        Some(Self { median, least, most, runs: sorted.len() })
    }
}

/// The runs that may be pooled.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// What was run.
    pub series: &'a str,
    /// At which point.
    pub x: Option<f64>,
    /// Where the CPUs were.
    pub placement: Placement,
    /// The runs, in the order in which they were made.
    pub samples: Vec<&'a Sample>,
}

impl Group<'_> {
    /// What they came to by a metric; nothing where none has it.
    pub fn spread(&self, metric: &str) -> Option<Spread> {
        let values: Vec<f64> = self.samples.iter().filter_map(|sample| sample.values.get(metric).copied()).collect();
        Spread::of(&values)
    }

    /// The latencies of all its runs together: nanoseconds at most, and packets, in rising order.
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (nanos, packets) in self.samples.iter().flat_map(|sample| &sample.latencies) {
            let count = all.entry(*nanos).or_default();
            *count = count.saturating_add(*packets);
        }
        all.into_iter().filter(|(_, packets)| *packets > 0).collect()
    }
}

/// All groups of an experiment: by placement, then by `x`, then by series in the order of [`series`].
pub fn groups<'a>(experiment: &'a Experiment) -> Vec<Group<'a>> {
    let order = series(experiment);
    let at = |sample: &Sample| order.iter().position(|name| *name == sample.series);
    let mut samples: Vec<&'a Sample> = pooled(experiment).collect();
    samples.sort_by(|a, b| a.placement.cmp(&b.placement).then(by_x(a.x, b.x)).then(at(a).cmp(&at(b))));
    let same = |a: &&Sample, b: &&Sample| a.placement == b.placement && a.x == b.x && a.series == b.series;
    let group = |samples: &[&'a Sample]| Group {
        series: &samples[0].series,
        x: samples[0].x,
        placement: samples[0].placement,
        samples: samples.to_vec(),
    };
    samples.chunk_by(same).map(group).collect()
}

/// The series that were run, in the order in which they first were.
pub fn series(experiment: &Experiment) -> Vec<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for sample in &experiment.samples {
        if !seen.contains(&sample.series.as_str()) {
            seen.push(&sample.series);
        }
    }
    seen
}

/// Where the CPUs were, of what is pooled.
pub fn placements(experiment: &Experiment) -> Vec<Placement> {
    let mut all: Vec<Placement> = pooled(experiment).map(|sample| sample.placement).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// How many runs were left out, since the CPUs moved meanwhile.
pub fn moved(experiment: &Experiment) -> usize {
    experiment.samples.len() - pooled(experiment).count()
}

fn pooled(experiment: &Experiment) -> impl Iterator<Item = &Sample> {
    experiment.samples.iter().filter(|sample| sample.placement != Placement::Moved)
}

/// The order of points; without one comes first.
pub(crate) fn by_x(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}
