//! The order in which other CPUs join the receiving CPU, that is, begin to handle packets that the
//! receiving CPU receives.
//!
//! Each additional CPU costs the receiving CPU time, mostly because the new CPU fetches cache lines
//! from the receiving CPU. The transfer of a cache line takes three times as long if the two CPUs
//! share no cache (docs/performance.md). Other CPUs join the receiving CPU in this order:
//!
//! 1. CPUs that share the last-level cache of the receiving CPU. Unused cores come before the
//!    second hardware threads of used cores. A second thread slows down the first thread, because
//!    both share execution units. The second thread of the receiving CPU's core comes last, because
//!    a slower receiving CPU slows down all other CPUs.
//! 2. CPUs of the same NUMA node that have another last-level cache.
//! 3. CPUs of other NUMA nodes, from which the packets' memory is far away. The nearest node comes
//!    first.
//!
//! Slower cores of a hybrid machine join after the faster cores, but before second hardware
//! threads.
//!
//! This joining order suits handlers that do little work per packet. If a packet needs much work,
//! an unused core with another cache helps more than the second hardware thread of a near core. For
//! handlers that do much work per packet, users should choose the CPUs themselves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};

/// A measured latency that exceeds the next lower latency by this factor begins a new class of
/// distance. Latencies between CPUs of one cache differ by less than this factor. Latencies between
/// CPUs with different caches are at least three times as long as between CPUs of one cache.
const FARTHER: f64 = 1.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Cache,
    Node,
    /// The CPUs are on different NUMA nodes, at the distance that the firmware reports.
    Nodes(u32),
    Unknown,
}

impl Topology {
    /// Returns `candidates` without `owner`, in the order in which they should join the receiving
    /// CPU `owner`: near CPUs first, and unused cores before second hardware threads. Measured
    /// distances take precedence over the distances that the kernel reports. Isolated CPUs among
    /// the candidates are treated like other CPUs, because the user's mask names them. Offline CPUs
    /// come last, because their distance is unknown.
    pub fn joining_order(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let classes = self.classes(owner, candidates);
        // If the distance of any CPU was measured, CPUs without a measured distance come last.
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

    /// Returns the lowest CPU of the core, which identifies the core.
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

    /// Groups CPUs by their measured distance from the receiving CPU `owner`. Distance class 0 is
    /// the nearest. An unmeasured CPU gets the distance class of the farthest measured CPU with the
    /// same cache. The hardware threads of the receiving CPU's core are always in distance class 0.
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

    /// Returns the [measured](Self::measure) time that a cache line takes between the two CPUs.
    pub fn latency(&self, one: CpuId, other: CpuId) -> Option<Duration> {
        self.latencies.get(&(one.min(other), one.max(other))).copied()
    }
}
