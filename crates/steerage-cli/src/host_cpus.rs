use std::io;
use std::sync::OnceLock;

use steerage::{
    CpuId, CpuMask,
    limits::CPUS_MAX,
    topology::{self, Topology},
};

use crate::error::Error;

/// Returns the CPUs of the machine. The first call reads a dozen files for each CPU. Later calls
/// return the stored result, even if CPUs have gone offline. [`online_cpus`] reads the current
/// state.
pub(crate) fn topology() -> &'static Topology {
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    TOPOLOGY.get_or_init(Topology::read)
}

/// Returns the kernel's nr_cpu_ids: one more than the highest number of a CPU.
pub(crate) fn nr_cpu_ids() -> usize {
    let topology = topology();
    // A container may hide /sys, so the number may be unknown.
    let highest = || topology.allowed().last().map(|last| usize::from(last.0) + 1);
    topology.nr_cpu_ids().or_else(highest).unwrap_or(CPUS_MAX)
}

pub(crate) fn usable_cpus() -> Result<CpuMask, Error> {
    let cpus = topology().default_mask();
    if cpus.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "neither sched_getaffinity nor /sys says");
        return Err(Error::System { operation: "read which CPUs this process may use", error });
    }
    Ok(cpus)
}

pub(crate) fn require_online(cpus: &CpuMask) -> Result<(), Error> {
    let Some(online) = topology::online() else { return Ok(()) };
    let off: Option<CpuId> = cpus.iter().find(|cpu| !online.contains(*cpu));
    off.map_or(Ok(()), |cpu| Err(Error::Offline { cpu, online }))
}

pub(crate) fn online_cpus() -> CpuMask {
    topology::online().unwrap_or_else(|| (0..CPUS_MAX as u16).map(CpuId).collect())
}
