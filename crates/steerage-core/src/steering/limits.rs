//! Limits that change while the instance runs, and the CPUs that do not apply them yet.

use crate::ids::CpuIndex;
use crate::limits::{Limits, QueueLimits};

/// New limits reach the CPUs in the same way as moves: under the control lock, with a version
/// number that each CPU checks once per round. The data path therefore needs no additional atomic
/// variable.
#[derive(Debug)]
pub(crate) struct LimitsInForce {
    pub(crate) all: Limits,
    pub(crate) of_queues: Vec<QueueLimits>,
    pub(crate) flow_limited: Vec<CpuIndex>,
    behind: Vec<CpuIndex>,
}

fn replace<T: PartialEq>(old: &mut T, new: T) -> bool {
    let differs = *old != new;
    *old = new;
    differs
}

impl LimitsInForce {
    pub(super) fn new(all: Limits, of_queues: Vec<QueueLimits>) -> Self {
        Self { all, of_queues, flow_limited: Vec::new(), behind: Vec::new() }
    }

    pub(super) fn set(&mut self, limits: Limits) -> bool {
        replace(&mut self.all, limits)
    }

    pub(super) fn set_of_queue(&mut self, queue: usize, limits: QueueLimits) -> bool {
        replace(&mut self.of_queues[queue], limits)
    }

    pub(super) fn set_flow_limited(&mut self, cpus: Vec<CpuIndex>) -> bool {
        replace(&mut self.flow_limited, cpus)
    }

    pub(super) fn changed_for(&mut self, cpu: CpuIndex) {
        if !self.behind.contains(&cpu) {
            self.behind.push(cpu);
        }
    }

    pub(crate) fn read_by(&mut self, cpu: CpuIndex) -> Limits {
        self.behind.retain(|cpu_behind| *cpu_behind != cpu);
        self.all
    }

    pub(super) fn cpus_behind(&self) -> &[CpuIndex] {
        &self.behind
    }
}
