//! To change, read and stop an instance, whatever it is made of.

use std::fmt;
use std::sync::Arc;

use crate::builder::BuildError;
use crate::cpu::{CpuId, CpuMask};
use crate::ledger::{BucketSnapshot, Snapshot};
use crate::limits::{Limits, QueueLimits};
use crate::plan::mask_indices;
use crate::policy::Policy;
use crate::rps_map::CpuIndex;
use crate::shared::Shared;

trait Control: Send + Sync {
    fn stop(&self);
    fn is_stopping(&self) -> bool;
    fn is_finished(&self) -> bool;
    fn set_mask(&self, queues: Option<usize>, mask: &CpuMask) -> Result<(), BuildError>;
    fn is_settled(&self) -> bool;
    fn limits(&self) -> Limits;
    fn set_limits(&self, change: &mut dyn FnMut(&mut Limits)) -> Limits;
    fn set_queue_limits(
        &self,
        queue: usize,
        change: &mut dyn FnMut(&mut QueueLimits),
    ) -> Result<QueueLimits, BuildError>;
    fn flow_limit_cpus(&self) -> CpuMask;
    fn set_flow_limit_cpus(&self, cpus: &CpuMask) -> Result<(), BuildError>;
    fn set_present_cpus(&self, cpus: &CpuMask);
    fn set_others_time(&self, shares: &[(CpuId, f64)]);
    fn policy(&self) -> &'static str;
    fn set_policy(&self, policy: Box<dyn Policy>);
    fn buckets(&self, queue: usize) -> Option<Vec<BucketSnapshot>>;
    fn snapshot(&self) -> Snapshot;
    fn held(&self) -> u64;
    fn finish_outputs(&self);
}

impl<M: Send> Control for Shared<M> {
    fn stop(&self) {
        self.core.stop();
    }

    fn is_stopping(&self) -> bool {
        self.core.is_stopping()
    }

    fn is_finished(&self) -> bool {
        self.core.all_closed()
    }

    fn set_mask(&self, queue: Option<usize>, mask: &CpuMask) -> Result<(), BuildError> {
        let count = self.core.queues.len();
        let queues = match queue {
            Some(queue) if queue < count => queue..queue + 1,
            Some(queue) => return Err(BuildError::NoSuchQueue { queue, queues: count }),
            None => 0..count,
        };
        let mut masks: Vec<(Vec<CpuIndex>, Vec<usize>)> = Vec::new();
        for at in queues {
            let mut cpus = mask_indices(&self.core.cpus, mask, self.core.queues[at].owner)?;
            cpus.sort_unstable();
            match masks.iter_mut().find(|(other, _)| *other == cpus) {
                Some((_, queues)) => queues.push(at),
                None => masks.push((cpus, vec![at])),
            }
        }
        let mut state = self.steering.lock();
        for (cpus, queues) in masks {
            state.set_mask(&queues, &cpus);
        }
        self.wake(self.steering.publish(state));
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let state = self.steering.lock();
        state.is_settled() && (state.limits_in_force() || self.core.all_closed())
    }

    fn limits(&self) -> Limits {
        self.steering.lock().limits()
    }

    fn set_limits(&self, change: &mut dyn FnMut(&mut Limits)) -> Limits {
        let mut state = self.steering.lock();
        let mut limits = state.limits();
        change(&mut limits);
        let limits = limits.clamped(self.core.ring_slots);
        state.set_limits(limits);
        self.wake(self.steering.publish(state));
        limits
    }

    fn set_queue_limits(
        &self,
        queue: usize,
        change: &mut dyn FnMut(&mut QueueLimits),
    ) -> Result<QueueLimits, BuildError> {
        let queues = self.core.queues.len();
        if queue >= queues {
            return Err(BuildError::NoSuchQueue { queue, queues });
        }
        let mut state = self.steering.lock();
        let mut limits = state.queue_limits(queue);
        change(&mut limits);
        let limits = limits.clamped(self.core.queues[queue].lends);
        state.set_queue_limits(queue, limits);
        self.wake(self.steering.publish(state));
        Ok(limits)
    }

    fn flow_limit_cpus(&self) -> CpuMask {
        self.steering.lock().flow_limited().iter().map(|cpu| self.core.cpus[usize::from(*cpu)]).collect()
    }

