use std::collections::BTreeSet;

use serde::Serialize;
use steerage::{CpuId, CpuMask, topology::Topology};
use steerage_tune::Distances;

use crate::{Finding, State};

/// The CPUs that this process may use, as strings such as `0-3,8`.
#[derive(Debug, Serialize)]
pub(crate) struct Cpus {
    online: Option<String>,
    /// The CPU affinity of the process, which the cpuset of a cgroup limits.
    usable: String,
    /// The CPU time that the cgroup allows, in CPUs. `None` if the cgroup has no limit.
    quota: Option<f64>,
    /// The usable CPUs of each processor core with several hardware threads.
    smt: Vec<String>,
    caches: Vec<Cache>,
    nodes: Vec<Node>,
    /// The online CPUs that the kernel does not use for its own work.
    isolated: Option<String>,
    #[serde(skip)]
    count: usize,
    /// The CPUs that a run uses by default, and their distances from the first of these CPUs.
    #[serde(skip)]
    default: CpuMask,
    #[serde(skip)]
    distances: Option<(CpuId, Distances)>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Cache {
    level: u32,
    cpus: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Node {
    node: u32,
    cpus: String,
}

impl Cpus {
    pub(crate) fn of(topology: &Topology) -> Self {
        let usable = topology.allowed();
        let list = |cpus: &CpuMask| (!cpus.is_empty()).then(|| cpus.to_list());
        let of_ours = |all: &CpuMask| list(&all.and(usable));
        let cores = topology.cores().into_iter().map(|threads| threads.into_iter().collect::<CpuMask>());
        let smt = cores.map(|core| core.and(usable)).filter(|core| core.len() > 1);
        let caches = usable.iter().filter_map(|cpu| topology.place(cpu)?.cache.as_ref());
        let caches: BTreeSet<Cache> =
            caches.filter_map(|cache| Some(Cache { level: cache.level, cpus: of_ours(&cache.cpus)? })).collect();
        let nodes = topology.nodes().into_iter();
        let default = topology.default_mask();
        Self {
            online: list(topology.online()),
            usable: usable.to_list(),
            quota: topology.quota(),
            smt: smt.map(|core| core.to_list()).collect(),
            caches: caches.into_iter().collect(),
            nodes: nodes.filter_map(|(node, cpus)| Some(Node { node, cpus: of_ours(&cpus)? })).collect(),
            isolated: list(&topology.isolated().and(topology.online())),
            count: usable.len(),
            distances: default.first().map(|first| (first, Distances::of(topology, first, &default))),
            default,
        }
    }

    pub(crate) fn of_a_run(&self) -> usize {
        self.default.len()
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.usable()];
        findings.extend(self.quota.map(|quota| {
            let found = format!("the cgroup allows {quota:.1} CPUs' worth of time, beyond which all threads wait");
            let used = self.default.len();
            Finding::info("CPU quota", found).or(format!("steerage works on {used} unless --cpus says otherwise"))
        }));
        findings.extend(self.isolated.as_ref().map(|isolated| {
            Finding::info("isolated", format!("CPUs {isolated} are kept from the kernel's own work"))
                .or(format!("steerage works on {} unless --cpus names them", self.default))
        }));
        findings.push(match self.smt.as_slice() {
            [] => Finding::info("SMT", "no two of them are known to be threads of one core"),
            cores => Finding::info("SMT", format!("threads of one core: {}", cores.join("; ")))
                .or("two of a core do less than two cores: give --cpus one of each to compare"),
        });
        let list = |caches: &[Cache]| caches.iter().map(|cache| cache.cpus.as_str()).collect::<Vec<_>>().join("; ");
        let otherwise = self.measured_otherwise();
        findings.push(match self.caches.as_slice() {
            _ if otherwise.is_some() => Finding::info("caches", otherwise.unwrap_or_default()),
            [] => Finding::info("caches", "the kernel does not say which CPUs share one"),
            [one] => Finding::info("caches", format!("CPUs {} share one of level {}", one.cpus, one.level)),
            [first, ..] => {
                Finding::info("caches", format!("level {} is shared by CPUs {}", first.level, list(&self.caches)))
                    .or("let --rx-cpu and --cpus share one: packets go from cache to cache")
            }
        });
        if self.nodes.len() > 1 {
            let nodes = self.nodes.iter().map(|node| format!("node {} has CPUs {}", node.node, node.cpus));
            let found = nodes.collect::<Vec<_>>().join("; ");
            findings.push(Finding::info("NUMA", found).or("keep --cpus to the node of the network card"));
        }
        findings
    }

    /// Describes CPUs that are far apart according to measurements, although the kernel reports a
    /// shared cache.
    fn measured_otherwise(&self) -> Option<String> {
        let (first, distances) =
            self.distances.as_ref().filter(|(_, distances)| !distances.unlike_reported.is_empty())?;
        let others = self.default.iter().filter(|cpu| cpu != first).collect();
        let few = if self.default.len() == 2 { "CPU" } else { "CPUs" };
        Some(format!("CPU {first} and {few} {others}: {}", distances.of_others(&others, *first)))
    }

    fn usable(&self) -> Finding {
        let of = match &self.online {
            Some(online) if *online != self.usable => format!("CPUs {} of {online}", self.usable),
            _ => format!("CPUs {}", self.usable),
        };
        match self.count {
            0 => Finding { state: State::Missing, ..Finding::info("CPUs", "it cannot be read which may be used") },
            1 => Finding::missing(
                "CPUs",
                of + ": packets cannot be spread",
                "allow more (taskset, the container's cpuset)",
            ),
            _ => Finding::ok("CPUs", of),
        }
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::scratch::Scratch;

    use super::*;

    const CPUS: &str = "sys/devices/system/cpu";

    fn cpus_of(fake: &Scratch, allowed: &str) -> Cpus {
        let allowed = CpuMask::parse_list(allowed, 1024).unwrap();
        Cpus::of(&Topology::below(&**fake, Some(allowed)))
    }

    fn found(cpus: &Cpus) -> String {
        cpus.findings()
            .iter()
            .map(|finding| format!("{:?} {}: {}\n", finding.state, finding.about, finding.found))
            .collect()
    }

    #[test]
    fn one_cpu_and_nothing_to_read() {
        let cpus = cpus_of(&Scratch::with_files(&[]), "0");
        assert_eq!(
            found(&cpus),
            "Missing CPUs: CPUs 0: packets cannot be spread\n\
             Info SMT: no two of them are known to be threads of one core\n\
             Info caches: the kernel does not say which CPUs share one\n"
        );
        assert_eq!(cpus.quota, None);
        let none = Cpus::of(&Topology::below(&*Scratch::new(), None));
        assert!(found(&none).starts_with("Missing CPUs: it cannot be read"), "{}", found(&none));
    }

    /// A machine with two packages of two cores with two threads each. In this test, the process
    /// may use three quarters of the CPUs.
    #[test]
    fn threads_caches_and_nodes() {
        let mut files: Vec<(String, String)> = vec![
            (format!("{CPUS}/online"), "0-7".into()),
            ("sys/devices/system/node/node0/cpulist".into(), "0-1,4-5".into()),
            ("sys/devices/system/node/node1/cpulist".into(), "2-3,6-7".into()),
            ("sys/devices/system/node/node2/cpulist".into(), "".into()),
        ];
        for cpu in 0..8 {
            let (core, package) = (cpu % 4, cpu % 4 / 2);
            let near = if package == 0 { "0-1,4-5" } else { "2-3,6-7" };
            files.push((format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"), format!("{core},{}", core + 4)));
            files.push((format!("{CPUS}/cpu{cpu}/cache/index0/level"), "1".into()));
            files.push((format!("{CPUS}/cpu{cpu}/cache/index0/shared_cpu_list"), format!("{core},{}", core + 4)));
            files.push((format!("{CPUS}/cpu{cpu}/cache/index3/level"), "3".into()));
            files.push((format!("{CPUS}/cpu{cpu}/cache/index3/shared_cpu_list"), near.into()));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let cpus = cpus_of(&Scratch::with_files(&files), "0-5");
        assert_eq!(
            found(&cpus),
            "Ok CPUs: CPUs 0-5 of 0-7\n\
             Info SMT: threads of one core: 0,4; 1,5\n\
             Info caches: level 3 is shared by CPUs 0-1,4-5; 2-3\n\
             Info NUMA: node 0 has CPUs 0-1,4-5; node 1 has CPUs 2-3\n"
        );
    }

    #[test]
    fn the_limits_of_the_default_are_reported() {
        let fake = Scratch::with_files(&[
            (&format!("{CPUS}/online"), "0-7"),
            (&format!("{CPUS}/isolated"), "0-1,9"),
            ("proc/self/cgroup", "0::/a"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000"),
        ]);
        let cpus = cpus_of(&fake, "0-7");
        assert!(
            found(&cpus).contains(
                "Info CPU quota: the cgroup allows 1.5 CPUs' worth of time, beyond which all threads wait\n\
                 Info isolated: CPUs 0-1 are kept from the kernel's own work\n"
            ),
            "{}",
            found(&cpus)
        );
        let fixes: Vec<_> = cpus.findings().into_iter().filter_map(|finding| finding.fix).collect();
        assert_eq!(
            fixes[..2],
            ["steerage works on 1 unless --cpus says otherwise", "steerage works on 2 unless --cpus names them"]
        );
    }
}
