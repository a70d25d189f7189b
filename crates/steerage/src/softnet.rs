//! One CPU's part of the path: the thread, or whoever steps it, and everything that is its own.
//!
//! A round goes through the phases from top to bottom, as both halves of a Linux softirq: it receives from the queues that
//! this CPU owns, then handles its own share of that, then what others handed to it.

mod handle;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nix::sys::epoll::Epoll;
use steerage_mem::Home;
use steerage_mem::ring::Consumer;

use crate::gate::Dead;
use crate::handler::{BucketId, Cpu, Handler};
use crate::hashing::Hashing;
use crate::instance::{CpuPart, MakeHandler, StopsUnlessFinished};
use crate::ledger::{CpuLedger, QueueError, RingLedger};
use crate::limits::{DRAIN_MAX, HANDLE_BUDGET, Limits, RECEIVE_TIMED_ONCE_IN};
use crate::packet::{Actions, Spare};
use crate::platform::{Platform, Timestamp};
use crate::queue::{OrderCheck, OwnedQueue};
use crate::rps_map::CpuIndex;
use crate::rx::DeviceError;
use crate::shared::Shared;
use crate::tx::OwnedTx;

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// It did something: step again.
    Worked,
    /// There was nothing to do.
    Idle,
    /// Every queue has ended and everything that came in is finished, or the time to drain is over.
    Finished,
}

/// The phases of a round, in their order. A number is which of the CPU's queues, or which of its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Changes that others asked for: moves, limits, the end.
    Control,
    /// Frames off a queue's device.
    Poll(usize),
    /// To each frame its CPU.
    Steer(usize),
    /// What was staged is shown.
    Publish(usize),
    /// Those who sleep and have something to do now.
    Wake,
    /// A batch in the handler.
    Handle(usize),
    /// The batch counts, and its slots go back.
    Finish(usize),
}

/// The receiving end of one ring.
pub(crate) struct Inbound {
    pub(crate) queue: usize,
    pub(crate) owner: CpuIndex,
    pub(crate) consumer: Consumer,
    pub(crate) home: Arc<Home>,
    pub(crate) hashing: Hashing,
    pub(crate) lent: bool,
    pub(crate) can_wait: bool,
    pub(crate) order: Option<Arc<OrderCheck>>,
    pub(crate) ledger: Arc<RingLedger>,
}

/// What became of the batch in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    Returned,
    Panicked,
    Revoked,
}

/// One CPU of the path.
pub struct Softnet<H: Handler, P: Platform> {
    pub(crate) index: CpuIndex,
    pub(crate) cpu: Cpu,
    pub(crate) platform: P,
    make: MakeHandler<H>,
    pub(crate) shared: Arc<Shared<H::Moved>>,
    pub(crate) stops: StopsUnlessFinished,
    pub(crate) handler: H,
    pub(crate) queues: Vec<OwnedQueue>,
    /// This CPU's own queues' rings first: its own share is handled before what others hand in.
    pub(crate) inbound: Vec<Inbound>,
    own_rings: usize,
    pub(crate) spare: Spare,
    actions: Actions,
    /// By their numbers.
    pub(crate) outputs: Vec<OwnedTx>,
    /// Bucket and arrival number of the frames in hand, where order is checked.
    numbers: Vec<(usize, u64)>,

    phase: Phase,
    round_start: Timestamp,
    /// Frames handled in this round.
    round_handled: usize,
    pub(crate) limits: Limits,
    pub(crate) worked: bool,
    /// A poll or a batch of this round was as large as it can be.
    full: bool,
    /// Some policy wants to know what things cost.
    pub(crate) measures: bool,
    /// When load is to be looked at next, if nobody else has.
    pub(crate) next_look: Timestamp,
    /// Counts rounds and batches, to measure one now and then.
    nth_round: u32,
    nth_batch: u32,
    /// The packet in hand is timed: since when, and its bucket, if it is known.
    timed: Option<(Timestamp, Option<u16>)>,
    /// Buckets whose flows are to be named: elephants.
    pub(crate) to_name: Vec<BucketId>,
    /// What timed packets take on average, in nanoseconds.
    timed_mean: u64,
    /// Frames of the poll under way.
    polled: usize,
    /// Frames received, and frames handled, since the caller last looked.
    received: usize,
    handled: usize,
    handled_as: Handled,
    /// CPUs that were shown something this round.
    shown: Vec<CpuIndex>,
    rotation: usize,
    pub(crate) next_tick: Option<Timestamp>,
    /// The version of control that was last acted on.
    pub(crate) seen: u64,
    /// There is a part in a move to be played yet.
    pub(crate) duty: bool,
    pub(crate) drain_until: Option<Timestamp>,
    finished: bool,
    /// Others were told that this CPU sleeps.
    pub(crate) armed: bool,
    /// What a caller waits on who asked for one file descriptor.
    pub(crate) events: Option<Epoll>,
}

