//! An instance that is put together: run on threads of its own, or split for those who bring theirs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::builder::BuildError;
use crate::cpu::{CpuId, CpuMask};
use crate::handler::Handler;
use crate::ledger::{BucketSnapshot, Snapshot};
use crate::limits::{DRAIN_MAX, JOIN_LOOK, LEAVE_BEHIND_AFTER, Limits, QueueLimits};
use crate::origin::Origin;
use crate::plan::mask_indices;
use crate::platform::{Machine, Platform};
use crate::policy::Policy;
use crate::queue::OwnedQueue;
use crate::rps_map::CpuIndex;
use crate::shared::{Core, Shared};
use crate::softnet::{Inbound, Softnet};
use crate::tx::OwnedTx;
use crate::watching::{self, Threads};

/// Makes a CPU's handler, there.
pub(crate) type MakeHandler<H> = Arc<dyn Fn(CpuId) -> H + Send + Sync>;

/// Everything put together, at rest.
pub struct Instance<H: Handler> {
    parts: Vec<CpuPart<H>>,
    shared: Arc<Shared<H::Moved>>,
    pin: bool,
    idle_poll: Duration,
}

impl<H: Handler> fmt::Debug for Instance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance on {} CPUs", self.parts.len())
    }
}

impl<H: Handler> Instance<H> {
    pub(crate) fn new(parts: Vec<CpuPart<H>>, shared: Arc<Shared<H::Moved>>, pin: bool, idle_poll: Duration) -> Self {
        Self { parts, shared, pin, idle_poll }
    }

    /// To change, read and stop it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared) as Arc<dyn Control>)
    }

    /// One part for each CPU, to be run on threads of the caller's. No thread is started, pinned or named.
    pub fn split(self) -> (Vec<CpuPart<H>>, Handle) {
        let handle = self.handle();
        (self.parts, handle)
    }

    /// Starts a thread for each CPU, pinned to it.
    ///
    /// # Errors
    /// [`BuildError::System`] if a thread cannot be started.
    pub fn start(self) -> Result<Running<H::Report>, BuildError> {
        let handle = self.handle();
        let (to_join, ended) = mpsc::channel();
        let mut threads = Vec::with_capacity(self.parts.len());
        let cpus: Vec<CpuId> = self.parts.iter().map(CpuPart::cpu).collect();
        let pinned: Threads = cpus.iter().map(|_| AtomicI32::new(0)).collect();
        for part in self.parts {
            let (to_join, shared) = (to_join.clone(), Arc::clone(&self.shared));
            let (pinned, place) = (Arc::clone(&pinned), usize::from(part.index));
            let (cpu, pin, idle_poll) = (part.cpu(), self.pin, self.idle_poll);
            let body = move || {
                if pin {
                    pin_to(cpu);
                    watching::is_me(&pinned, place);
                }
                let report = catch_unwind(AssertUnwindSafe(|| part.enter_machine().run(idle_poll)));
                if report.is_err() {
                    tracing::error!(cpu = cpu.0, "the receive path panicked; everything stops");
                    shared.core.stop();
                }
                // Nobody may be listening any more.
                let _ = to_join.send((cpu, report.ok()));
            };
            let thread = std::thread::Builder::new().name(format!("steerage/{cpu}")).spawn(body);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.shared.core.stop();
                    return Err(BuildError::System { operation: "start a thread for each CPU", error });
                }
            }
        }
        // Virtual CPUs are nobody's to take away.
        let watch = match self.pin.then(|| watching::watch(handle.clone(), cpus.clone(), pinned)) {
            Some(Err(error)) => {
                tracing::warn!("cannot watch over CPUs: {error}");
                None
            }
            watched => watched.and_then(Result::ok),
        };
        Ok(Running { handle, threads, ended, cpus, _watch: watch })
    }
}

/// Pins the calling thread, one of ours, to its CPU. Where that is not allowed it runs where it may.
fn pin_to(cpu: CpuId) {
    if let Err(error) = crate::cpu::pin(cpu) {
        tracing::warn!(cpu = cpu.0, "cannot pin a thread to its CPU: {error}");
    }
}

/// One CPU's part of an instance, on its way to the thread that will run it.
pub struct CpuPart<H: Handler> {
    pub(crate) index: CpuIndex,
    pub(crate) make: MakeHandler<H>,
    pub(crate) shared: Arc<Shared<H::Moved>>,
    pub(crate) stops: StopsUnlessFinished,
    pub(crate) queues: Vec<OwnedQueue>,
    pub(crate) inbound: Vec<Inbound>,
    pub(crate) outputs: Vec<OwnedTx>,
    pub(crate) origin: Origin,
}

