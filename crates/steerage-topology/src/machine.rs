//! The topology of a machine's CPUs: which CPUs are near each other, which CPUs this process may
//! use, and which CPUs are isolated.
//!
//! The topology is read from /sys and /proc (Documentation/admin-guide/cputopology.rst,
//! cgroup-v1/cpusets.rst, cgroup-v2.rst). A missing file is not an error, because containers hide
//! some files: the property that the file describes is then unknown. In a virtual machine, the
//! hypervisor invents the topology. [`Topology::measure`] measures what matters most for steering:
//! the time to transfer a cache line between two CPUs.

mod measure;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup;
use crate::cpu::{CpuId, CpuMask};
use crate::files::{CPUS, Files, NODES, online_of};

pub use measure::{Nearness, nearness};

/// The maximum number of CPUs of this crate and of an instance of steerage.
pub const CPUS_MAX: usize = 1024;

/// The kernel's `SCHED_CAPACITY_SCALE`: the `cpu_capacity` of the fastest CPUs.
const CAPACITY_FULL: u32 = 1024;

/// The assumed capacity of Intel's efficient cores if the kernel lists the cores but not their
/// capacity. The exact value does not matter if it is below [`CAPACITY_FULL`], because capacities
/// are only compared.
const CAPACITY_EFFICIENT: u32 = CAPACITY_FULL / 2;

/// The position of a CPU in the machine: its package, node, core and cache.
///
/// ```
/// use steerage_topology::{CpuId, Topology};
///
/// if let Some(place) = Topology::read().place(CpuId(0)) {
///     println!("CPU 0 is on node {:?} and shares a core with CPUs {}", place.node, place.siblings);
///     if let Some(cache) = &place.cache {
///         println!("its level {} cache belongs to CPUs {}", cache.level, cache.cpus);
///     }
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The CPU's NUMA node.
    pub node: Option<u32>,
    /// The CPU's package (socket).
    pub package: Option<u32>,
    /// The CPUs (hardware threads) of the same core, including this CPU. Empty if unknown.
    pub siblings: CpuMask,
    /// The last-level cache of the CPU.
    pub cache: Option<SharedCache>,
    /// The CPU's speed, on a scale on which the fastest CPUs have 1024.
    pub capacity: u32,
}

/// A cache, and the CPUs that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedCache {
    /// The level of the cache, which is 3 on most machines.
    pub level: u32,
    /// The CPUs that share the cache.
    pub cpus: CpuMask,
}

/// The topology of a machine's CPUs.
///
/// ```
/// use steerage_topology::{CpuMask, Topology};
///
/// let topology = Topology::read();
/// let ours: CpuMask = topology.default_mask();
/// let owner = ours.first().expect("this runs somewhere");
/// assert_eq!(topology.joining_order(owner, &ours).len(), ours.len() - 1);
/// ```
#[derive(Clone, Debug)]
pub struct Topology {
    places: BTreeMap<CpuId, Place>,
    /// The distances between NUMA nodes, from the firmware. 10 means local memory.
    distances: BTreeMap<u32, Vec<u32>>,
    possible: Option<CpuMask>,
    online: CpuMask,
    isolated: CpuMask,
    allowed: CpuMask,
    quota: Option<f64>,
    /// The time that a cache line takes between two CPUs. Each key of this map is a pair of CPUs,
    /// the lower number first.
    latencies: BTreeMap<(CpuId, CpuId), Duration>,
}

impl Topology {
    /// Reads this machine's topology, and which CPUs the thread's affinity and the cgroups allow.
    pub fn read() -> Self {
        Self::below("/", CpuMask::allowed().ok())
    }

