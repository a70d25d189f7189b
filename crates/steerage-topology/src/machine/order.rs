//! Decides the order in which other CPUs join the receiving CPU, which means that they begin to
//! handle packets that it receives.
//!
//! Each additional CPU costs the receiving CPU time, mostly because the new CPU fetches cache lines
//! from the receiving CPU. The transfer of a cache line takes three times as long if the two CPUs
//! share no cache (docs/performance.md). Therefore the CPUs join in this order:
//!
//! 1. CPUs that share the last-level cache of the receiving CPU. Unused cores come before the
//!    second hardware threads of used cores, because the two threads of a core share its execution
//!    units. The second hardware thread of a core adds less than a whole CPU, and slows down the
//!    core's first thread. The second hardware thread of the receiving CPU's own core comes last,
//!    because a slower receiving CPU slows down all other CPUs.
//! 2. CPUs of the same NUMA node that have another last-level cache.
//! 3. CPUs of other NUMA nodes, the nearest node first. CPUs of other NUMA nodes are also far from
//!    the memory that contains the packets.
//!
//! The slower cores of a hybrid machine join after the faster cores, but before the second hardware
//! threads of cores.
//!
//! The order in which CPUs join is best for handlers that do little work per packet. For such
//! handlers, the choice of CPUs matters most. If a packet needs much work, an unused core that has
//! another cache adds more computing power than the second hardware thread of a near core. If a
//! packet needs much work, users should therefore choose the CPUs themselves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};

/// The measured latencies are sorted and divided into classes: near CPUs, farther CPUs, and so on.
/// A latency that exceeds the next lower latency by this factor begins a new class. Latencies
/// between CPUs of the same cache differ by less than this factor. Latencies between CPUs that have
/// different caches are at least three times as long.
const FARTHER: f64 = 1.5;

/// The distance between two CPUs, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// The CPUs share a last-level cache.
    Cache,
    Node,
    /// The CPUs belong to different NUMA nodes. The value is the distance between these NUMA nodes,
    /// as the firmware reports it.
    Nodes(u32),
    Unknown,
}

impl Topology {
    /// Returns the CPUs in `candidates` in the order in which they should join the receiving CPU
    /// `owner`. `owner` itself is not in the result. The nearest CPUs come first, and unused cores
    /// come before the second hardware threads of cores. Measured distances are used if they exist.
    /// Otherwise, the distances that the kernel reports are used. Isolated CPUs are treated like
    /// other CPUs, because the mask of candidates names them. Offline CPUs come last, because their
    /// distance is unknown.
    pub fn joining_order(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let classes = self.classes(owner, candidates);
        // If any distance was measured, the CPUs without a measured distance come last. If no
        // distance was measured, all CPUs are in the same class of distance.
        let unknown = if classes.is_empty() { 0 } else { usize::MAX };
        let mut taken: BTreeMap<CpuId, usize> = BTreeMap::from([(self.core(owner), 1)]);
        let mut keyed: Vec<_> = Vec::new();
        for cpu in candidates.iter().filter(|cpu| *cpu != owner) {
            let core = self.core(cpu);
            let thread = taken.entry(core).or_default();
            let capacity = self.place(cpu).map_or(0, |place| place.capacity);
            let cache = self.cache(cpu).and_then(CpuMask::first);
            let distance = self.distance(owner, cpu);
            let class = classes.get(&cpu).copied().unwrap_or(unknown);
            keyed.push((class, distance, *thread, core == self.core(owner), Reverse(capacity), cache, cpu));
            *thread += 1;
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|key| key.6).collect()
    }

    /// Returns the core of a CPU. A core is identified by the lowest number of its CPUs.
    pub(super) fn core(&self, cpu: CpuId) -> CpuId {
        self.place(cpu).and_then(|place| place.siblings.first()).unwrap_or(cpu)
    }

    pub(super) fn cache(&self, cpu: CpuId) -> Option<&CpuMask> {
        Some(&self.place(cpu)?.cache.as_ref()?.cpus)
    }

    fn distance(&self, owner: CpuId, cpu: CpuId) -> Distance {
        let (Some(ours), Some(other)) = (self.place(owner), self.place(cpu)) else { return Distance::Unknown };
        if ours.siblings.contains(cpu) || self.cache(owner).is_some_and(|cpus| cpus.contains(cpu)) {
            return Distance::Cache;
        }
        match (ours.node, other.node) {
            (Some(one), Some(two)) if one != two => {
                let told = self.distances.get(&one).and_then(|row| row.get(two as usize));
                Distance::Nodes(told.copied().unwrap_or(u32::MAX))
            }
            (None, _) | (_, None) if ours.package != other.package => Distance::Nodes(u32::MAX),
            _ => Distance::Node,
        }
    }

    /// Returns the class of the measured distance between the owner and each CPU. The nearest class
    /// is 0. A CPU that was not measured gets the class of the farthest measured CPU with the same
    /// cache. The hardware threads of the owner's core are in the nearest class, although they
    /// share execution units with the owner.
    fn classes(&self, owner: CpuId, candidates: &CpuMask) -> BTreeMap<CpuId, usize> {
        let is_sibling = |cpu: CpuId| self.core(cpu) == self.core(owner);
        let others = || candidates.iter().filter(|cpu| *cpu != owner);
        let measured = |cpu: CpuId| self.latency(owner, cpu).map(|latency| latency.as_secs_f64());
        let mut latencies: Vec<f64> = others().filter(|cpu| !is_sibling(*cpu)).filter_map(measured).collect();
        if latencies.is_empty() {
            return BTreeMap::new();
        }
        latencies.sort_unstable_by(f64::total_cmp);
        let begins = latencies.windows(2).filter(|pair| pair[1] > pair[0] * FARTHER).map(|pair| pair[1]);
        let begins: Vec<f64> = begins.collect();
        let class = |latency: f64| begins.iter().take_while(|begin| **begin <= latency).count();
        let near =
            |cpu: CpuId| self.cache(cpu).into_iter().flat_map(CpuMask::iter).filter_map(measured).map(class).max();
        let of = |cpu: CpuId| if is_sibling(cpu) { Some(0) } else { measured(cpu).map(class).or_else(|| near(cpu)) };
        others().filter_map(|cpu| Some((cpu, of(cpu)?))).collect()
    }

    /// Returns the time that a cache line takes from one of the two CPUs to the other, if this time
    /// was [measured](Self::measure).
    pub fn latency(&self, one: CpuId, other: CpuId) -> Option<Duration> {
        self.latencies.get(&(one.min(other), one.max(other))).copied()
    }
}
