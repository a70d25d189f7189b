//! The part of a packet CPU that carries out requests: moves, new limits and hooks.
//!
//! The control lock protects the requests. A packet CPU never waits for the control lock. If a
//! request concerns the CPU, it tries to take the lock between two rounds. If the lock is not free,
//! the CPU stores its report and tries again in the next round.

use std::sync::{Arc, MutexGuard};

use steerage_flow::Timestamp;
use steerage_mem::round;
use steerage_moves::{Event, MovePhase, States};

use crate::handler::{Handler, Runner};
use crate::ids::{BucketId, CpuIndex};
use crate::limits::{BUCKETS, Limits, MOVE_LOOK};
use crate::placement::{BetweenRounds, HookStatus};
use crate::queue::{OwnedQueue, Published};
use crate::sampler::Sampler;
use crate::shared::Shared;
use crate::sleep::Sleep;
use crate::steering::{InTransit, Offer, State};

/// What the handler did for the moving slice (set of buckets), stored until it is reported to the
/// control state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Nothing,
    Left { epoch: u64 },
    Arrived { epoch: u64 },
}

#[derive(Clone, Copy, Debug)]
struct HandlerPart {
    phase: MovePhase,
    epoch: u64,
    group: u16,
}

pub(crate) struct Own<'a, H: Handler> {
    pub(crate) queues: &'a mut Vec<OwnedQueue>,
    pub(crate) sleep: &'a Sleep,
    pub(crate) runner: &'a mut Runner<H>,
}

/// A CPU, without the handler's type, so that code is compiled once and not for each handler.
#[derive(Clone, Copy)]
struct Me<'a> {
    index: CpuIndex,
    now: Timestamp,
    shared: &'a Shared,
}

pub(crate) struct Participant<M> {
    seen: u64,
    pub(crate) pending: bool,
    /// True if the CPU was declared dead: it may steer only after the control state records that it
    /// is alive.
    is_void: bool,
    pub(crate) limits: Limits,
    hook: Option<Arc<dyn BetweenRounds>>,
    in_transit: Arc<InTransit<M>>,
    pending_report: Report,
    states: States<M>,
    buckets: Vec<u16>,
    open: Vec<CpuIndex>,
    wake: Vec<CpuIndex>,
    published: Vec<Published>,
    pub(crate) has_other_queues: bool,
    checked: Timestamp,
}

impl<M: Send> Participant<M> {
    pub(crate) fn new(limits: Limits, cpus: usize, rings: usize, in_transit: Arc<InTransit<M>>) -> Self {
        Self {
            seen: 0,
            pending: false,
            is_void: false,
            limits,
            hook: None,
            in_transit,
            pending_report: Report::Nothing,
            states: Vec::with_capacity(BUCKETS),
            buckets: Vec::with_capacity(BUCKETS),
            open: Vec::with_capacity(cpus),
            wake: Vec::with_capacity(cpus),
            published: Vec::with_capacity(rings),
            has_other_queues: false,
            checked: Timestamp::ZERO,
        }
    }

    #[inline]
    pub(crate) fn is_behind(&self, version: u64) -> bool {
        self.seen != version
    }

    /// Returns true if the CPU may steer and handle packets in this round. A CPU that was declared
    /// dead may steer and handle packets only after the control state records that the CPU is
    /// alive.
    #[inline]
    pub(crate) fn take_part<H: Handler<Moved = M>>(
        &mut self,
        mut own: Own<'_, H>,
        sampler: &mut Sampler,
        clock: &dyn Fn() -> Timestamp,
    ) -> bool {
        if self.pending || self.is_behind(own.runner.shared.steering.version()) {
            self.apply_requests(&mut own, sampler);
            self.run_hook(clock);
        }
        !self.is_void
    }

    #[cold]
    #[inline(never)]
    fn apply_requests<H: Handler<Moved = M>>(&mut self, own: &mut Own<'_, H>, sampler: &mut Sampler) {
        let shared = Arc::clone(&own.runner.shared);
        loop {
            let me = Me { index: own.runner.index, now: own.runner.cpu.now, shared: &shared };
            // The handler gives up or takes over state without the control lock, because this may
            // take time.
            let Some(part) = self.follow(me, own.queues, own.sleep, sampler) else { return };
            let is_void = match part.phase {
                MovePhase::Leave => self.give_up_state(part, own.runner),
                _ => self.take_over_state(part, own.runner),
            };
            if is_void {
                self.start_over(own.runner);
            }
        }
    }

