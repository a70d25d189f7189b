//! The order in which CPUs join the CPU that receives.
//!
//! Adding a CPU costs time, mostly for the cache lines that the new CPU fetches from the receiving
//! CPU. The receiving CPU pays this cost. A cache line costs three times as much if the two CPUs
//! share no cache (docs/performance.md). So the order is:
//!
//! 1. CPUs that share the receiver's last-level cache. Whole cores come before second threads of
//!    cores in use, because two threads share a core's execution units. The second thread adds only
//!    a part of a CPU, and slows the first thread down. The second thread of the receiver's own
//!    core comes last, because slowing the receiver slows all CPUs.
//! 2. CPUs of the receiver's node that share another last-level cache.
//! 3. CPUs of other nodes, the nearest first. The memory of the packets is also far from CPUs of
//!    other nodes.
//!
//! Slower cores of a hybrid machine come after the faster cores, but before second threads.
//!
//! The order is meant for light work per packet, for which the choice of CPUs matters most. If the
//! work per packet is expensive compared with the hand-over, a whole core with another cache adds
//! more than the second thread of a near core. For expensive work, users should therefore choose
//! the CPUs themselves.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};

/// A measured latency that exceeds the next lower latency by this factor begins a new class of
/// distance. The latencies of CPUs that share a cache differ less. Latencies to another cache are
/// at least three times as long.
const FARTHER: f64 = 1.5;

/// The distance between two CPUs, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// The CPUs share a last-level cache.
    Cache,
    Node,
    /// The CPUs belong to different NUMA nodes. The value is the distance between these nodes, as
    /// the firmware reports it.
    Nodes(u32),
    Unknown,
}

impl Topology {
    /// Returns the `candidates` in the order in which they should join the `owner`, which is the
    /// receiving CPU and is not in the result. The nearest CPUs come first. The order uses measured
    /// distances if there are any, and otherwise the distances that the kernel reports. Whole cores
    /// come before second threads. Isolated CPUs count like other CPUs, because the mask names
    /// them. Offline CPUs come last, because their distance is unknown.
    pub fn joining_order(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let classes = self.classes(owner, candidates);
        // If any distance was measured, CPUs without a measured distance come last. Without any
        // measurement, all CPUs are in the same class.
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

    /// A core, identified by the lowest of its threads.
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

    /// The measured class of distance of each CPU from the owner. 0 is the nearest class. A CPU
    /// that was not measured gets the class of the farthest measured CPU that shares its cache.
    /// Threads of the owner's core get the nearest class, although their shared execution units are
    /// a disadvantage.
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

    /// How long a cache line takes between the two CPUs, if it was [measured](Self::measure).
    pub fn latency(&self, one: CpuId, other: CpuId) -> Option<Duration> {
        self.latencies.get(&(one.min(other), one.max(other))).copied()
    }
}