    fn set_flow_limit_cpus(&self, cpus: &CpuMask) -> Result<(), BuildError> {
        let indices = if cpus.is_empty() { Vec::new() } else { mask_indices(&self.core.cpus, cpus, 0)? };
        let mut state = self.steering.lock();
        state.set_flow_limited(indices);
        self.wake(self.steering.publish(state));
        Ok(())
    }

    fn set_present_cpus(&self, cpus: &CpuMask) {
        let ours = 0..self.core.cpus.len() as CpuIndex;
        let present: Vec<CpuIndex> = ours.filter(|cpu| cpus.contains(self.core.cpus[usize::from(*cpu)])).collect();
        let mut state = self.steering.lock();
        state.set_present(&present);
        self.wake(self.steering.publish(state));
    }

    fn set_others_time(&self, shares: &[(CpuId, f64)]) {
        let mut state = self.steering.lock();
        for (cpu, share) in shares {
            if let Some(at) = self.core.cpus.iter().position(|ours| ours == cpu) {
                state.others[at] = *share;
            }
        }
    }

    fn policy(&self) -> &'static str {
        self.steering.lock().policy_name()
    }

    fn set_policy(&self, policy: Box<dyn Policy>) {
        let mut state = self.steering.lock();
        state.set_policy(policy);
        self.wake(self.steering.publish(state));
    }

    fn buckets(&self, queue: usize) -> Option<Vec<BucketSnapshot>> {
        let loads = self.core.queues.get(queue)?.ledger.buckets.read();
        let state = self.steering.lock();
        let buckets = state.buckets_of(queue).zip(loads).map(|((cpu, moves), packets)| {
            let cpu = self.core.cpus[usize::from(cpu)];
            BucketSnapshot { cpu, packets, moves }
        });
        Some(buckets.collect())
    }

    fn snapshot(&self) -> Snapshot {
        Self::snapshot(self)
    }

    fn held(&self) -> u64 {
        let in_outputs = self.core.outputs.iter().flat_map(|output| &output.ledgers).map(|ledger| ledger.held());
        self.core.queues.iter().map(|queue| queue.held()).chain(in_outputs).sum()
    }

    fn finish_outputs(&self) {
        self.core.finish_outputs();
    }
}

impl<M> Shared<M> {
    fn wake(&self, cpus: Vec<CpuIndex>) {
        self.core.sleepers.after_publishing();
        for cpu in cpus {
            self.core.wake(usize::from(cpu));
        }
    }
}

/// To change, read and stop an instance from any thread, while it runs and after.
#[derive(Clone)]
pub struct Handle(Arc<dyn Control>);

impl Handle {
    pub(crate) fn of<M: Send + 'static>(shared: &Arc<Shared<M>>) -> Self {
        Self(Arc::clone(shared) as Arc<dyn Control>)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl Handle {
    /// Stops receiving; what is in flight is handled, for at most [`DRAIN_MAX`](crate::DRAIN_MAX).
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Whether a stop was asked for.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }

    /// Whether every queue has ended and everything that came in is finished.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Spreads the packets of all queues over `mask` from now on. Of no CPU: each packet stays where it arrived. Flows
    /// move without being reordered, as few as can be; the call does not wait for it, see
    /// [`is_settled`](Self::is_settled).
    ///
    /// # Errors
    /// [`BuildError::NotOurCpu`] if the mask names a CPU that the instance does not have; nothing then changes.
    pub fn set_rps_cpus(&self, mask: &CpuMask) -> Result<(), BuildError> {
        self.0.set_mask(None, mask)
    }

    /// The same for one queue, numbered over all inputs. Queues with the same mask share one map; a queue whose mask
    /// becomes another's joins it.
    ///
    /// # Errors
    /// As [`set_rps_cpus`](Self::set_rps_cpus), or [`BuildError::NoSuchQueue`].
    pub fn set_queue_rps_cpus(&self, queue: usize, mask: &CpuMask) -> Result<(), BuildError> {
        self.0.set_mask(Some(queue), mask)
    }