    fn follow(
        &mut self,
        me: Me<'_>,
        queues: &mut Vec<OwnedQueue>,
        sleep: &Sleep,
        sampler: &mut Sampler,
    ) -> Option<HandlerPart> {
        let Me { index, now, shared } = me;
        // The version of the control state is read before the state itself, so that the next round
        // detects a later change of the state.
        let version = shared.steering.version();
        self.pending = true;
        let mut state = shared.steering.try_lock()?;
        if self.is_void {
            self.rejoin(me, queues, &mut state);
        }
        self.seen = version;
        self.pending = false;
        self.take_queues(me, queues, sleep, &mut state);
        self.offer_queues(me, queues, sleep, &mut state);
        self.limits = state.limits.read_by(index);
        sampler.follow(state.policy.measures, state.to_name());
        for queue in queues.iter_mut() {
            queue.set_limits(self.limits, state.limits.of_queues[queue.id], &state.limits.flow_limited);
        }
        self.hook = state.take_hook(index).or(self.hook.take());
        self.report(index, &mut state);
        let handler_part = self.advance_move(me, queues, &mut state);
        // If a queue awaits the move, its CPU checks that the move does not take too long.
        self.pending |= queues.iter().any(|queue| state.moves.awaits_move(queue.id));
        // The check is not done in every round, because it reads all queues, and many CPUs may
        // watch the same move.
        if self.pending && now.since(self.checked) >= MOVE_LOOK {
            self.checked = now;
            state.check_deadline((index, now), &self.open, &shared.gates, &shared.ledgers.queues);
        }
        self.publish(shared, state, index);
        handler_part
    }

    #[cold]
    pub(crate) fn serve<H: Handler<Moved = M>>(&mut self, runner: &mut Runner<H>) {
        let (me, shared) = (runner.index, Arc::clone(&runner.shared));
        if runner.call("woken", Handler::woken).is_err() {
            // This CPU was declared dead, so its new handler must get the request to wake, too.
            shared.request(me);
            return self.start_over(runner);
        }
        if runner.cpu.origin.pull(me, false, &shared.ledgers.cpus[usize::from(me)]) {
            shared.request(me);
        }
        runner.send_originated(false);
        runner.cpu.origin.report_sent(me);
    }

    fn run_hook(&mut self, clock: &dyn Fn() -> Timestamp) {
        if let Some(hook) = self.hook.take().filter(|hook| hook.run(clock) == HookStatus::Again) {
            (self.hook, self.pending) = (Some(hook), true);
        }
    }

    pub(crate) fn publish(&mut self, shared: &Shared, state: MutexGuard<'_, State>, me: CpuIndex) {
        shared.steering.publish(state, &mut self.wake);
        if !self.wake.is_empty() {
            shared.wake(self.wake.drain(..), Some(me));
        }
    }

    fn take_queues(&mut self, me: Me<'_>, queues: &mut Vec<OwnedQueue>, sleep: &Sleep, state: &mut State) {
        let Me { index, now, shared } = me;
        while let Some(Offer { mut queue, to, .. }) = state.take_queue(index, now) {
            if to == index {
                state.on(Event::Owner { queue: queue.id, cpu: index });
                shared.ledgers.queues[queue.id].set_owner(index);
            } else {
                tracing::warn!(queue = queue.id, "CPU {} does not take it", shared.cpus[usize::from(to)]);
            }
            {
                let _outside = round::leave(); // This may take memory.
                queues.reserve(1);
                self.published.reserve((queues.len() + 1) * shared.cpus.len());
            }
            queue.outbox.set_owner(usize::from(index));
            self.apply_current_map(&mut queue, shared, state);
            sleep.add(&mut queue);
            if shared.is_stopping() {
                queue.stop();
            }
            queues.push(queue);
            self.has_other_queues = true;
        }
    }

