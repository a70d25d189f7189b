//! The experiments, one file each. Most of the experiments repeat the design of a published
//! experiment.

mod handoff;
mod late_metadata;
mod limits;
mod meter;
mod page_cache;
mod path;
mod rps;
mod scale;

use crate::experiment::{Experiment, Settings};
use crate::rr;

struct Group {
    name: &'static str,
    /// The experiments that run together with the experiment that is named like the group.
    others: &'static [&'static str],
    plan: fn(&Settings) -> Vec<Experiment>,
}

const fn group(name: &'static str, others: &'static [&'static str], plan: fn(&Settings) -> Vec<Experiment>) -> Group {
    Group { name, others, plan }
}

/// All groups of experiments, in the order in which they run.
const ALL: [Group; 10] = [
    group("rps", &["rps-cpus", "rps-queues", "rps-tun"], rps::plan),
    group("delay", &[], rps::delay),
    group("handoff", &["handoff-rate"], handoff::plan),
    group("late-metadata", &["late-metadata-drop", "late-metadata-loss"], late_metadata::plan),
    group(
        "page-cache",
        &["page-cache-frames", "page-cache-size", "page-cache-path", "page-cache-rate"],
        page_cache::plan,
    ),
    group("path", &[], path::plan),
    group("meter", &["meter-800", "meter-mix"], meter::plan),
    group("rr", &[], rr::plan),
    group("limits", &[], limits::plan),
    group(SIMULATED, &["scale-queues", "scale-traffic", "scale-work", "scale-seeds"], scale::plan),
];

/// The group of simulated experiments runs only if it is named, because its results do not depend
/// on this machine.
const SIMULATED: &str = "scale";

/// Returns the names of the groups of experiments.
pub fn groups() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|group| group.name)
}

/// Returns the names of the groups that measure this machine.
pub fn measuring() -> impl Iterator<Item = &'static str> {
    groups().filter(|group| *group != SIMULATED)
}

/// Returns the names of the experiments that can also run without the rest of their group.
pub fn others() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|group| group.others.iter().copied())
}

/// Returns the experiments of the group or the single experiment with this name, if there is any.
pub fn plan(name: &str, settings: &Settings) -> Vec<Experiment> {
    let planned = |group: &Group| (group.plan)(settings);
    match ALL.iter().find(|group| group.name == name) {
        Some(group) => planned(group),
        None => {
            let group = ALL.iter().find(|group| group.others.contains(&name));
            let all = group.map_or_else(Vec::new, planned);
            all.into_iter().filter(|experiment| experiment.name == name).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_has_a_name_to_run_it_by() {
        let settings = Settings::quick(vec![0, 1]);
        for group in ALL.iter().filter(|group| group.name != "rr") {
            let planned: Vec<&str> = (group.plan)(&settings).iter().map(|experiment| experiment.name).collect();
            assert_eq!(planned, [&[group.name], group.others].concat());
        }
        let alone = plan("handoff-rate", &settings);
        assert!(alone.len() == 1 && alone[0].name == "handoff-rate");
    }
}