impl<H: Handler, P: Platform> std::fmt::Debug for Softnet<H, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Softnet of CPU {} in {:?}", self.cpu.id, self.phase)
    }
}

impl<H: Handler, P: Platform> Softnet<H, P> {
    pub(crate) fn new(part: CpuPart<H>, mut platform: P) -> Self {
        let CpuPart { index, make, shared, stops, queues, mut inbound, outputs, origin } = part;
        inbound.sort_by_key(|ring| ring.owner != index);
        let own_rings = inbound.iter().filter(|ring| ring.owner == index).count();
        let others = inbound.len() - own_rings;
        let rotation = if others > 0 { platform.random() as usize % others } else { 0 };
        let id = shared.core.cpus[usize::from(index)];
        let limits = shared.steering.lock().limits();
        Self {
            index,
            cpu: Cpu { id, now: platform.now(), origin, tick_by: None },
            handler: make(id),
            make,
            stops,
            spare: Spare::new(Arc::clone(&shared.core.pools[usize::from(index)])),
            shown: Vec::with_capacity(shared.core.cpus.len() * queues.len().max(1)),
            platform,
            shared,
            queues,
            inbound,
            own_rings,
            actions: Actions::new(),
            outputs,
            numbers: Vec::with_capacity(HANDLE_BUDGET),
            phase: Phase::Control,
            round_start: Timestamp::ZERO,
            round_handled: 0,
            limits,
            worked: false,
            full: false,
            measures: false,
            next_look: Timestamp::ZERO,
            nth_round: 0,
            nth_batch: 0,
            timed: None,
            timed_mean: 0,
            to_name: Vec::new(),
            polled: 0,
            received: 0,
            handled: 0,
            handled_as: Handled::Returned,
            rotation,
            next_tick: Some(Timestamp::ZERO),
            seen: 0,
            duty: false,
            drain_until: None,
            finished: false,
            armed: false,
            events: None,
        }
    }

    // ---- the round

    /// One round: all phases once.
    #[inline]
    pub fn step(&mut self) -> Stepped {
        loop {
            if let Some(stepped) = self.advance() {
                return stepped;
            }
        }
    }

    /// Whole rounds until `budget` packets or more were received or handled, or there is nothing to do.
    pub fn poll(&mut self, budget: usize) -> Stepped {
        (self.received, self.handled) = (0, 0);
        loop {
            let stepped = self.step();
            if stepped != Stepped::Worked || self.received.max(self.handled) >= budget {
                return stepped;
            }
        }
    }

    /// How many packets the handler was given since [`poll`](Self::poll) was last called, or ever.
    pub fn handled(&self) -> usize {
        self.handled
    }

    /// The next phase, alone. `Some` when it ended a round. A simulator runs many CPUs' phases in any order by this.
    #[inline]
    pub fn advance(&mut self) -> Option<Stepped> {
        self.phase = match self.phase {
            Phase::Control => {
                self.control();
                if self.finished {
                    return Some(Stepped::Finished);
                }
                self.to_poll(0)
            }
            Phase::Poll(queue) => {
                self.receive(queue);
                Phase::Steer(queue)
            }
            Phase::Steer(queue) => {
                self.queues[queue].steer(self.cpu.now);
                Phase::Publish(queue)
            }
            Phase::Publish(queue) => {
                let (own, shown) = (usize::from(self.index), &mut self.shown);
                self.queues[queue].publish(own, self.polled, |cpu| shown.push(cpu as CpuIndex));
                self.to_poll(queue + 1)
            }
            Phase::Wake => {
                self.wake();
                if self.measures && self.worked {
                    self.time_receiving();
                }
                self.to_handle(0)
            }
            Phase::Handle(ring) => {
                self.handle(ring);
                Phase::Finish(ring)
            }
            Phase::Finish(ring) => {
                self.finish_batch(ring);
                self.cpu.now = self.platform.now();
                if self.timed.is_some() && self.note_time(ring) {
                    // The rest of the batch, that this packet was taken out of.
                    self.phase = Phase::Handle(ring);
                    return None;
                }
                // Its own share and one ring more are in every round, so that none has to wait for ever.
                if ring >= self.own_rings && self.is_round_over() {
                    self.ledger().time_squeeze.add(1);
                    Phase::Control
                } else {
                    self.to_handle(ring + 1)
                }
            }
        };
        (self.phase == Phase::Control).then(|| self.end_round())
    }