impl<H: Handler> fmt::Debug for CpuPart<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuPart of CPU {}", self.cpu())
    }
}

impl<H: Handler> CpuPart<H> {
    pub(crate) fn new(
        index: CpuIndex,
        make: MakeHandler<H>,
        shared: Arc<Shared<H::Moved>>,
        queues: Vec<OwnedQueue>,
        inbound: Vec<Inbound>,
        (outputs, origin): (Vec<OwnedTx>, Origin),
    ) -> Self {
        let stops = StopsUnlessFinished { core: Arc::clone(&shared.core), finished: false };
        Self { index, make, shared, stops, queues, inbound, outputs, origin }
    }

    /// The CPU that it stands for.
    pub fn cpu(&self) -> CpuId {
        self.shared.core.cpus[usize::from(self.index)]
    }

    /// Builds the handler, here, and makes ready to be stepped.
    pub fn enter<P: Platform>(self, platform: P) -> Softnet<H, P> {
        Softnet::new(self, platform)
    }

    /// The same, on the machine we run on.
    pub fn enter_machine(self) -> Softnet<H, Machine> {
        let machine = Machine::new(self.shared.core.start, u64::from(self.index));
        self.enter(machine)
    }
}

/// A CPU that goes away without having finished, by a panic or because its future was dropped, leaves others waiting: so
/// everything stops.
#[derive(Debug)]
pub(crate) struct StopsUnlessFinished {
    core: Arc<Core>,
    pub(crate) finished: bool,
}

impl Drop for StopsUnlessFinished {
    fn drop(&mut self) {
        if !self.finished {
            self.core.stop();
        }
    }
}

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
    fn policy(&self) -> &'static str;
    fn set_policy(&self, policy: Box<dyn Policy>);
    fn buckets(&self, queue: usize) -> Option<Vec<BucketSnapshot>>;
    fn snapshot(&self) -> Snapshot;
    fn held(&self) -> u64;
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
        self.core.queues.iter().map(|queue| queue.held()).sum()
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
    /// they are back. [`Instance::start`] does this itself as CPUs are taken off line or out of the process's cpuset; it is for
    /// those who run their own threads.
    pub fn set_present_cpus(&self, cpus: &CpuMask) {
        self.0.set_present_cpus(cpus);
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

    /// How many frames rings and parking lots hold, counted at the rings: at rest it equals the ledger's in flight.
    pub fn held(&self) -> u64 {
        self.0.held()
    }
}

/// An instance at work.
#[derive(Debug)]
pub struct Running<R> {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
    ended: Receiver<(CpuId, Option<R>)>,
    cpus: Vec<CpuId>,
    /// CPUs are watched over as long as this is there.
    _watch: Option<mpsc::Sender<()>>,
}

/// What came of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome<R> {
    /// The ledger at the end.
    pub snapshot: Snapshot,
    /// What each CPU's handler had to report.
    pub reports: Vec<(CpuId, R)>,
    /// CPUs that did not come to an end in time: their handlers never returned. Their threads are left behind.
    pub left_behind: Vec<CpuId>,
    /// CPUs on which not a handler but the path or a handler's construction or end panicked.
    pub failed: Vec<CpuId>,
}

impl<R> Running<R> {
    /// To change, read and stop it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until every queue has ended or a stop is through. After a stop, a CPU whose handler does not return is left
    /// behind.
    pub fn join(self) -> Outcome<R> {
        let mut reports = Vec::with_capacity(self.cpus.len());
        let mut failed = Vec::new();
        let mut give_up: Option<Instant> = None;
        while reports.len() + failed.len() < self.cpus.len() {
            match self.ended.recv_timeout(JOIN_LOOK) {
                Ok((cpu, Some(report))) => reports.push((cpu, report)),
                Ok((cpu, None)) => failed.push(cpu),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if self.handle.is_stopping() {
                        let give_up = *give_up.get_or_insert(Instant::now() + DRAIN_MAX + LEAVE_BEHIND_AFTER);
                        if Instant::now() > give_up {
                            break;
                        }
                    }
                }
            }
        }
        let ended = |cpu: &CpuId| failed.contains(cpu) || reports.iter().any(|(reported, _)| reported == cpu);
        let left_behind: Vec<CpuId> = self.cpus.into_iter().filter(|cpu| !ended(cpu)).collect();
        if left_behind.is_empty() {
            // They have nothing left to do but return.
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        reports.sort_by_key(|(cpu, _)| *cpu);
        Outcome { snapshot: self.handle.snapshot(), reports, left_behind, failed }
    }
}
