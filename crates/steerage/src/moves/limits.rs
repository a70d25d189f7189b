//! The limits in force: they travel as moves do, by a lock that the data path only tries, and a version that it looks at.

use super::State;
use crate::limits::{Limits, QueueLimits};
use crate::rps_map::CpuIndex;

impl<M> State<M> {
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.limits_changed(0..self.dead.len() as CpuIndex);
        }
    }

    pub(crate) fn queue_limits(&self, queue: usize) -> QueueLimits {
        self.queues[queue].limits
    }

    pub(crate) fn set_queue_limits(&mut self, queue: usize, limits: QueueLimits) {
        if limits != self.queues[queue].limits {
            self.queues[queue].limits = limits;
            let owner = self.queues[queue].control.owner;
            self.limits_changed(owner..owner + 1);
        }
    }

    /// It is for these CPUs to read them.
    fn limits_changed(&mut self, cpus: std::ops::Range<CpuIndex>) {
        for cpu in cpus {
            if !self.unread.contains(&cpu) {
                self.unread.push(cpu);
            }
            self.to_wake.push(cpu);
        }
        self.changed = true;
    }

    /// The CPUs whose backlogs have a flow limit.
    pub(crate) fn flow_limited(&self) -> &[CpuIndex] {
        &self.flow_limited
    }

    pub(crate) fn set_flow_limited(&mut self, cpus: Vec<CpuIndex>) {
        if cpus != self.flow_limited {
            self.flow_limited = cpus;
            self.limits_changed(0..self.dead.len() as CpuIndex);
        }
    }

    /// The limits, for a CPU that goes by them from now on.
    pub(crate) fn limits_for(&mut self, cpu: CpuIndex) -> Limits {
        self.unread.retain(|unread| *unread != cpu);
        self.limits
    }

    /// Whether all CPUs that can go by the limits.
    pub(crate) fn limits_in_force(&self) -> bool {
        self.unread.iter().all(|cpu| self.is_dead(*cpu))
    }
}
