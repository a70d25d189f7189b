//! The state that control threads and packet CPUs share under one lock: the state machine that
//! moves buckets, the limits, and the data that a policy stores.
//!
//! Control threads wait for this lock. A packet CPU that a request concerns calls `try_lock`
//! between two rounds. If another thread holds the lock, the CPU tries again after the next round.
//! A CPU detects a change by loading one version number. The data path takes no lock in a move: it
//! parks packets, waits for the fence (a ring position), and releases the packets.
//!
//! The module `deadline` has the phases that take too long, and the CPUs that make no progress.

mod deadline;

use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use steerage_flow::{FlowKey, Timestamp};
use steerage_mem::gate::Gate;
use steerage_moves::{Actions, Ask, Event, LastSlice, Moves, Setup, Transit};

use crate::ids::{BucketId, CpuIndex};
use crate::limits::{FLOWS_SEEN_MAX, Limits, OFFER_WAIT, QueueLimits};
use crate::placement::{BetweenRounds, GroupFindings, PolicyInfo};
use crate::queue::OwnedQueue;
use steerage_ledger::{QueueInfo, RingLedger};
use steerage_mem::control_lock::ControlLock;
use steerage_mem::signal::Signal;

pub(crate) type InTransit<M> = ControlLock<Transit<M>>;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) moves: Moves,
    actions: Actions,
    deadline: deadline::Deadline,
    pub(crate) limits: LimitsInForce,
    pub(crate) policy: PolicyInfo,
    pub(crate) findings: Vec<GroupFindings>,
    pub(crate) others: Vec<f64>,
    /// The buckets in which CPUs look for the largest flow, by examining some of the packets.
    to_name: Vec<BucketId>,
    flows_seen: Vec<(BucketId, FlowKey)>,
    hooks: Vec<Option<Arc<dyn BetweenRounds>>>,
    wanted: Vec<(usize, CpuIndex)>,
    /// Queues that their owners have released, and that are not polled until a CPU takes them.
    offers: Vec<Offer>,
}

/// New limits reach the CPUs like moves, under the control lock and with a version number that each
/// CPU checks once per round, so that the data path needs no additional atomic variable.
#[derive(Debug)]
pub(crate) struct LimitsInForce {
    pub(crate) all: Limits,
    pub(crate) of_queues: Vec<QueueLimits>,
    pub(crate) flow_limited: Vec<CpuIndex>,
    /// The CPUs that have not read the latest limits yet.
    behind: Vec<CpuIndex>,
}

impl LimitsInForce {
    pub(crate) fn read_by(&mut self, cpu: CpuIndex) -> Limits {
        self.behind.retain(|cpu_behind| *cpu_behind != cpu);
        self.all
    }
}

pub(crate) struct Offer {
    pub(crate) queue: OwnedQueue,
    pub(crate) from: CpuIndex,
    pub(crate) to: CpuIndex,
    pub(crate) since: Timestamp,
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer of queue {} by {} to {}", self.queue.id, self.from, self.to)
    }
}

#[derive(Debug)]
pub(crate) struct Steering {
    state: ControlLock<State>,
    version: AtomicU64,
    /// The number of the last slice (buckets that move together). From before a slice's first
    /// packet is parked until all its parked packets are released, [`LastSlice::number`] returns
    /// `None`.
    pub(crate) slice: LastSlice,
    /// Shows whether [`State::is_settled`] returns true. Set under the control lock.
    pub(crate) settled: Signal,
}

