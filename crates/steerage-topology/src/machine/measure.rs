//! Measures the distance between CPUs, for the order in which they are added.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};
use crate::probe::{PAIRS_MAX, one_way};

impl Topology {
    /// Measures how long a cache line takes between `owner` and each of `candidates`.
    /// [`joining_order`](Self::joining_order) uses the results from then on. Returns the number of
    /// measured pairs.
    ///
    /// Two pinned threads spin for at most [`PAIR_TIME_MAX`](crate::probe::PAIR_TIME_MAX) per pair,
    /// besides the time that they wait for their CPUs. At most
    /// [`PAIRS_MAX`](crate::probe::PAIRS_MAX) pairs are measured. If there are more CPUs, some of
    /// the CPUs that share a cache are measured for all of them. A pair that cannot be measured,
    /// because a CPU is busy or must not be used, keeps its old result.
    ///
    /// On virtual machines it is worth measuring again later, since the hypervisor moves their
    /// CPUs. Two CPUs that were 60 ns apart may be 200 ns apart a second later.
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

    /// The CPUs to measure: all of them if there are few, or else the same number from each cache.
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

/// For each of `cpus` whose index is among `owners`, the indices of the other CPUs in the order in
/// which they should be added. The order comes from the kernel. If there is a choice, it also comes
/// from measurements, since virtual machines report wrong topologies.
///
/// ```
/// use steerage_topology::{Topology, joining_orders};
///
/// // The CPU at index 0 receives.
/// let cpus: Vec<_> = Topology::read().default_mask().iter().collect();
/// let orders = joining_orders(&cpus, &[0]);
/// assert_eq!(orders.len(), cpus.len());
/// ```
pub fn joining_orders(cpus: &[CpuId], owners: &[u16]) -> Vec<Vec<u16>> {
    let all: CpuMask = cpus.iter().copied().collect();
    let mut near = vec![Vec::new(); cpus.len()];
    if cpus.len() < 3 {
        return near;
    }
    let mut topology = Topology::read();
    for owner in owners {
        let cpu = cpus[usize::from(*owner)];
        topology.measure(cpu, &all);
        let order = topology.joining_order(cpu, &all).into_iter();
        let place = |cpu: CpuId| cpus.iter().position(|ours| *ours == cpu).map(|at| at as u16);
        near[usize::from(*owner)] = order.filter_map(place).collect();
    }
    near
}
