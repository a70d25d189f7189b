//! The CPUs of the machine we run on.

use std::fs;

use steerage::{CPUS_MAX, CpuId, CpuMask};

use crate::error::Error;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
const NOHZ_FULL: &str = "/sys/devices/system/cpu/nohz_full";

/// More than any kernel can be built for: the bound of a list that the kernel itself wrote.
const CPU_IDS_MAX: usize = 1 << 16;

/// The kernel's nr_cpu_ids: one more than the highest CPU that may ever be there.
pub(crate) fn nr_cpu_ids() -> usize {
    // Containers may hide /sys; then the CPUs we may run on bound the masks.
    let possible = listed(POSSIBLE).or_else(|| CpuMask::allowed().ok());
    possible.and_then(|cpus| cpus.last()).map_or(CPUS_MAX, |last| usize::from(last.0) + 1)
}

/// The CPUs that this process may use: its affinity, and no more of them than its cgroup's quota is worth.
pub(crate) fn usable_cpus() -> Result<CpuMask, Error> {
    let allowed = CpuMask::allowed()
        .map_err(|error| Error::System { operation: "read which CPUs this process may use", error })?;
    // A container with a quota of 2 CPUs on a machine of 64 sees all 64: threads on each would only be throttled.
    let worth = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    Ok(allowed.iter().take(worth.min(CPUS_MAX)).collect())
}

/// Whether all of `cpus` are switched on.
pub(crate) fn check_online(cpus: &CpuMask) -> Result<(), Error> {
    let Some(online) = listed(ONLINE) else { return Ok(()) };
    let off: Option<CpuId> = cpus.iter().find(|cpu| !online.contains(*cpu));
    off.map_or(Ok(()), |cpu| Err(Error::Offline { cpu, online }))
}

/// The CPUs that are switched on.
pub(crate) fn online_cpus() -> CpuMask {
    listed(ONLINE).unwrap_or_else(|| (0..CPUS_MAX as u16).map(CpuId).collect())
}

/// The CPUs that the kernel keeps its own work from: `isolcpus` and `nohz_full`.
pub(crate) fn isolated_cpus() -> CpuMask {
    [ISOLATED, NOHZ_FULL].into_iter().filter_map(listed).flat_map(|cpus| cpus.iter().collect::<Vec<_>>()).collect()
}

fn listed(path: &str) -> Option<CpuMask> {
    let text = fs::read_to_string(path).ok()?;
    CpuMask::parse_list(text.trim(), CPU_IDS_MAX).ok().filter(|cpus| !cpus.is_empty())
}
