//! The experiments: each repeats the shape of one that was published. One file each; what they have in common is in [`plan`]
//! and [`conduct()`].

pub mod conduct;
pub mod plan;

mod handoff;
mod hash;
mod late_metadata;
mod meter;
mod page_cache;
mod path;
mod rps;

pub use conduct::{Progress, conduct};
pub use plan::{About, Figures, Plan, Settings};

/// A name on the command line, and what it stands for: some are experiments in several parts.
type Named = (&'static str, fn(&Settings) -> Vec<Plan>);

/// All of them, in the order in which they are run.
const ALL: [Named; 7] = [
    ("rps", rps::plans),
    ("handoff", handoff::plans),
    ("late-metadata", late_metadata::plans),
    ("page-cache", page_cache::plans),
    ("path", path::plans),
    ("hash", hash::plans),
    ("meter", meter::plans),
];

/// What there is to be measured.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The experiments of one name, ready to run; none if there is no such name.
pub fn plans(name: &str, settings: &Settings) -> Vec<Plan> {
    ALL.iter().find(|(known, _)| *known == name).map_or_else(Vec::new, |(_, plans)| plans(settings))
}
