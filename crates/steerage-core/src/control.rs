//! The handle with which any thread changes, reads and stops an instance.

mod policies;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use steerage_topology::{CpuId, CpuMask};

use crate::error::SetError;
use crate::ids::{BucketId, CpuIndex};
use crate::limits::{Limits, QueueLimits};
use crate::shared::Shared;
use steerage_ledger::{BucketSnapshot, Snapshot};
use steerage_moves::Event;

/// Returns the indices of the CPUs in a mask, or only the CPU that polls the queue (`owner`) if the
/// mask is empty (steering off).
pub(crate) fn mask_indices(cpus: &[CpuId], mask: &CpuMask, owner: CpuIndex) -> Result<Vec<CpuIndex>, SetError> {
    if mask.is_empty() {
        return Ok(vec![owner]);
    }
    mask.iter()
        .map(|cpu| match cpus.iter().position(|ours| *ours == cpu) {
            Some(at) => Ok(at as CpuIndex),
            None => Err(SetError::NotOurCpu { cpu, ours: cpus.iter().copied().collect::<CpuMask>().to_list() }),
        })
        .collect()
}

/// Changes, reads and stops an instance, on any thread, while the instance runs and after it has
/// ended. The `Handle` of the crate `steerage` dereferences to this type.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Shared>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl Handle {
    /// Stops receiving. Packets in flight are handled for at most
    /// [`DRAIN_MAX`](crate::limits::DRAIN_MAX).
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Returns true if a stop was requested.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }

    /// Returns true if every queue has ended and all received packets are finished.
    pub fn is_finished(&self) -> bool {
        self.0.all_closed()
    }

    /// Waits until the run [is finished](Self::is_finished) (returns true), or until `timeout` has
    /// passed.
    pub fn wait_finished(&self, timeout: Duration) -> bool {
        self.0.finished.wait(timeout, &self.0.finished, || self.is_finished())
    }

    /// Returns a file descriptor for an event loop, which becomes readable when the run [is
    /// finished](Self::is_finished). Use it only to wait. Reading from it is an error.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn finished_fd(&self) -> io::Result<OwnedFd> {
        self.0.finished.fd()
    }

    /// Spreads the packets of all queues over the CPUs in `mask`. If `mask` is empty, packets stay
    /// on the CPU that received them. Few flows move, and no packet is reordered. Returns before
    /// the flows have moved: see [`is_settled`](Self::is_settled).
    ///
    /// # Errors
    /// [`SetError::NotOurCpu`] if the mask contains a CPU that does not belong to the instance.
    /// After this error, no mask has changed.
    pub fn set_rps_cpus(&self, mask: &CpuMask) -> Result<(), SetError> {
        self.set_masks(0..self.0.ledgers.queues.len(), mask)
    }

    /// Like [`set_rps_cpus`](Self::set_rps_cpus), but for a single queue, numbered over all inputs.
    /// Queues with the same mask form a group and share one map from buckets to CPUs.
    ///
    /// # Errors
    /// Those of [`set_rps_cpus`](Self::set_rps_cpus), and [`SetError::NoSuchQueue`].
    pub fn set_queue_rps_cpus(&self, queue: usize, mask: &CpuMask) -> Result<(), SetError> {
        self.check_queue(queue)?;
        self.set_masks(queue..queue + 1, mask)
    }

    /// Lets another CPU poll a queue, numbered over all inputs. The change loses or reorders no
    /// packet, and moves no bucket. The old CPU releases the queue between two rounds. A CPU that
    /// is stuck in its handler cannot release a queue. If the new CPU does not take the queue
    /// within [`OFFER_WAIT`](crate::limits::OFFER_WAIT), the old CPU takes it back: see
    /// [`is_settled`](Self::is_settled) and [`snapshot`](Self::snapshot). Afterwards, policies no
    /// longer move this queue.
    ///
    /// # Errors
    /// Returns the same errors as [`set_queue_rps_cpus`](Self::set_queue_rps_cpus).
    pub fn set_rx_cpu(&self, queue: usize, cpu: CpuId) -> Result<(), SetError> {
        self.check_queue(queue)?;
        let cpu = mask_indices(&self.0.cpus, &CpuMask::from_iter([cpu]), 0)?[0];
        self.0.ledgers.queues[queue].owner_is_chosen.store(true, Relaxed);
        self.poll_on(queue, cpu);
        Ok(())
    }

    fn check_queue(&self, queue: usize) -> Result<(), SetError> {
        let queues = self.0.ledgers.queues.len();
        if queue < queues { Ok(()) } else { Err(SetError::NoSuchQueue { queue, queues }) }
    }

    fn set_masks(&self, queues: std::ops::Range<usize>, mask: &CpuMask) -> Result<(), SetError> {
        let mut masks: Vec<(Vec<CpuIndex>, Vec<usize>)> = Vec::new();
        for at in queues {
            let mut cpus = mask_indices(&self.0.cpus, mask, self.0.ledgers.queues[at].owner())?;
            cpus.sort_unstable();
            match masks.iter_mut().find(|(other, _)| *other == cpus) {
                Some((_, queues)) => queues.push(at),
                None => masks.push((cpus, vec![at])),
            }
        }
        self.0.change(|state| {
            for (cpus, queues) in &masks {
                state.on(Event::Mask { queues, cpus });
            }
        });
        Ok(())
    }

    /// Calls [`Handler::woken`](crate::handler::Handler::woken) on this CPU between two rounds, for
    /// example after you have put work for the handler into a channel. Wakes the CPU if it sleeps.
    ///
    /// # Errors
    /// [`SetError::NotOurCpu`] if the CPU does not belong to the instance.
    pub fn wake(&self, cpu: CpuId) -> Result<(), SetError> {
        self.0.request(mask_indices(&self.0.cpus, &CpuMask::from_iter([cpu]), 0)?[0]);
        Ok(())
    }

    /// Returns the CPUs that belong to the instance.
    pub fn cpus(&self) -> Vec<CpuId> {
        self.0.cpus.clone()
    }

    /// Returns the CPU that handles a bucket. While the bucket moves, this is the old CPU until the
    /// new CPU gets packets. Returns `None` if the bucket does not exist.
    pub fn cpu_of(&self, bucket: BucketId) -> Option<CpuId> {
        self.0.owner_of(&self.0.steering.lock(), bucket).map(|(cpu, _)| cpu)
    }

    /// Like [`cpu_of`](Self::cpu_of), but also returns `None` if the bucket may be moving, or if
    /// another thread holds the control lock, for which `try_cpu_of` never waits. Between two
    /// rounds of the returned CPU, its handler has the state of the bucket.
    pub fn try_cpu_of(&self, bucket: BucketId) -> Option<CpuId> {
        let (cpu, is_moving) = self.0.owner_of(&*self.0.steering.try_lock()?, bucket)?;
        (!is_moving).then_some(cpu)
    }

    /// Returns true if all masks and limits apply to new packets, and no bucket is moving. CPUs
    /// that were declared dead are ignored. After the run [is finished](Self::is_finished), limits
    /// need not apply.
    pub fn is_settled(&self) -> bool {
        let state = self.0.steering.lock();
        state.is_settled() || (self.0.all_closed() && state.moves.is_settled())
    }

    /// Waits until the instance [is settled](Self::is_settled) (returns true), the run is finished,
    /// or `timeout` has passed, while other threads run the rounds of the CPUs.
    pub fn wait_settled(&self, timeout: Duration) -> bool {
        self.0.steering.settled.wait(timeout, &self.0.finished, || self.is_settled() || self.is_finished());
        self.is_settled()
    }

    /// Returns a file descriptor for an event loop, readable as long as the instance [is
    /// settled](Self::is_settled). Use it only to wait. Reading from it is an error. If the run may
    /// end during the wait, also wait for [`finished_fd`](Self::finished_fd).
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn settled_fd(&self) -> io::Result<OwnedFd> {
        self.0.steering.settled.fd()
    }

    /// The current limits.
    pub fn limits(&self) -> Limits {
        self.0.steering.lock().limits.all
    }

    /// Changes limits, and returns their new values, limited to the valid range. CPUs use the new
    /// limits from their next round on ([`is_settled`](Self::is_settled)).
    pub fn set_limits(&self, mut change: impl FnMut(&mut Limits)) -> Limits {
        self.0.change(|state| {
            let mut limits = state.limits.all;
            change(&mut limits);
            let mut limits = limits.clamped(self.0.supply.backlog_max());
            limits.backlog = self.0.supply.set_backlog(limits.backlog);
            state.set_limits(limits);
            limits
        })
    }

    /// Like [`set_limits`](Self::set_limits), but for a single queue, numbered over all inputs. To
    /// read the limits, pass a function that changes nothing.
    ///
    /// # Errors
    /// [`SetError::NoSuchQueue`], or [`SetError::NoCopybreak`]. After an error, no limit has
    /// changed.
    pub fn set_queue_limits(
        &self,
        queue: usize,
        mut change: impl FnMut(&mut QueueLimits),
    ) -> Result<QueueLimits, SetError> {
        self.check_queue(queue)?;
        let info = &self.0.ledgers.queues[queue];
        self.0.change(|state| {
            let mut limits = state.limits.of_queues[queue];
            change(&mut limits);
            if limits.copybreak > 0 && !info.has_copybreak {
                return Err(SetError::NoCopybreak { device: info.device.get(), queue });
            }
            limits.lpc_pages = self.0.supply.set_cache(queue, limits.lpc_pages);
            state.set_queue_limits(queue, limits);
            Ok(limits)
        })
    }

    /// Returns the set of CPUs whose backlogs have a flow limit.
    pub fn flow_limit_cpus(&self) -> CpuMask {
        self.0.steering.lock().limits.flow_limited.iter().map(|cpu| self.0.cpus[usize::from(*cpu)]).collect()
    }

    /// Sets a flow limit for the backlogs of exactly the CPUs in `cpus`, like Linux's
    /// `flow_limit_cpu_bitmap`. While a backlog is more than half full, packets of a flow that has
    /// more than half of the last [`FLOW_LIMIT_HISTORY`](steerage_flow::limits::FLOW_LIMIT_HISTORY)
    /// packets for this backlog are dropped (`flow_limit`). Packets of a queue that can wait, such
    /// as a file, are not dropped. By default, no CPU has a flow limit.
    ///
    /// # Errors
    /// [`SetError::NotOurCpu`] if the mask contains a CPU that does not belong to the instance. If
    /// `set_flow_limit_cpus` returns an error, no flow limit has changed.
    pub fn set_flow_limit_cpus(&self, cpus: &CpuMask) -> Result<(), SetError> {
        let indices = if cpus.is_empty() { Vec::new() } else { mask_indices(&self.0.cpus, cpus, 0)? };
        self.0.change(|state| state.set_flow_limited(indices));
        Ok(())
    }

    /// Sets which of the instance's CPUs are present. Buckets of absent CPUs move to present CPUs
    /// without reordering. Call `set_present_cpus` only if your program runs its own threads.
    /// Threads that steerage starts call it when CPUs go offline or leave the process's cpuset.
    pub fn set_present_cpus(&self, cpus: &CpuMask) {
        let ours = 0..self.0.cpus.len() as CpuIndex;
        let present: Vec<CpuIndex> = ours.filter(|cpu| cpus.contains(self.0.cpus[usize::from(*cpu)])).collect();
        self.0.change(|state| state.on(Event::Present(&present)));
    }

    /// Sets, for policies, the share of each CPU's time (0 to 1) that other programs used recently
    /// (`ForeignLoad`). Call `set_others_time` only if your program runs its own threads.
    pub fn set_others_time(&self, shares: &[(CpuId, f64)]) {
        let mut state = self.0.steering.lock();
        for (cpu, share) in shares {
            if let Some(at) = self.0.cpus.iter().position(|ours| ours == cpu) {
                state.others[at] = *share;
            }
        }
    }

    /// Returns the state of each of the [`BUCKETS`](crate::limits::BUCKETS) buckets of a queue,
    /// numbered over all inputs, or `None` if the queue does not exist.
    pub fn buckets(&self, queue: usize) -> Option<Vec<BucketSnapshot>> {
        let loads = self.0.ledgers.queues.get(queue)?.ledger.buckets.read();
        let state = self.0.steering.lock();
        let buckets = state.moves.buckets_of(queue).zip(loads).map(|((cpu, moves), packets)| {
            let cpu = self.0.cpus[usize::from(cpu)];
            BucketSnapshot::new(cpu, packets, moves)
        });
        Some(buckets.collect())
    }

    /// Returns the current values of the ledger.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// For tests: the number of frames in rings, parking lots and outputs. While no CPU runs, all
    /// frames in flight are in rings, parking lots and outputs.
    #[doc(hidden)]
    pub fn held(&self) -> u64 {
        self.0.ledgers.held()
    }

    /// Waits until the outputs have finished the packets that they still hold. The wait ends early
    /// if the outputs make no progress for [`OUTPUT_STUCK_AFTER`]. If the run was stopped, the wait
    /// takes at most [`DRAIN_MAX`](crate::limits::DRAIN_MAX). Packets that the outputs still hold
    /// after the wait are dropped as [`DropReason::TxLost`]. Joining a run calls `finish_outputs`.
    /// A program that runs its own threads calls `finish_outputs` after the last round of all CPUs.
    ///
    /// [`OUTPUT_STUCK_AFTER`]: crate::limits::OUTPUT_STUCK_AFTER
    /// [`DropReason::TxLost`]: crate::ids::DropReason::TxLost
    pub fn finish_outputs(&self) {
        self.0.ledgers.finish_outputs(|| self.is_stopping());
    }
}
