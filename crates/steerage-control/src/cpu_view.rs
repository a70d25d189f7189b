use std::fmt;

use steerage::limits::CPUS_MAX;
use steerage::topology::{self, Topology};
use steerage::{CpuId, CpuMask};

type Online = Box<dyn Fn() -> CpuMask + Send + Sync>;

/// The CPUs that an RPS mask may contain.
pub struct CpuView {
    nr_cpu_ids: usize,
    isolated: CpuMask,
    online: Option<Online>,
}

impl CpuView {
    /// Creates a view of the CPUs 0 to `nr_cpu_ids - 1`, all online and not isolated.
    pub fn new(nr_cpu_ids: usize) -> Self {
        Self { nr_cpu_ids, isolated: CpuMask::new(), online: None }
    }

    /// Returns a view of this machine's CPUs.
    pub fn of_machine() -> Self {
        let topology = Topology::read();
        // If a container hides /sys, masks may contain the CPUs up to the highest CPU that this
        // process may use.
        let highest = || topology.allowed().last().map(|last| usize::from(last.0) + 1);
        let nr_cpu_ids = topology.nr_cpu_ids().or_else(highest).unwrap_or(CPUS_MAX);
        let online = || topology::online().unwrap_or_else(|| (0..CPUS_MAX as u16).map(CpuId).collect());
        Self::new(nr_cpu_ids).isolated(topology.isolated().clone()).online(online)
    }

    /// Sets the isolated CPUs (`isolcpus`, `nohz_full`), which are excluded from all masks.
    #[must_use]
    pub fn isolated(self, isolated: CpuMask) -> Self {
        Self { isolated, ..self }
    }

    /// Sets the function that returns the online CPUs, which is called at each change of a mask.
    #[must_use]
    pub fn online(self, online: impl Fn() -> CpuMask + Send + Sync + 'static) -> Self {
        Self { online: Some(Box::new(online)), ..self }
    }

    pub(crate) fn nr_cpu_ids(&self) -> usize {
        self.nr_cpu_ids
    }

    /// Returns the mask that the kernel would store, without isolated CPUs, or `None` if the mask
    /// has only isolated CPUs.
    pub(crate) fn without_isolated(&self, mask: &CpuMask) -> Option<CpuMask> {
        let left: CpuMask = mask.iter().filter(|cpu| !self.isolated.contains(*cpu)).collect();
        (mask.is_empty() || !left.is_empty()).then_some(left)
    }

    pub(crate) fn online_of(&self, mask: &CpuMask) -> CpuMask {
        self.online.as_ref().map_or_else(|| mask.clone(), |online| mask.and(&online()))
    }
}

impl fmt::Debug for CpuView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuView of {} CPUs", self.nr_cpu_ids)
    }
}