    /// Reads the topology of a machine whose /sys and /proc are below `root`. The process may use
    /// the CPUs of `affinity`, or all CPUs if `affinity` is `None`.
    pub fn below(root: impl Into<PathBuf>, affinity: Option<CpuMask>) -> Self {
        let files = Files::below(root);
        let told = online_of(&files);
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

    /// Returns a machine whose CPUs share all caches and one NUMA node, for tests and simulations.
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

    /// Returns the CPUs that are online.
    pub fn online(&self) -> &CpuMask {
        &self.online
    }

    /// Returns the online CPUs that the affinity and the cpuset of this process allow.
    pub fn allowed(&self) -> &CpuMask {
        &self.allowed
    }

    /// Returns the CPUs that `isolcpus`, isolated cpusets or `nohz_full` isolate.
    pub fn isolated(&self) -> &CpuMask {
        &self.isolated
    }

    /// Returns the kernel's `nr_cpu_ids` (the highest possible CPU plus one), or `None` if unknown.
    pub fn nr_cpu_ids(&self) -> Option<usize> {
        self.possible.as_ref().and_then(CpuMask::last).map(|last| usize::from(last.0) + 1)
    }

    /// Returns the CPU time that this process's cgroups allow, in CPUs, or `None` without a limit.
    pub fn quota(&self) -> Option<f64> {
        self.quota
    }

    /// Returns the position of a CPU in the machine, or `None` if the CPU is offline or unknown.
    pub fn place(&self, cpu: CpuId) -> Option<&Place> {
        self.places.get(&cpu)
    }

    /// Returns the CPUs of each core that has several online CPUs.
    pub fn cores(&self) -> BTreeSet<Vec<CpuId>> {
        let siblings = self.places.values().map(|place| place.siblings.iter().collect::<Vec<_>>());
        siblings.filter(|threads| threads.len() > 1).collect()
    }

    /// Returns the online CPUs of each NUMA node that has any.
    pub fn nodes(&self) -> BTreeMap<u32, CpuMask> {
        let mut nodes: BTreeMap<u32, CpuMask> = BTreeMap::new();
        for (cpu, place) in &self.places {
            if let Some(node) = place.node {
                nodes.entry(node).or_default().insert(*cpu);
            }
        }
        nodes
    }

    /// Returns the CPUs that a program should use by default: all allowed CPUs except the isolated
    /// CPUs, which are reserved for other work. If all allowed CPUs are isolated, returns all of
    /// them.
    ///
    /// A cgroup quota limits the number of CPUs, because the kernel throttles the cgroup if more
    /// CPUs are busy. If there is a quota, the result is the first CPU and the CPUs nearest to it.
    /// The mask is empty only if the kernel's files cannot be read.
    pub fn default_mask(&self) -> CpuMask {
        let ours: CpuMask = self.allowed.iter().filter(|cpu| !self.isolated.contains(*cpu)).collect();
        let ours = if ours.is_empty() { self.allowed.clone() } else { ours };
        // The quota is rounded down, but to at least 1, as in Rust's standard library.
        let worth = self.quota.map_or(CPUS_MAX, |quota| (quota as usize).clamp(1, CPUS_MAX));
        let Some(first) = ours.first().filter(|_| worth < ours.len()) else {
            return ours.iter().take(CPUS_MAX).collect();
        };
        std::iter::once(first).chain(self.joining_order(first, &ours)).take(worth).collect()
    }
}

/// Returns the online CPUs by reading a single file, or `None` if the kernel does not report them.
///
/// ```
/// use steerage_topology::online;
///
/// assert!(online().is_none_or(|cpus| !cpus.is_empty()));
/// ```
pub fn online() -> Option<CpuMask> {
    online_of(&Files::below("/"))
}

/// Returns the CPUs of this machine, online or not, or `None` if the kernel does not report them.
///
/// ```
/// use steerage_topology::{online, present};
///
/// if let (Some(all), Some(now)) = (present(), online()) {
///     all.check(now.iter()).expect("a CPU that is online exists");
/// }
/// ```
pub fn present() -> Option<CpuMask> {
    Files::below("/").list(format!("{CPUS}/present"))
}

/// If `nohz_full` is not set, the kernel's file of this name contains ` (null)`, which is no list.
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