impl Steering {
    pub(crate) fn new(
        setup: Setup,
        plan: impl FnMut(&[CpuIndex], usize) -> steerage_moves::Plan,
        (all, of_queues): (Limits, Vec<QueueLimits>),
        policy: PolicyInfo,
    ) -> io::Result<Self> {
        let (cpus, queues) = (setup.cpus, setup.queues.len());
        let state = State {
            moves: Moves::new(setup, plan),
            actions: Actions::for_size(cpus, queues),
            wanted: Vec::with_capacity(queues),
            offers: Vec::with_capacity(queues),
            deadline: deadline::Deadline::new(cpus),
            limits: LimitsInForce { all, of_queues, flow_limited: Vec::new(), behind: Vec::new() },
            policy,
            findings: Vec::new(),
            others: vec![0.0; cpus],
            to_name: Vec::new(),
            flows_seen: Vec::with_capacity(FLOWS_SEEN_MAX),
            hooks: (0..cpus).map(|_| None).collect(),
        };
        let settled = Signal::new()?;
        settled.set(state.is_settled());
        Ok(Self { state: ControlLock::new(state), version: AtomicU64::new(1), slice: LastSlice::default(), settled })
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // This load pairs with the release store in `publish`. All other accesses to `version` are
        // made under the control lock.
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn publish(&self, mut state: MutexGuard<'_, State>, wake: &mut Vec<CpuIndex>) {
        wake.clear();
        wake.append(&mut state.actions.wake);
        self.settled.set(state.is_settled());
        self.slice.publish(&state.moves);
        if mem::take(&mut state.actions.changed) {
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

impl State {
    pub(crate) fn on(&mut self, event: Event<'_>) {
        self.moves.on(event, &mut self.actions);
    }

    /// Reports to the state machine of moves that a phase takes too long. `open`: the CPUs whose
    /// fences (ring positions) the caller still waits for.
    pub(crate) fn check_deadline(
        &mut self,
        (me, now): (CpuIndex, Timestamp),
        open: &[CpuIndex],
        gates: &[Gate],
        queues: &[QueueInfo],
    ) {
        let Some(slice) = self.moves.slice().filter(|_| self.moves.is_timed()) else { return };
        if !self.deadline.is_over(slice, now) {
            return;
        }
        self.on(Event::Overdue { by: me, open });
        let mut nth = 0;
        while let Some(ask) = self.actions.asks.get(nth).copied() {
            nth += 1;
            match ask {
                Ask::Declare(cpu) => {
                    if !self.is_waited_for(cpu, queues) && self.deadline.declare(cpu, &gates[usize::from(cpu)], now) {
                        self.on(Event::Died(cpu));
                    }
                }
                Ask::ReadFences { queue } => {
                    if let Some(epoch) = self.are_fences_passed(&queues[queue].rings) {
                        self.on(Event::FencesPassed { queue, epoch });
                    }
                }
            }
        }
        self.actions.asks.clear();
    }

    /// Returns true if `cpu` holds frames of a queue whose device can wait. None of these frames
    /// may be lost.
    fn is_waited_for(&self, cpu: CpuIndex, queues: &[QueueInfo]) -> bool {
        let has_frames = |at: usize, queue: &QueueInfo| {
            let is_in_lane = self.moves.owner_of(at) == cpu && queue.ledger.in_lane.get() > 0;
            is_in_lane || !queue.rings[usize::from(cpu)].gauge.is_finished()
        };
        queues.iter().enumerate().any(|(at, queue)| self.moves.waits(at) && has_frames(at, queue))
    }

    /// For a queue whose owner is dead: returns the number of the move (`epoch`) if all living CPUs
    /// from which buckets move have finished the queue's frames. Frames at dead CPUs are revoked
    /// (must be discarded).
    fn are_fences_passed(&self, rings: &[Arc<RingLedger>]) -> Option<u64> {
        let slice = self.moves.slice()?;
        let mut all_passed = true;
        for cpu in &slice.old_cpus {
            let gauge = &rings[usize::from(*cpu)].gauge;
            if self.moves.is_dead(*cpu) {
                gauge.revoke_published();
            } else {
                all_passed &= gauge.is_finished();
            }
        }
        all_passed.then_some(slice.epoch)
    }

    pub(crate) fn is_settled(&self) -> bool {
        let waits = |(queue, to): &(usize, CpuIndex)| {
            let both = [*to, self.moves.owner_of(*queue)];
            self.moves.is_open(*queue) && !both.iter().any(|cpu| self.moves.is_dead(*cpu))
        };
        let limits_in_force = self.limits.behind.iter().all(|cpu| self.moves.is_dead(*cpu));
        let owners_in_force = self.offers.is_empty() && !self.wanted.iter().any(waits);
        self.moves.is_settled() && limits_in_force && owners_in_force
    }

    pub(crate) fn want_owner(&mut self, queue: usize, cpu: CpuIndex) {
        self.wanted.retain(|(other, _)| *other != queue);
        self.wanted.push((queue, cpu));
        self.actions.wake(self.moves.owner_of(queue));
        self.actions.changed = true;
    }

    pub(crate) fn wanted_owner(&mut self, queue: usize, owner: CpuIndex) -> Option<CpuIndex> {
        let at = self.wanted.iter().position(|(other, to)| *other == queue && !self.moves.is_dead(*to))?;
        let (_, to) = self.wanted[at];
        if to == owner {
            self.wanted.swap_remove(at);
        }
        (to != owner).then_some(to)
    }

    pub(crate) fn offer(&mut self, offer: Offer) {
        self.wanted.retain(|(queue, _)| *queue != offer.queue.id);
        self.actions.wake(offer.to);
        self.actions.changed = true;
        self.offers.push(offer);
    }

    pub(crate) fn has_offered(&self, cpu: CpuIndex) -> bool {
        self.offers.iter().any(|offer| offer.from == cpu)
    }

    /// Takes a queue that was released for `cpu`, or that `cpu` released and no CPU took in time.
    pub(crate) fn take_queue(&mut self, cpu: CpuIndex, now: Timestamp) -> Option<Offer> {
        let in_vain = |offer: &Offer| now.since(offer.since) >= OFFER_WAIT || self.moves.is_dead(offer.to);
        let mine = |offer: &Offer| offer.to == cpu || (offer.from == cpu && in_vain(offer));
        let at = self.offers.iter().position(mine)?;
        Some(self.offers.swap_remove(at))
    }

    pub(crate) fn set_limits(&mut self, limits: Limits) {
        if mem::replace(&mut self.limits.all, limits) != limits {
            self.limits_changed(0..self.hooks.len() as CpuIndex);
        }
    }

    pub(crate) fn set_queue_limits(&mut self, queue: usize, limits: QueueLimits) {
        if mem::replace(&mut self.limits.of_queues[queue], limits) != limits {
            let owner = self.moves.owner_of(queue);
            self.limits_changed(owner..owner + 1);
        }
    }

    pub(crate) fn set_flow_limited(&mut self, cpus: Vec<CpuIndex>) {
        if self.limits.flow_limited != cpus {
            self.limits.flow_limited = cpus;
            self.limits_changed(0..self.hooks.len() as CpuIndex);
        }
    }

    fn limits_changed(&mut self, cpus: std::ops::Range<CpuIndex>) {
        for cpu in cpus {
            if !self.limits.behind.contains(&cpu) {
                self.limits.behind.push(cpu);
            }
            self.actions.wake(cpu);
        }
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyInfo) {
        self.policy = policy;
        self.findings.clear();
        // All CPUs are woken, because sleeping CPUs must learn whether the new policy measures
        // load.
        (0..self.hooks.len() as CpuIndex).for_each(|cpu| self.actions.wake(cpu));
    }

    pub(crate) fn to_name(&self) -> &[BucketId] {
        &self.to_name
    }

    pub(crate) fn set_to_name(&mut self, buckets: Vec<BucketId>) {
        if buckets != self.to_name {
            self.to_name = buckets;
            self.actions.changed = true;
        }
    }

    /// Ignores the flow if the policy has [`FLOWS_SEEN_MAX`] flows to collect.
    pub(crate) fn saw_flow(&mut self, bucket: BucketId, flow: FlowKey) {
        if self.flows_seen.len() < FLOWS_SEEN_MAX {
            self.flows_seen.push((bucket, flow));
        }
    }

    pub(crate) fn take_flows(&mut self) -> Vec<(BucketId, FlowKey)> {
        self.flows_seen.drain(..).collect()
    }

    pub(crate) fn set_hook(&mut self, cpu: CpuIndex, hook: Arc<dyn BetweenRounds>) {
        self.hooks[usize::from(cpu)] = Some(hook);
        self.actions.wake(cpu);
    }

    pub(crate) fn take_hook(&mut self, cpu: CpuIndex) -> Option<Arc<dyn BetweenRounds>> {
        self.hooks[usize::from(cpu)].take()
    }
}
