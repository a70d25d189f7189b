//! Measures the distance between CPUs. The distance decides the order in which CPUs are added.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};
use crate::probe::{PAIRS_MAX, one_way};

impl Topology {
    /// Measures how long a cache line takes between `owner` and each of `candidates`. From then on,
    /// [`joining_order`](Self::joining_order) uses the results. Returns the number of measured
    /// pairs.
    ///
    /// Two pinned threads spin for at most [`PAIR_TIME_MAX`](crate::probe::PAIR_TIME_MAX) per pair.
    /// The time limit does not include the time that the threads wait for their CPUs. At most
    /// [`PAIRS_MAX`](crate::probe::PAIRS_MAX) pairs are measured. If there are more CPUs, only some
    /// CPUs of each cache are measured, and their results count for all CPUs of the cache. A pair
    /// keeps its old result if it cannot be measured because a CPU is busy or must not be used.
    ///
    /// On virtual machines, measure again later, because the hypervisor moves virtual CPUs between
    /// physical CPUs. Two CPUs that were 60 ns apart may be 200 ns apart a second later.
    pub fn measure(&mut self, owner: CpuId, candidates: &CpuMask) -> usize {
        let mut measured = 0;
        for cpu in self.sample(owner, candidates) {
            if let Some(latency) = one_way(owner, cpu) {
                self.set_latency(owner, cpu, latency);
                measured += 1;
            }
        }
        measured
    }

    pub(super) fn set_latency(&mut self, one: CpuId, other: CpuId, latency: Duration) {
        self.latencies.insert((one.min(other), one.max(other)), latency);
    }

    /// Selects the CPUs to measure: all candidates if there are few candidates, otherwise an equal
    /// number of CPUs from each cache.
    pub(super) fn sample(&self, owner: CpuId, candidates: &CpuMask) -> Vec<CpuId> {
        let mut by_cache: BTreeMap<Option<CpuId>, Vec<CpuId>> = BTreeMap::new();
        for cpu in candidates.iter().filter(|cpu| *cpu != owner) {
            by_cache.entry(self.cache(cpu).and_then(CpuMask::first)).or_default().push(cpu);
        }
        let longest = by_cache.values().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|at| by_cache.values().filter_map(move |cpus| cpus.get(at).copied()));
        in_turn.take(PAIRS_MAX).collect()
    }
}

/// The distances of an instance's CPUs (identified by index) from the CPUs that receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearness {
    /// For each CPU that receives, the other CPUs in the order in which they should join it. The
    /// list of a CPU that does not receive is empty.
    pub orders: Vec<Vec<u16>>,
    /// The time that a cache line takes from a receiving CPU to another CPU. Pairs that were not
    /// measured are missing. Pairs of threads of one core are missing too: the threads share the
    /// core's time, which matters more than their distance.
    pub apart: BTreeMap<(u16, u16), Duration>,
}

/// The distances of `cpus` from each CPU whose index is among `owners`. The distances come from the
/// kernel and from measurements, because virtual machines report wrong topologies.
///
/// ```
/// use steerage_topology::{Topology, nearness};
///
/// // The CPU at index 0 receives.
/// let cpus: Vec<_> = Topology::read().default_mask().iter().collect();
/// assert_eq!(nearness(&cpus, &[0]).orders.len(), cpus.len());
/// ```
pub fn nearness(cpus: &[CpuId], owners: &[u16]) -> Nearness {
    if cpus.len() < 2 {
        return Nearness { orders: vec![Vec::new(); cpus.len()], apart: BTreeMap::new() };
    }
    let mut topology = Topology::read();
    let all = cpus.iter().copied().collect();
    for owner in owners {
        topology.measure(cpus[usize::from(*owner)], &all);
    }
    Nearness::of(&topology, cpus, owners)
}

impl Nearness {
    /// The distances that `topology` contains.
    pub(super) fn of(topology: &Topology, cpus: &[CpuId], owners: &[u16]) -> Self {
        let mut near = Self { orders: vec![Vec::new(); cpus.len()], apart: BTreeMap::new() };
        let all = cpus.iter().copied().collect();
        for owner in owners {
            let cpu = cpus[usize::from(*owner)];
            let place = |cpu: CpuId| cpus.iter().position(|ours| *ours == cpu).map(|at| at as u16);
            let order = topology.joining_order(cpu, &all).into_iter();
            near.orders[usize::from(*owner)] = order.filter_map(place).collect();
            for (at, other) in cpus.iter().enumerate().filter(|(_, other)| topology.core(**other) != topology.core(cpu))
            {
                let apart = topology.latency(cpu, *other);
                near.apart.extend(apart.map(|apart| ((*owner, at as u16), apart)));
            }
        }
        near
    }
}
