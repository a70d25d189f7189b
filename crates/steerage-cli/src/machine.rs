//! The CPUs of the machine we run on.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use steerage::{CPUS_MAX, CpuId, CpuMask, Topology, topology};

use crate::error::Error;

/// The machine as it was when it was first asked for: a dozen files for each CPU, read once. CPUs that go off line or come back
/// are for [`online_cpus`] to tell.
pub(crate) fn at_start() -> &'static Topology {
    static AT_START: OnceLock<Topology> = OnceLock::new();
    AT_START.get_or_init(Topology::read)
}

/// The kernel's nr_cpu_ids: one more than the highest CPU that may ever be there.
pub(crate) fn nr_cpu_ids() -> usize {
    let topology = at_start();
    // Containers may hide /sys; then the CPUs we may run on bound the masks.
    let highest = || topology.allowed().last().map(|last| usize::from(last.0) + 1);
    topology.nr_cpu_ids().or_else(highest).unwrap_or(CPUS_MAX)
}

/// The CPUs to work on where nobody says which.
pub(crate) fn usable_cpus() -> Result<CpuMask, Error> {
    let cpus = at_start().default_mask();
    if cpus.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "neither sched_getaffinity nor /sys tells");
        return Err(Error::System { operation: "read which CPUs this process may use", error });
    }
    Ok(cpus)
}

/// Whether all of `cpus` are switched on.
pub(crate) fn check_online(cpus: &CpuMask) -> Result<(), Error> {
    let Some(online) = topology::online() else { return Ok(()) };
    let off: Option<CpuId> = cpus.iter().find(|cpu| !online.contains(*cpu));
    off.map_or(Ok(()), |cpu| Err(Error::Offline { cpu, online }))
}

/// From this on a cache line takes as long as between CPUs that share no cache: they were measured at 60 ns and 200 ns one way
/// (docs/performance.md), and elsewhere at 15 to 30 and 80.
pub(crate) const FAR: Duration = Duration::from_nanos(100);

/// Whether the first of `candidates` to join `cpu` is near now: measured, in about half a millisecond.
pub(crate) fn has_near(cpu: CpuId, candidates: &CpuMask) -> bool {
    let mut topology = at_start().clone();
    let Some(first) = topology.joining_order(cpu, candidates).first().copied() else { return false };
    topology.measure(cpu, &[first].into_iter().collect());
    topology.latency(cpu, first).is_some_and(|latency| latency < FAR)
}

/// The CPUs that are switched on.
pub(crate) fn online_cpus() -> CpuMask {
    topology::online().unwrap_or_else(|| (0..CPUS_MAX as u16).map(CpuId).collect())
}

/// The CPUs that the kernel keeps its own work from: `isolcpus` and `nohz_full`.
pub(crate) fn isolated_cpus() -> CpuMask {
    at_start().isolated().clone()
}
