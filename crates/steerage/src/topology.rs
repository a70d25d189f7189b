//! Which CPUs are near to which, which of them are ours, and which the kernel keeps free.
//!
//! It is read from /sys and /proc as Linux lays them out (Documentation/admin-guide/cputopology.rst, cgroup-v1/cpusets.rst,
//! cgroup-v2.rst). Whatever is not there is not known, and nothing here fails for that: containers hide some of it, and
//! virtual machines show what their host made up. What matters most to steering, how long a cache line takes from one
//! CPU to another, can be [measured](Topology::measure).

mod cgroup;
mod files;
mod latency;
mod order;
mod others;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::cpu::{CpuId, CpuMask};
use crate::limits::CPUS_MAX;

use files::Files;
pub(crate) use latency::Line;
pub use latency::{PAIR_TIME_MAX, PAIRS_MAX};
pub use others::OthersTime;
pub use watch::Watch;

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// What `cpu_capacity` says of the fastest CPUs (`SCHED_CAPACITY_SCALE`).
const CAPACITY_FULL: u32 = 1024;

/// What is taken for the capacity of Intel's efficient cores where the kernel names them but gives no capacity: any number below
/// the full one, since it only orders.
const CAPACITY_EFFICIENT: u32 = CAPACITY_FULL / 2;

/// Where a CPU stands among the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Its package, a socket.
    pub package: Option<u32>,
    /// The threads of its core, itself among them; empty where that is not known.
    pub siblings: CpuMask,
    /// The last cache on its way to memory.
    pub cache: Option<SharedCache>,
    /// How fast it is beside the fastest, which have 1024: less for the small cores of a hybrid machine.
    pub capacity: u32,
}

/// A cache, and who shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedCache {
    /// 3 mostly.
    pub level: u32,
    /// The CPUs that share it.
    pub cpus: CpuMask,
}

/// The CPUs of a machine.
///
/// ```
/// use steerage::{CpuMask, Topology};
///
/// let topology = Topology::read();
/// let ours: CpuMask = topology.default_mask();
/// let owner = ours.first().expect("this runs somewhere");
/// assert_eq!(topology.joining_order(owner, &ours).len(), ours.len() - 1);
/// ```
#[derive(Clone, Debug)]
pub struct Topology {
    places: BTreeMap<CpuId, Place>,
    /// How far each node's memory is from each node, as the firmware has it: 10 is its own.
    distances: BTreeMap<u32, Vec<u32>>,
    possible: Option<CpuMask>,
    online: CpuMask,
    isolated: CpuMask,
    allowed: CpuMask,
    quota: Option<f64>,
    /// One way between two CPUs, the lower first.
    latencies: BTreeMap<(CpuId, CpuId), Duration>,
}

impl Topology {
    /// The machine that we run on, and what of it the calling thread's affinity and this process's cgroups allow.
    pub fn read() -> Self {
        Self::below("/", CpuMask::allowed().ok())
    }

    /// A machine whose /sys and /proc lie below `root`, of which `affinity` may be used; `None`: all of it.
    pub fn below(root: impl Into<PathBuf>, affinity: Option<CpuMask>) -> Self {
        let files = Files::below(root);
        let told = online_of(&files);
        // What nobody tells of is there if we may run on it.
        let online = told.or_else(|| affinity.clone()).unwrap_or_default();
        let nodes = files.numbered(NODES, "node");
        let distance = |path: &PathBuf| files.text(path.join("distance")).map(|text| numbers(&text));
        let allowed = [affinity, cgroup::cpuset(&files)].into_iter().flatten();
        Self {
            places: places(&files, &online, &nodes),
            distances: nodes.iter().filter_map(|(node, path)| Some((*node, distance(path)?))).collect(),
            possible: files.list(format!("{CPUS}/possible")),
            isolated: isolated(&files),
            allowed: allowed.fold(online.clone(), |left, bound| left.and(&bound)),
            online,
            quota: cgroup::quota(&files),
            latencies: BTreeMap::new(),
        }
    }

    /// A machine of `cpus` CPUs that share everything: what tests and simulations run on.
    pub fn even(cpus: usize) -> Self {
        let all: CpuMask = (0..cpus.clamp(1, CPUS_MAX) as u16).map(CpuId).collect();
        Self {
            places: BTreeMap::new(),
            distances: BTreeMap::new(),
            possible: Some(all.clone()),
            online: all.clone(),
            isolated: CpuMask::new(),
            allowed: all,
            quota: None,
            latencies: BTreeMap::new(),
        }
    }

    /// Those that are switched on.
    pub fn online(&self) -> &CpuMask {
        &self.online
    }

    /// Those that are switched on and that we may use: by affinity and by cpuset.
    pub fn allowed(&self) -> &CpuMask {
        &self.allowed
    }

    /// Those that the kernel keeps its own work from: `isolcpus`, isolated cpusets and `nohz_full`.
    pub fn isolated(&self) -> &CpuMask {
        &self.isolated
    }