    /// Releases queues that another CPU should poll, after their frames were published. A queue
    /// that takes part in a move is not released before the end of the move.
    fn offer_queues(&mut self, me: Me<'_>, queues: &mut Vec<OwnedQueue>, sleep: &Sleep, state: &mut State) {
        for at in (0..queues.len()).rev() {
            let Some(to) = state.wanted_owner(queues[at].id, me.index).filter(|_| !queues[at].state.ended) else {
                continue;
            };
            let is_busy = queues[at].is_parked() || !queues[at].outbox.has_owner_finished();
            if is_busy || state.moves.concerns(queues[at].id) {
                self.pending = true;
                continue;
            }
            let mut queue = queues.swap_remove(at);
            queue.frames_polled = 0; // Nothing more comes now, so all is published.
            queue.publish(&mut self.published);
            sleep.forget(&queue);
            state.offer(Offer { queue, from: me.index, to, since: me.now });
            self.has_other_queues = true;
        }
        me.shared.set_inbox_bits_and_wake(&mut self.published, me.index);
        self.pending |= state.has_offered(me.index);
    }

    fn apply_current_map(&mut self, queue: &mut OwnedQueue, shared: &Shared, state: &State) {
        let (map, group) = state.moves.map_of(queue.id);
        shared.ledgers.queues[queue.id].set_group(group);
        queue.start_over(map);
        // Packets of buckets whose move has begun must not go to the CPU that the buckets leave.
        if let Some(slice) = state.moves.slice().filter(|s| s.phase != MovePhase::Release && s.includes(queue.id)) {
            queue.park(slice.epoch, &slice.moves, &mut self.published);
        }
    }

    fn report(&mut self, me: CpuIndex, state: &mut State) {
        match self.pending_report {
            Report::Nothing => {}
            Report::Left { epoch } => {
                // The handler's state is ignored if this CPU was declared dead, or if the slice is
                // no longer the current slice.
                let slice = state.moves.slice();
                if !slice.is_some_and(|s| s.is_at(epoch, MovePhase::Leave) && s.waits_for(usize::from(me))) {
                    self.states.clear();
                } else {
                    self.buckets.clear();
                    self.buckets.extend(self.states.iter().map(|(bucket, _)| *bucket));
                    let Some(mut transit) = self.in_transit.try_lock() else {
                        self.pending = true;
                        return;
                    };
                    transit.put(epoch, &mut self.states);
                    state.on(Event::Left { cpu: me, epoch, with_state: &self.buckets });
                }
            }
            Report::Arrived { epoch } => state.on(Event::Arrived { cpu: me, epoch }),
        }
        self.pending_report = Report::Nothing;
    }

    /// Advances the current move as far as possible. Returns what the handler must do for the move,
    /// if anything.
    fn advance_move(&mut self, me: Me<'_>, queues: &mut [OwnedQueue], state: &mut State) -> Option<HandlerPart> {
        let Me { index, .. } = me;
        self.open.clear();
        loop {
            let slice = state.moves.slice()?;
            let (phase, epoch) = (slice.phase, slice.epoch);
            let waits_for_me = slice.waits_for(usize::from(index)) && self.pending_report == Report::Nothing;
            match phase {
                MovePhase::Park => self.park(me, queues, state),
                MovePhase::Leave if waits_for_me => {
                    let from_here = slice.moves.iter().filter(|m| m.from == index);
                    self.buckets.clear();
                    self.buckets.extend(from_here.map(|m| m.bucket));
                    return Some(HandlerPart { phase, epoch, group: slice.group_before });
                }
                MovePhase::Arrive if waits_for_me => {
                    if let Some(mut transit) = self.in_transit.try_lock() {
                        transit.take(slice, index, &mut self.states);
                        return Some(HandlerPart { phase, epoch, group: slice.group_after });
                    }
                    self.pending = true;
                }
                MovePhase::Leave | MovePhase::Arrive => {}
                MovePhase::Release => self.release(me, queues, state),
            }
            let next = state.moves.slice()?;
            // Packets wait while this CPU moves buckets, so a CPU moves at most one slice in a
            // round.
            self.pending |= next.epoch != epoch;
            if next.epoch != epoch || next.phase == phase {
                return None;
            }
        }
    }

