//! In which order CPUs join the one that receives.
//!
//! What a further CPU costs is mostly the cache lines that go to it from the receiving CPU, three times as dear where the two
//! share no cache (docs/performance.md), and it is the receiving CPU that pays. So whoever shares its last-level cache
//! comes first. Of these, whole cores come before second threads of cores in use: two threads share a core's execution units,
//! so the second adds a part of a CPU and slows the first. The receiving CPU's own siblings come after those of the others,
//! since what slows it slows all. Then come other caches of its node, then other nodes, the nearest first, where the
//! packets' memory is far too. Slower cores of a hybrid machine come after the faster ones, but before second threads.
//!
//! (Where the work on a packet is dear beside handing it over, a whole core behind another cache gives more than the second
//! thread of a near one. The order is for the light work, where the choice matters most; who knows better names the CPUs.)

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};

/// Measured latencies that differ by this factor from the next lower are another kind of distance. Within one cache they
/// spread less, and to another cache is three times as far or more.
const FARTHER: f64 = 1.5;

/// How far apart two CPUs are, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    /// They share a last-level cache.
    Cache,
    Node,
    /// Another node, at the distance that the firmware gives.
    Nodes(u32),
    Unknown,
}

impl Topology {
    /// `candidates` but the `owner`, which receives, in the order in which they should join it: the nearest first, as
    /// measured where it was, else as the kernel tells; whole cores before second threads. A mask names
    /// its CPUs: isolated ones join as others do. Of those that are not switched on nothing is known, and they come last.
    pub fn joining_order(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let classes = self.classes(owner, candidates);
        // Where something was measured, nobody knows of the others; where nothing was, it makes no difference.
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

    /// A core by the lowest of its threads.
    fn core(&self, cpu: CpuId) -> CpuId {
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

    /// The measured kinds of distance from the owner, the nearest being 0. One that was not measured has that of the
    /// farthest that was and that shares its cache. Known threads of the owner's core are the nearest: they are nearer than any
    /// cache, and what there is against them is not their distance.
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

    /// How long a cache line took from one to the other when it was [measured](Self::measure).
    pub fn latency(&self, one: CpuId, other: CpuId) -> Option<Duration> {
        self.latencies.get(&(one.min(other), one.max(other))).copied()
    }
}