    /// Whether all masks and limits are in force for new packets, and nothing moves. CPUs that were declared dead are not
    /// waited for.
    pub fn is_settled(&self) -> bool {
        self.0.is_settled()
    }

    /// The limits that can be changed, as they are.
    pub fn limits(&self) -> Limits {
        self.0.limits()
    }

    /// Changes limits, and returns what they are now: what is beyond a limit's range becomes the nearest that is within.
    /// Each CPU goes by them from its next round on; [`is_settled`](Self::is_settled) says when all do.
    pub fn set_limits(&self, mut change: impl FnMut(&mut Limits)) -> Limits {
        self.0.set_limits(&mut change)
    }

    /// The same for one queue, numbered over all inputs; a change that does nothing reads them.
    ///
    /// # Errors
    /// [`BuildError::NoSuchQueue`].
    pub fn set_queue_limits(
        &self,
        queue: usize,
        mut change: impl FnMut(&mut QueueLimits),
    ) -> Result<QueueLimits, BuildError> {
        self.0.set_queue_limits(queue, &mut change)
    }

    /// The CPUs whose backlogs have a flow limit.
    pub fn flow_limit_cpus(&self) -> CpuMask {
        self.0.flow_limit_cpus()
    }

    /// Gives the backlogs of these CPUs, and of no others, a flow limit: `flow_limit_cpu_bitmap`. While such a backlog is over
    /// half full, a flow that has more than half of the last [`FLOW_LIMIT_HISTORY`](crate::FLOW_LIMIT_HISTORY) packets for it
    /// loses packets (`flow_limit`), so that those beside it do not. What waits for room (a file) never drops. Default: none.
    ///
    /// # Errors
    /// [`BuildError::NotOurCpu`] if the mask names a CPU that the instance does not have; nothing then changes.
    pub fn set_flow_limit_cpus(&self, cpus: &CpuMask) -> Result<(), BuildError> {
        self.0.set_flow_limit_cpus(cpus)
    }

    /// Of the instance's CPUs, those that are there: what is on others moves away, in order, and nothing new comes to them until
    /// they are back. [`Instance::start`](crate::Instance::start) does this itself as CPUs are taken off line or out of the process's cpuset; it is for
    /// those who run their own threads.
    pub fn set_present_cpus(&self, cpus: &CpuMask) {
        self.0.set_present_cpus(cpus);
    }

    /// Which share of the instance's CPUs' time others had lately, 0 to 1 ([`OthersTime`](crate::topology::OthersTime)): policies
    /// take it into account. [`Instance::start`](crate::Instance::start) does this itself; it is for those who run their own threads.
    pub fn set_others_time(&self, shares: &[(CpuId, f64)]) {
        self.0.set_others_time(shares);
    }

    /// The name of the policy by which buckets are spread.
    pub fn policy(&self) -> &'static str {
        self.0.policy()
    }

    /// Spreads buckets by another policy from now on; all steering groups begin anew with it.
    pub fn set_policy(&self, policy: impl Policy + 'static) {
        self.0.set_policy(Box::new(policy));
    }

    /// Each of the [`BUCKETS`](crate::BUCKETS) of a queue, numbered over all inputs. `None` if there is no such queue.
    pub fn buckets(&self, queue: usize) -> Option<Vec<BucketSnapshot>> {
        self.0.buckets(queue)
    }

    /// The ledger now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// How many frames rings, parking lots and outputs hold, counted there: at rest it equals the ledger's in flight.
    pub fn held(&self) -> u64 {
        self.0.held()
    }

    /// Waits until the outputs have finished what they hold: for as long as they get on, for at most [`OUTPUT_STUCK_AFTER`]
    /// without progress, and for at most [`DRAIN_MAX`](crate::DRAIN_MAX) in all once a stop was asked for. What they still hold
    /// then drops as [`DropReason::TxLost`]. [`Running::join`](crate::Running::join) calls this. If you run your own threads, call it
    /// when no CPU is stepped any more.
    ///
    /// [`OUTPUT_STUCK_AFTER`]: crate::OUTPUT_STUCK_AFTER
    /// [`DropReason::TxLost`]: crate::DropReason::TxLost
    pub fn finish_outputs(&self) {
        self.0.finish_outputs();
    }
}