    fn park(&mut self, me: Me<'_>, queues: &mut [OwnedQueue], state: &mut State) {
        self.open.clear();
        for queue in queues {
            let Some(slice) = state.moves.slice() else { break };
            let epoch = slice.epoch;
            // An ended queue with no frame in flight is closed in this round, which finishes its
            // part in the move. An ended queue that parked packets for each new move would never be
            // closed.
            let is_part = slice.phase == MovePhase::Park && slice.waits_for(queue.id);
            if !is_part || (!queue.is_parked() && queue.is_at_rest()) {
                continue;
            }
            queue.park(epoch, &slice.moves, &mut self.published);
            if queue.fences_passed(|cpu| state.moves.is_dead(cpu)) {
                state.on(Event::FencesPassed { queue: queue.id, epoch });
                continue;
            }
            queue.fences_open().for_each(|cpu| add(&mut self.open, cpu));
            if slice.revoked {
                queue.revoke();
            }
            self.pending = true;
        }
        me.shared.set_inbox_bits_and_wake(&mut self.published, me.index);
    }

    fn release(&mut self, me: Me<'_>, queues: &mut [OwnedQueue], state: &mut State) {
        for queue in queues {
            let Some(slice) = state.moves.slice() else { break };
            let epoch = slice.epoch;
            if slice.phase != MovePhase::Release || !slice.waits_for(queue.id) {
                continue;
            }
            me.shared.ledgers.queues[queue.id].set_group(slice.group_after);
            if queue.release(&slice.moves, &mut self.published) {
                state.on(Event::Released { queue: queue.id, epoch });
            } else {
                self.pending = true;
            }
        }
        me.shared.set_inbox_bits_and_wake(&mut self.published, me.index);
    }

    fn give_up_state<H: Handler<Moved = M>>(&mut self, part: HandlerPart, runner: &mut Runner<H>) -> bool {
        let (group, buckets, states) = (part.group, &self.buckets, &mut self.states);
        let given = runner.call("bucket_leaves", |handler, _| {
            for bucket in buckets {
                if let Some(state) = handler.bucket_leaves(BucketId { group, bucket: *bucket }) {
                    states.push((*bucket, state));
                }
            }
        });
        if given == Ok(None) {
            self.states.clear();
        }
        self.pending_report = Report::Left { epoch: part.epoch };
        given.is_err()
    }

    fn take_over_state<H: Handler<Moved = M>>(&mut self, part: HandlerPart, runner: &mut Runner<H>) -> bool {
        let (group, states) = (part.group, &mut self.states);
        let arrived = runner.call("bucket_arrives", |handler, _| {
            states.drain(..).for_each(|(bucket, state)| handler.bucket_arrives(BucketId { group, bucket }, state));
        });
        self.pending_report = Report::Arrived { epoch: part.epoch };
        arrived.is_err()
    }

    /// Drops all state after this CPU was declared dead. The CPU counts as alive again when the
    /// control state records that it is alive: see [`take_part`](Self::take_part).
    #[cold]
    pub(crate) fn start_over<H: Handler>(&mut self, runner: &mut Runner<H>) {
        if std::mem::replace(&mut self.is_void, true) {
            return;
        }
        tracing::warn!(cpu = runner.cpu.id.0, "was declared dead; its handler is built anew");
        runner.ledger().deaths.add(1);
        runner.replace();
        self.pending_report = Report::Nothing;
        self.states.clear();
        self.pending = true;
    }

    #[inline(always)]
    pub(crate) fn is_void(&self) -> bool {
        self.is_void
    }

    fn rejoin(&mut self, me: Me<'_>, queues: &mut [OwnedQueue], state: &mut State) {
        state.on(Event::Revived(me.index));
        queues.iter_mut().for_each(|queue| self.apply_current_map(queue, me.shared, state));
        self.is_void = false;
        me.shared.gates[usize::from(me.index)].revive();
    }
}

fn add(list: &mut Vec<CpuIndex>, cpu: CpuIndex) {
    if !list.contains(&cpu) {
        list.push(cpu);
    }
}
