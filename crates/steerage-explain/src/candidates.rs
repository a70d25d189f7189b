//! The candidate CPUs: the CPUs that the advice may add to a run.

use steerage::{CpuId, CpuMask, topology::Topology};
use steerage_tune::Distances;

/// The candidate CPUs, in the order in which the advice adds CPUs to a run. The first candidate CPU
/// is the CPU that receives packets.
#[derive(Debug)]
pub struct CandidateCpus {
    /// The CPUs in this order.
    pub order: Vec<CpuId>,
    /// The distance of each candidate CPU from the receiving CPU.
    pub distances: Distances,
    /// The candidate CPUs that share their core with an earlier candidate CPU.
    pub siblings: CpuMask,
    /// The number of bits in the kernel's CPU masks.
    pub nr_cpu_ids: usize,
}

impl CandidateCpus {
    /// Creates `cpus` candidate CPUs that all share one cache.
    pub fn even(cpus: usize) -> Self {
        Self::of(&Topology::even(cpus), cpus, None)
    }

    /// Returns the candidate CPUs of this machine, whose topology is `topology`. This function
    /// takes a fraction of a second, because it measures the distances between the CPUs. `receiver`
    /// is the CPU that receives the packets, if that CPU is known.
    pub fn this(mut topology: Topology, nr_cpu_ids: usize, receiver: Option<CpuId>) -> Self {
        let ours = topology.default_mask();
        if let Some(first) = first(&ours, receiver) {
            Distances::measure(&mut topology, first, &ours);
        }
        Self::of(&topology, nr_cpu_ids, receiver)
    }

    /// Returns the candidate CPUs of `topology`, with the distances that `topology` contains.
    pub fn of(topology: &Topology, nr_cpu_ids: usize, receiver: Option<CpuId>) -> Self {
        let ours = topology.default_mask();
        let known = first(&ours, receiver);
        let first = known.unwrap_or(CpuId(0));
        let order: Vec<CpuId> = known.into_iter().chain(topology.joining_order(first, &ours)).collect();
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

/// Returns the CPU that receives packets. If a run uses the CPU `receiver` by default, this
/// function returns `receiver`. If a run does not use `receiver` by default, this function returns
/// the first CPU that a run uses.
fn first(ours: &CpuMask, receiver: Option<CpuId>) -> Option<CpuId> {
    receiver.filter(|cpu| ours.contains(*cpu)).or_else(|| ours.first())
}
