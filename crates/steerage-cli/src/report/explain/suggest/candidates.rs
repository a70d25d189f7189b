//! The CPUs among which the advice chooses.

use steerage::{CpuId, CpuMask, topology::Topology};
use steerage_tune::Distances;

use crate::host_cpus;

/// The CPUs, in the order in which the advice adds CPUs to a run. The first CPU receives.
#[derive(Debug)]
pub(crate) struct CandidateCpus {
    pub(crate) order: Vec<CpuId>,
    /// How far the CPUs are from the receiver.
    pub(crate) distances: Distances,
    /// The CPUs that share a core with a CPU that is added earlier.
    pub(crate) siblings: CpuMask,
    pub(crate) nr_cpu_ids: usize,
}

impl CandidateCpus {
    /// A number of CPUs that all share one cache.
    pub(crate) fn even(cpus: usize) -> Self {
        Self::of(&Topology::even(cpus), cpus)
    }

    /// The CPUs of this machine. The distances between the CPUs are measured, in a fraction of a
    /// second.
    pub(crate) fn this(nr_cpu_ids: usize) -> Self {
        let mut topology = host_cpus::topology().clone();
        let ours = topology.default_mask();
        if let Some(first) = ours.first() {
            Distances::measure(&mut topology, first, &ours);
        }
        Self::of(&topology, nr_cpu_ids)
    }

    /// The CPUs of `topology`.
    pub(super) fn of(topology: &Topology, nr_cpu_ids: usize) -> Self {
        let ours = topology.default_mask();
        let first = ours.first().unwrap_or(CpuId(0));
        let joining = topology.joining_order(first, &ours);
        let order: Vec<CpuId> = ours.first().into_iter().chain(joining).collect();
        let mut cores = Vec::new();
        let mut is_second = |cpu: CpuId| {
            let core = topology.place(cpu).and_then(|place| place.siblings.first()).unwrap_or(cpu);
            let second = cores.contains(&core);
            cores.push(core);
            second
        };
        Self {
            distances: Distances::of(topology, first, &ours),
            siblings: order.iter().copied().filter(|cpu| is_second(*cpu)).collect(),
            nr_cpu_ids,
            order,
        }
    }
}
