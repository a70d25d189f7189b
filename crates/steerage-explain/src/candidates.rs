use steerage::{CpuId, CpuMask, topology::Topology};
use steerage_tune::Distances;

/// The CPUs that the advice may use, in the order in which the advice adds them. The first CPU
/// receives the packets.
#[derive(Debug)]
pub struct CandidateCpus {
    /// The CPUs, in the order in which the advice adds them.
    pub order: Vec<CpuId>,
    /// The distances of the CPUs from the receiving CPU.
    pub distances: Distances,
    /// The CPUs that share their core with an earlier CPU.
    pub siblings: CpuMask,
    /// The number of bits in the kernel's CPU masks.
    pub nr_cpu_ids: usize,
}

impl CandidateCpus {
    /// Returns candidates for a machine with `cpus` CPUs that share one cache.
    pub fn even(cpus: usize) -> Self {
        Self::of(&Topology::even(cpus), cpus, None)
    }

    /// Returns the candidates on this machine, after measuring their distances, which takes a
    /// fraction of a second. `receiver` is the receiving CPU, if known.
    pub fn this(mut topology: Topology, nr_cpu_ids: usize, receiver: Option<CpuId>) -> Self {
        let ours = topology.default_mask();
        if let Some(first) = first(&ours, receiver) {
            Distances::measure(&mut topology, first, &ours);
        }
        Self::of(&topology, nr_cpu_ids, receiver)
    }

    /// Returns the candidates among the CPUs of `topology`, with the distances that `topology`
    /// contains.
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

/// Returns `receiver` if a run uses this CPU by default, and otherwise the first CPU that a run
/// uses.
fn first(ours: &CpuMask, receiver: Option<CpuId>) -> Option<CpuId> {
    receiver.filter(|cpu| ours.contains(*cpu)).or_else(|| ours.first())
}