    /// The kernel's `nr_cpu_ids`: one more than the highest CPU that may ever be there. `None` where it does not say.
    pub fn nr_cpu_ids(&self) -> Option<usize> {
        self.possible.as_ref().and_then(CpuMask::last).map(|last| usize::from(last.0) + 1)
    }

    /// How many CPUs' time the cgroups of this process allow, a fraction; `None` for all that there are.
    pub fn quota(&self) -> Option<f64> {
        self.quota
    }

    /// Where a CPU stands; `None` of one that is not switched on, or of which nothing is known.
    pub fn place(&self, cpu: CpuId) -> Option<&Place> {
        self.places.get(&cpu)
    }

    /// The cores that have several threads, of the CPUs that are switched on.
    pub fn cores(&self) -> BTreeSet<Vec<CpuId>> {
        let siblings = self.places.values().map(|place| place.siblings.iter().collect::<Vec<_>>());
        siblings.filter(|threads| threads.len() > 1).collect()
    }

    /// The NUMA nodes that have CPUs which are switched on, with these.
    pub fn nodes(&self) -> BTreeMap<u32, CpuMask> {
        let mut nodes: BTreeMap<u32, CpuMask> = BTreeMap::new();
        for (cpu, place) in &self.places {
            if let Some(node) = place.node {
                nodes.entry(node).or_default().insert(*cpu);
            }
        }
        nodes
    }

    /// The CPUs to work on where nobody says which: all that we may use but the isolated ones, whose owner keeps them for
    /// something else (if there are no others, they are meant); no more than the quota is worth, since further threads
    /// would only be throttled, and then the nearest to the first. None only where nothing can be read.
    pub fn default_mask(&self) -> CpuMask {
        let ours: CpuMask = self.allowed.iter().filter(|cpu| !self.isolated.contains(*cpu)).collect();
        let ours = if ours.is_empty() { self.allowed.clone() } else { ours };
        // As the standard library counts them: a part of a CPU is worth none, and one is the least.
        let worth = self.quota.map_or(CPUS_MAX, |quota| (quota as usize).clamp(1, CPUS_MAX));
        let Some(first) = ours.first().filter(|_| worth < ours.len()) else {
            return ours.iter().take(CPUS_MAX).collect();
        };
        std::iter::once(first).chain(self.joining_order(first, &ours)).take(worth).collect()
    }
}

/// The CPUs of this machine that are switched on, for who wants to know just that, and often: one file. `None` where the kernel does
/// not say.
pub fn online() -> Option<CpuMask> {
    online_of(&Files::below("/"))
}

fn online_of(files: &Files) -> Option<CpuMask> {
    files.list(format!("{CPUS}/online"))
}

/// `isolated` has isolated cpusets as well as `isolcpus`. A kernel without `nohz_full` shows ` (null)`: no list.
fn isolated(files: &Files) -> CpuMask {
    let lists = ["isolated", "nohz_full"].into_iter().filter_map(|file| files.list(format!("{CPUS}/{file}")));
    lists.flat_map(|cpus| cpus.iter().collect::<Vec<_>>()).collect()
}

fn places(files: &Files, online: &CpuMask, nodes: &[(u32, PathBuf)]) -> BTreeMap<CpuId, Place> {
    let nodes: Vec<(u32, CpuMask)> =
        nodes.iter().filter_map(|(node, path)| Some((*node, files.list(path.join("cpulist"))?))).collect();
    let efficient = files.list("sys/devices/cpu_atom/cpus").unwrap_or_default();
    let place = |cpu: CpuId| {
        let topology = format!("{CPUS}/cpu{cpu}/topology");
        let siblings = ["core_cpus_list", "thread_siblings_list"];
        let siblings = siblings.iter().find_map(|file| files.list(format!("{topology}/{file}")));
        let kind = if efficient.contains(cpu) { CAPACITY_EFFICIENT } else { CAPACITY_FULL };
        let place = Place {
            node: nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node),
            package: files.number(format!("{topology}/physical_package_id")),
            siblings: siblings.map_or_else(CpuMask::new, |siblings| siblings.and(online)),
            cache: last_cache(files, cpu, online),
            capacity: files.number(format!("{CPUS}/cpu{cpu}/cpu_capacity")).map_or(kind, |told: u32| told.min(kind)),
        };
        (cpu, place)
    };
    let is_known = |(_, place): &(CpuId, Place)| *place != Place { capacity: place.capacity, ..Place::default() };
    online.iter().take(CPUS_MAX).map(place).filter(is_known).collect()
}

fn last_cache(files: &Files, cpu: CpuId, online: &CpuMask) -> Option<SharedCache> {
    let caches = files.numbered(format!("{CPUS}/cpu{cpu}/cache"), "index").into_iter();
    let caches = caches.filter_map(|(_, path)| {
        let cpus = files.list(path.join("shared_cpu_list"))?.and(online);
        Some(SharedCache { level: files.number(path.join("level"))?, cpus })
    });
    caches.max_by_key(|cache| cache.level)
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod made;
#[cfg(test)]
mod tests;