    /// Whether [`Stepped::Finished`] was returned.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The phase that comes next.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn to_poll(&self, queue: usize) -> Phase {
        if queue < self.queues.len() { Phase::Poll(queue) } else { Phase::Wake }
    }

    /// The next ring with something in it, from the `nth` of this round on: own ones first, the others in rotation.
    fn to_handle(&self, nth: usize) -> Phase {
        // A run that sends nothing holds nothing back.
        let sends = !self.outputs.is_empty();
        (nth..self.inbound.len())
            .find(|n| {
                let ring = self.ring(*n);
                self.inbound[ring].consumer.waiting() > 0 && !(sends && self.is_held_back(ring))
            })
            .map_or(Phase::Control, Phase::Handle)
    }

    /// Whether a ring's packets stay where they are for now: their source can wait, and an output is full. So a file is not
    /// read faster than it is written. Once a stop was asked for, half of the time to drain is left to find room in.
    #[inline(never)]
    pub(crate) fn is_held_back(&self, ring: usize) -> bool {
        let time_left = self.drain_until.is_none_or(|until| self.cpu.now + DRAIN_MAX / 2 < until);
        self.inbound[ring].can_wait && time_left && self.outputs.iter().any(OwnedTx::is_full)
    }

    fn ring(&self, nth: usize) -> usize {
        if nth < self.own_rings {
            return nth;
        }
        let others = self.inbound.len() - self.own_rings;
        self.own_rings + (nth - self.own_rings + self.rotation) % others
    }

    fn end_round(&mut self) -> Stepped {
        let others = self.inbound.len() - self.own_rings;
        if others > 0 {
            self.rotation = (self.rotation + 1) % others;
        }
        if self.worked {
            return Stepped::Worked;
        }
        self.outputs.iter_mut().for_each(OwnedTx::flush);
        Stepped::Idle
    }

    fn is_round_over(&self) -> bool {
        self.round_handled >= self.limits.budget || self.cpu.now.since(self.round_start) > self.limits.budget_time
    }

    pub(crate) fn ledger(&self) -> &CpuLedger {
        &self.shared.core.cpu_ledgers[usize::from(self.index)]
    }

    // ---- control

    fn control(&mut self) {
        if self.armed {
            self.awake();
        }
        let now = self.platform.now();
        if std::mem::take(&mut self.worked) {
            // The last round ended just before: one look at the clock serves both.
            let ledger = &self.shared.core.cpu_ledgers[usize::from(self.index)];
            ledger.busy_nanos.add(now.since(self.round_start).as_nanos() as u64);
            ledger.rounds.add(1);
            if std::mem::take(&mut self.full) {
                ledger.full_rounds.add(1);
            }
        }
        (self.round_start, self.cpu.now, self.round_handled) = (now, now, 0);
        if self.duty || self.shared.steering.version() != self.seen {
            self.do_duties();
        }
        if now >= self.next_look {
            self.look();
        }
        if self.next_tick.is_some_and(|due| due <= now) {
            self.tick();
        }
        if self.shared.core.is_stopping() && self.drain_until.is_none() {
            self.drain_until = Some(now + DRAIN_MAX);
            self.queues.iter_mut().for_each(OwnedQueue::stop);
        }
        if self.queues.iter().any(|queue| queue.ended) {
            self.close_queues();
        }
        let all_closed = self.shared.core.all_closed();
        let drained = all_closed && self.inbound.iter().all(|ring| ring.consumer.waiting() == 0);
        self.finished = drained || self.drain_until.is_some_and(|until| now >= until);
        if self.finished {
            self.outputs.iter_mut().for_each(OwnedTx::flush);
        }
    }

    fn tick(&mut self) {
        match self.in_gate("tick", Handler::tick) {
            Some(next) => self.next_tick = next,
            // It is built anew, and will be asked again.
            None => self.next_tick = Some(self.cpu.now),
        }
        self.send_originated(false);
    }

    /// Sends what the handler made itself, unless that is void, and heeds when it wants to be asked.
    #[inline]
    pub(crate) fn send_originated(&mut self, void: bool) {
        let ledger = &self.shared.core.cpu_ledgers[usize::from(self.index)];
        self.cpu.origin.send(&mut self.outputs, self.cpu.now, void, ledger);
        if let Some(by) = self.cpu.tick_by.take() {
            self.next_tick = Some(self.next_tick.map_or(by, |next| next.min(by)));
        }
    }

    /// Runs a part of the handler that is not a batch. `None` if it panicked or its CPU was declared dead meanwhile: the
    /// handler is then another one.
    pub(crate) fn in_gate<R>(&mut self, what: &'static str, part: impl FnOnce(&mut H, &mut Cpu) -> R) -> Option<R> {
        let shared = Arc::clone(&self.shared);
        let gate = &shared.core.gates[usize::from(self.index)];
        if gate.enter(self.cpu.now.as_nanos()) == Err(Dead) {
            self.rise();
            return None;
        }
        let (handler, cpu) = (&mut self.handler, &mut self.cpu);
        let result = catch_unwind(AssertUnwindSafe(|| part(handler, cpu)));
        if gate.leave() == Err(Dead) {
            self.send_originated(true);
            self.rise();
            return None;
        }
        if result.is_err() {
            self.rebuild_handler(what);
        }
        result.ok()
    }

    /// Closes the queues that have ended and of which nothing is under way.
    fn close_queues(&mut self) {
        let at_rest = |queue: &mut OwnedQueue| !queue.is_parked() && queue.is_at_rest();
        while let Some(at) = self.queues.iter_mut().position(at_rest) {
            // From here on no move waits for it.
            let mut queue = self.queues.swap_remove(at);
            self.wait_no_more_on(&queue);
            queue.close();
            let mut state = self.shared.steering.lock();
            state.close_queue(queue.id);
            self.publish_control(state);
            self.shared.core.close_one();
        }
    }

    pub(crate) fn publish_control(&self, state: std::sync::MutexGuard<'_, crate::moves::State<H::Moved>>) {
        let to_wake = self.shared.steering.publish(state);
        if to_wake.is_empty() {
            return;
        }
        self.shared.core.sleepers.after_publishing();
        for cpu in to_wake {
            if cpu != self.index && self.shared.core.wake(usize::from(cpu)) {
                self.ledger().wakes_sent.add(1);
            }
        }
    }

    // ---- poll and wake

    fn receive(&mut self, queue: usize) {
        if let Err(error) = self.queues[queue].poll(self.cpu.now) {
            self.note_error(self.queues[queue].id, &error);
        }
        // What came before an error counts.
        self.polled = self.queues[queue].polled_frames();
        if self.polled > 0 {
            self.worked = true;
            self.full |= self.polled >= self.limits.dev_weight;
            self.received += self.polled;
            self.ledger().polled.add(self.polled as u64);
        }
    }

    #[cold]
    fn note_error(&self, queue: usize, error: &DeviceError) {
        tracing::error!(device = %error.device, offset = error.offset, "{error}");
        let info = &self.shared.core.queues[queue];
        let note = QueueError { message: error.to_string(), offset: error.offset };
        *info.error.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(note);
    }

    /// How long this round took to receive, in one round of many.
    fn time_receiving(&mut self) {
        self.nth_round = self.nth_round.wrapping_add(1);
        if self.nth_round % RECEIVE_TIMED_ONCE_IN == 0 {
            let took = self.platform.now().since(self.round_start).as_nanos() as u64;
            self.ledger().receive_nanos.add(took * u64::from(RECEIVE_TIMED_ONCE_IN));
        }
    }

    fn wake(&mut self) {
        if self.shown.is_empty() {
            return;
        }
        self.shared.core.sleepers.after_publishing();
        let mut woken = 0;
        for cpu in self.shown.drain(..) {
            if cpu != self.index {
                woken += u64::from(self.shared.core.wake(usize::from(cpu)));
            }
        }
        if woken > 0 {
            self.ledger().wakes_sent.add(woken);
        }
    }
}
