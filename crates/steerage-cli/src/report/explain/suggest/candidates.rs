//! The CPUs among which the advice chooses.

use std::time::Duration;

use steerage::{CpuId, CpuMask, topology::Topology};

use crate::host_cpus::{self, FAR};

/// The CPUs, in the order in which the advice adds CPUs to a run. The first CPU receives.
#[derive(Debug)]
pub(crate) struct CandidateCpus {
    pub(crate) order: Vec<CpuId>,
    /// The CPUs that share no cache with the receiver.
    pub(crate) far: CpuMask,
    /// The CPUs that share a core with a CPU that is added earlier.
    pub(crate) siblings: CpuMask,
    /// The measured distances from the receiver to the nearest and to the farthest CPU.
    pub(crate) measured: Option<(Duration, Duration)>,
    /// Whether all distances are known, from the kernel or from a measurement.
    pub(crate) is_known: bool,
    pub(crate) nr_cpu_ids: usize,
}

/// How many times the measurement of a pair of CPUs is tried while other programs run on these
/// CPUs. All tries take 1.3 s for 64 busy CPUs.
const MEASURE_TRIES: usize = 8;

impl CandidateCpus {
    /// A number of CPUs that all share one cache.
    pub(crate) fn even(cpus: usize) -> Self {
        Self::of(&Topology::even(cpus), cpus, None)
    }

    /// The CPUs of this machine. The distances between the CPUs are measured, in a fraction of a
    /// second. `receiver` is the CPU that receives, if it is known.
    pub(crate) fn this(nr_cpu_ids: usize, receiver: Option<CpuId>) -> Self {
        let mut topology = host_cpus::topology().clone();
        let ours = topology.default_mask();
        if let Some(first) = first(&ours, receiver) {
            let mut left = ours.clone();
            for _ in 0..MEASURE_TRIES {
                topology.measure(first, &left);
                left = left.iter().filter(|cpu| *cpu != first && topology.latency(first, *cpu).is_none()).collect();
            }
        }
        Self::of(&topology, nr_cpu_ids, receiver)
    }

    /// The CPUs of `topology`.
    pub(super) fn of(topology: &Topology, nr_cpu_ids: usize, receiver: Option<CpuId>) -> Self {
        let ours = topology.default_mask();
        let Some(first) = first(&ours, receiver) else {
            let (order, far, siblings) = (Vec::new(), CpuMask::new(), CpuMask::new());
            return Self { order, far, siblings, measured: None, is_known: false, nr_cpu_ids };
        };
        let order: Vec<CpuId> = std::iter::once(first).chain(topology.joining_order(first, &ours)).collect();
        let shares = |cpu: CpuId| topology.place(first)?.cache.as_ref().map(|cache| cache.cpus.contains(cpu));
        let is_far = |cpu: CpuId| match topology.latency(first, cpu) {
            Some(latency) => latency >= FAR,
            None => shares(cpu) == Some(false),
        };
        let mut cores = Vec::new();
        let mut is_second = |cpu: CpuId| {
            let core = topology.place(cpu).and_then(|place| place.siblings.first()).unwrap_or(cpu);
            let second = cores.contains(&core);
            cores.push(core);
            second
        };
        let is_known = |cpu: &CpuId| topology.latency(first, *cpu).is_some() || shares(*cpu).is_some();
        let measured = || order.iter().filter_map(|cpu| topology.latency(first, *cpu));
        Self {
            far: order.iter().copied().filter(|cpu| *cpu != first && is_far(*cpu)).collect(),
            siblings: order.iter().copied().filter(|cpu| is_second(*cpu)).collect(),
            measured: measured().min().zip(measured().max()),
            is_known: order[1..].iter().all(is_known),
            nr_cpu_ids,
            order,
        }
    }
}

/// The CPU that receives: the one that is known to, or else the first.
fn first(ours: &CpuMask, receiver: Option<CpuId>) -> Option<CpuId> {
    receiver.filter(|cpu| ours.contains(*cpu)).or_else(|| ours.first())
}
