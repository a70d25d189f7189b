//! CPUs: how many may be used, and which of them are near to each other.

use std::collections::BTreeSet;

use serde::Serialize;
use steerage::{CpuId, CpuMask};

use super::host::Host;
use super::probe::Probes;
use super::{Finding, State};

const CPUS: &str = "sys/devices/system/cpu";

/// CPUs that this process may use, as lists such as `0-3,8`.
#[derive(Debug, Serialize)]
pub(super) struct Cpus {
    online: Option<String>,
    /// By affinity, which a cgroup's cpuset bounds.
    usable: String,
    /// What the cgroup allows, in CPUs; `None` for all that there are.
    quota: Option<f64>,
    /// Of the usable ones, those that are threads of one core, where there are several.
    smt: Vec<String>,
    /// Those that share a cache of the last level.
    caches: Vec<Cache>,
    nodes: Vec<Node>,
    #[serde(skip)]
    count: usize,
    #[serde(skip)]
    worth: Option<usize>,
}

/// A cache that CPUs share.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Cache {
    level: i64,
    cpus: String,
}

/// A NUMA node.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Node {
    node: u32,
    cpus: String,
}

impl Cpus {
    pub(super) fn look(host: &Host, probes: &Probes) -> Self {
        let online = host.list(format!("{CPUS}/online"));
        let usable = probes.allowed.clone().or_else(|| online.clone()).unwrap_or_default();
        let cpus: BTreeSet<CpuId> = usable.iter().collect();
        let of_ours = |all: CpuMask| -> Option<String> {
            let ours: CpuMask = all.iter().filter(|cpu| cpus.contains(cpu)).collect();
            (!ours.is_empty()).then(|| ours.to_list())
        };
        let siblings =
            cpus.iter().filter_map(|cpu| host.list(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list")));
        let smt: BTreeSet<String> = siblings.filter_map(of_ours).filter(|list| list.contains([',', '-'])).collect();
        let caches: BTreeSet<Cache> = cpus
            .iter()
            .filter_map(|cpu| last_level_cache(host, *cpu))
            .filter_map(|(level, all)| Some(Cache { level, cpus: of_ours(all)? }))
            .collect();
        let nodes = host.numbered("sys/devices/system/node", "node").into_iter();
        let nodes =
            nodes.filter_map(|(node, path)| Some(Node { node, cpus: of_ours(host.list(path.join("cpulist"))?)? }));
        Self {
            online: online.map(|online| online.to_list()),
            usable: usable.to_list(),
            quota: quota(host),
            smt: smt.into_iter().collect(),
            caches: caches.into_iter().collect(),
            nodes: nodes.collect(),
            count: cpus.len(),
            worth: probes.worth,
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.usable()];
        findings.extend(self.quota.map(|quota| {
            let found = format!("the cgroup allows {quota:.1} CPUs' worth of time, beyond which all threads wait");
            let used = self.worth.unwrap_or(self.count);
            Finding::info("CPU quota", found).or(format!("steerage works on {used} unless --cpus says otherwise"))
        }));
        findings.push(match self.smt.as_slice() {
            [] => Finding::info("SMT", "no two of them are known to be threads of one core"),
            cores => Finding::info("SMT", format!("threads of one core: {}", cores.join("; ")))
                .or("two of a core do less than two cores: give --cpus one of each to compare"),
        });
        let list = |caches: &[Cache]| caches.iter().map(|cache| cache.cpus.as_str()).collect::<Vec<_>>().join("; ");
        findings.push(match self.caches.as_slice() {
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

    fn usable(&self) -> Finding {
        let of = match &self.online {
            Some(online) if *online != self.usable => format!("CPUs {} of {online}", self.usable),
            _ => format!("CPUs {}", self.usable),
        };
        match self.count {
            0 => Finding { state: State::Lack, ..Finding::info("CPUs", "it cannot be read which may be used") },
            1 => {
                Finding::lack("CPUs", of + ": packets cannot be spread", "allow more (taskset, the container's cpuset)")
            }
            _ => Finding::ok("CPUs", of),
        }
    }
}

/// The last cache on the way to memory, with its level and the CPUs that share it.
fn last_level_cache(host: &Host, cpu: CpuId) -> Option<(i64, CpuMask)> {
    let caches = host.numbered(format!("{CPUS}/cpu{cpu}/cache"), "index").into_iter();
    let levels = caches
        .filter_map(|(_, path)| Some((host.number(path.join("level"))?, host.list(path.join("shared_cpu_list"))?)));
    levels.max_by_key(|(level, _)| *level)
}

/// How many CPUs' time the cgroups of this process allow: the least of them from its own up to the root.
fn quota(host: &Host) -> Option<f64> {
    let groups = host.text("proc/self/cgroup")?;
    let quotas = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next().unwrap_or_default(), fields.next().unwrap_or("/"));
        if controllers.is_empty() {
            let below =
                |directory| least(host, directory, group, |host, group| share(&host.text(format!("{group}/cpu.max"))?));
            // Where both versions are mounted, the second is beside the first.
            [below("sys/fs/cgroup"), below("sys/fs/cgroup/unified")]
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            let first = |directory| {
                least(host, directory, group, |host, group| {
                    let quota = host.text(format!("{group}/cpu.cfs_quota_us"))?;
                    share(&format!("{quota} {}", host.text(format!("{group}/cpu.cfs_period_us"))?))
                })
            };
            [first("sys/fs/cgroup/cpu"), first("sys/fs/cgroup/cpu,cpuacct")]
        } else {
            [None, None]
        }
    });
    quotas.flatten().min_by(f64::total_cmp)
}

/// The least that a group or one above it has.
fn least(host: &Host, directory: &str, group: &str, of: impl Fn(&Host, &str) -> Option<f64>) -> Option<f64> {
    let mut group = group.trim_matches('/');
    let mut least: Option<f64> = None;
    loop {
        let found = of(host, format!("{directory}/{group}").trim_end_matches('/'));
        least = [least, found].into_iter().flatten().min_by(f64::total_cmp);
        if group.is_empty() {
            return least;
        }
        group = group.rsplit_once('/').map_or("", |(above, _)| above);
    }
}

/// `150000 100000` is 1.5; `max 100000` and `-1 100000` have no bound.
fn share(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::super::host::made::Made;
    use super::super::probe::made::probes;
    use super::*;

    fn mask(list: &str) -> Option<CpuMask> {
        Some(CpuMask::parse_list(list, 1024).unwrap())
    }

    fn look(made: &Made, allowed: &str) -> Cpus {
        Cpus::look(&made.host(), &Probes { allowed: mask(allowed), ..probes() })
    }

    fn found(cpus: &Cpus) -> String {
        cpus.findings()
            .iter()
            .map(|finding| format!("{:?} {}: {}\n", finding.state, finding.about, finding.found))
            .collect()
    }

    #[test]
    fn one_cpu_and_nothing_to_read() {
        let cpus = look(&Made::new("bare", &[]), "0");
        assert_eq!(
            found(&cpus),
            "Lack CPUs: CPUs 0: packets cannot be spread\n\
             Info SMT: no two of them are known to be threads of one core\n\
             Info caches: the kernel does not say which CPUs share one\n"
        );
        assert_eq!(cpus.quota, None);
        let none = Cpus::look(&Made::new("nothing", &[]).host(), &Probes { allowed: None, ..probes() });
        assert!(found(&none).starts_with("Lack CPUs: it cannot be read"), "{}", found(&none));
    }

    /// Two packages of two cores of two threads, of which this process may use three quarters.
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
        let cpus = look(&Made::new("numa", &files), "0-5");
        assert_eq!(
            found(&cpus),
            "Ok CPUs: CPUs 0-5 of 0-7\n\
             Info SMT: threads of one core: 0,4; 1,5\n\
             Info caches: level 3 is shared by CPUs 0-1,4-5; 2-3\n\
             Info NUMA: node 0 has CPUs 0-1,4-5; node 1 has CPUs 2-3\n"
        );
    }

    #[test]
    fn a_quota_of_any_group_above_counts() {
        let made = Made::new(
            "quota",
            &[
                ("proc/self/cgroup", "0::/a/b"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
                ("sys/fs/cgroup/a/cpu.max", "150000 100000"),
                ("sys/fs/cgroup/cpu.max", "400000 100000"),
            ],
        );
        let cpus = look(&made, "0-7");
        assert_eq!(cpus.quota, Some(1.5));
        assert!(found(&cpus).contains("Info CPU quota: the cgroup allows 1.5 CPUs' worth"), "{}", found(&cpus));
        // A namespace of its own shows the root alone; and the first version has files of other names.
        let namespaced =
            Made::new("quota-ns", &[("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", "50000 100000")]);
        assert_eq!(look(&namespaced, "0-7").quota, Some(0.5));
        let first = Made::new(
            "quota-v1",
            &[
                ("proc/self/cgroup", "3:cpuset:/x\n2:cpu,cpuacct:/x\n0::/"),
                ("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "200000"),
                ("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"),
            ],
        );
        assert_eq!(look(&first, "0-7").quota, Some(2.0));
    }

    #[test]
    fn what_the_files_should_not_say_is_nothing() {
        let made =
            Made::new("odd", &[("proc/self/cgroup", "nonsense\n::\n0::/../../etc"), ("sys/fs/cgroup/cpu.max", "0 0")]);
        assert_eq!(look(&made, "0-1").quota, None);
        assert_eq!((share(""), share("1"), share("x 1"), share("-1 5")), (None, None, None, None));
    }
}
