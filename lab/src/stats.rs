//! Groups of runs, and their medians.
//!
//! Runs are pooled only if series, `x` and placement are the same. Runs during which the CPUs moved
//! are in no group: they are only counted ([`moved`]).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::placement::Placement;
use crate::report::{Experiment, Sample};

/// The median and the range of a group of runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The value in the middle. For an even number of values, this is the mean of the two in the
    /// middle.
    pub median: f64,
    /// The lowest value.
    pub least: f64,
    /// The highest value.
    pub most: f64,
    /// The number of runs.
    pub runs: usize,
}

impl Spread {
    /// The spread of values in any order; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self::of_sorted(&sorted)
    }

    /// The spread of sorted values.
    pub(crate) fn of_sorted(sorted: &[f64]) -> Option<Self> {
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        // Two infinite values have no mean.
        let median = if low == high { low } else { f64::midpoint(low, high) };
        Some(Self { median, least, most, runs: sorted.len() })
    }
}

/// Runs that may be pooled.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Their series.
    pub series: &'a str,
    /// Their point on the axis.
    pub x: Option<f64>,
    /// How far apart their CPUs were.
    pub placement: Placement,
    /// The runs, in the order in which they were made.
    pub samples: Vec<&'a Sample>,
}

impl Group<'_> {
    /// The spread of a metric; `None` if no run has it.
    pub fn spread(&self, metric: &str) -> Option<Spread> {
        let values: Vec<f64> = self.samples.iter().filter_map(|sample| sample.values.get(metric).copied()).collect();
        Spread::of(&values)
    }

    /// The latencies of all runs together, in the form of [`Sample::latencies`].
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let mut all: BTreeMap<u64, u64> = BTreeMap::new();
        for (nanos, packets) in self.samples.iter().flat_map(|sample| &sample.latencies) {
            let count = all.entry(*nanos).or_default();
            *count = count.saturating_add(*packets);
        }
        all.into_iter().filter(|(_, packets)| *packets > 0).collect()
    }
}

/// All groups of an experiment, sorted by placement, then by `x`, then by series in the order of [`series`].
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

/// The series of an experiment, in the order of their first runs.
pub fn series(experiment: &Experiment) -> Vec<&str> {
    let mut seen: Vec<&str> = Vec::new();
    for sample in &experiment.samples {
        if !seen.contains(&sample.series.as_str()) {
            seen.push(&sample.series);
        }
    }
    seen
}

/// The placements of the runs that are pooled.
pub fn placements(experiment: &Experiment) -> Vec<Placement> {
    let mut all: Vec<Placement> = pooled(experiment).map(|sample| sample.placement).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The number of runs that are left out because the CPUs moved during the run.
pub fn moved(experiment: &Experiment) -> usize {
    experiment.samples.len() - pooled(experiment).count()
}

fn pooled(experiment: &Experiment) -> impl Iterator<Item = &Sample> {
    experiment.samples.iter().filter(|sample| sample.placement != Placement::Moved)
}

/// The order of points on the axis. Runs without a point come first.
pub(crate) fn by_x(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}
