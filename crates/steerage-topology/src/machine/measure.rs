use std::collections::BTreeMap;
use std::time::Duration;

use super::Topology;
use crate::cpu::{CpuId, CpuMask};
use crate::probe::{PAIRS_MAX, one_way};

impl Topology {
    /// Measures how long a cache line takes between `owner` and each CPU in `candidates`, for later
    /// calls of [`joining_order`](Self::joining_order). Returns the number of measured pairs.
    ///
    /// For each pair, two pinned threads spin for at most
    /// [`PAIR_TIME_MAX`](crate::probe::PAIR_TIME_MAX), not counting the time in which they wait for
    /// their CPUs. If there are more than [`PAIRS_MAX`](crate::probe::PAIRS_MAX) pairs, only some
    /// CPUs of each cache are measured. An unmeasured CPU is treated like the measured CPUs that
    /// share its cache. If a pair cannot be measured because a CPU is busy or must not be used, its
    /// previous result stays in use.
    ///
    /// On virtual machines, repeat the measurement from time to time, because the hypervisor moves
    /// virtual CPUs: two CPUs that were 60 ns apart may be 200 ns apart a second later.
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

    /// Selects as many candidates from each shared cache as the limit [`PAIRS_MAX`] allows.
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

/// The distances between an instance's receiving CPUs and its other CPUs. CPUs are identified by
/// their index in the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nearness {
    /// For each receiving CPU, the other CPUs in the order in which they should join.
    pub orders: Vec<Vec<u16>>,
    /// The measured time that a cache line takes from a receiving CPU to another CPU. The map
    /// contains only measured pairs of CPUs on different cores. Between hardware threads of one
    /// core, sharing the core's time matters more than the distance.
    pub apart: BTreeMap<(u16, u16), Duration>,
}

/// Measures the distances between `cpus` and the receiving CPUs, whose indices are in `owners`. The
/// topology that the kernel reports does not suffice, because it is wrong in many virtual machines.
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
