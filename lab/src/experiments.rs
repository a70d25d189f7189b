//! The experiments, in one file each. Each experiment repeats the design of a published experiment.

mod handoff;
mod late_metadata;
mod meter;
mod page_cache;
mod path;
mod rps;

use crate::experiment::{Experiment, Settings};
use crate::rr;

type Named = (&'static str, fn(&Settings) -> Vec<Experiment>);

/// All experiments, in the order in which they run.
const ALL: [Named; 8] = [
    ("rps", rps::plan),
    ("delay", rps::delay),
    ("handoff", handoff::plan),
    ("late-metadata", late_metadata::plan),
    ("page-cache", page_cache::plan),
    ("path", path::plan),
    ("meter", meter::plan),
    ("rr", rr::plan),
];

/// The names of all experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The experiments that belong to this name. Empty if the experiment does not exist.
pub fn plan(name: &str, settings: &Settings) -> Vec<Experiment> {
    ALL.iter().find(|(known, _)| *known == name).map_or_else(Vec::new, |(_, plan)| plan(settings))
}
