//! The experiments, in one file each. Each repeats the shape of an experiment that was published.

mod handoff;
mod hash;
mod late_metadata;
mod meter;
mod page_cache;
mod path;
mod rps;

use crate::benchmark::{Benchmark, Settings};
pub(crate) use path::series as path_series;

/// A name on the command line, and the function that makes its benchmarks. Some experiments have several parts.
type Named = (&'static str, fn(&Settings) -> Vec<Benchmark>);

/// All experiments, in the order in which they run.
const ALL: [Named; 8] = [
    ("rps", rps::benchmarks),
    ("delay", rps::delay),
    ("handoff", handoff::benchmarks),
    ("late-metadata", late_metadata::benchmarks),
    ("page-cache", page_cache::benchmarks),
    ("path", path::benchmarks),
    ("hash", hash::benchmarks),
    ("meter", meter::benchmarks),
];

/// The names of all experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The benchmarks of the experiment with this name; none if there is no such experiment.
pub fn benchmarks(name: &str, settings: &Settings) -> Vec<Benchmark> {
    ALL.iter().find(|(known, _)| *known == name).map_or_else(Vec::new, |(_, benchmarks)| benchmarks(settings))
}
