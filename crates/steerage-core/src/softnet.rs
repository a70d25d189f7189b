//! [`Softnet`] is one CPU of the receive path, with all data that only this CPU uses.
//!
//! A round (one pass of a CPU's loop) runs the phases of [`Phase`] in order. As in a Linux network
//! softirq, a CPU first receives from its queues. Then the CPU handles the packets that it keeps,
//! and finally the packets that other CPUs have handed over. A CPU without work waits (module
//! `waiting`).

mod waiting;

use std::fmt;
use std::sync::Arc;

use steerage_flow::Timestamp;
use steerage_mem::round;
use steerage_topology::CpuId;

use crate::backlog::{Backlog, Backlogs};
use crate::handler::{Cpu, Handler, MakeHandler, Runner};
use crate::ids::CpuIndex;
use crate::limits::{DRAIN_MAX, HANDLE_BUDGET};
use crate::origin::Origin;
use crate::participant::{Own, Participant};
use crate::platform::{Machine, Platform};
use crate::queue::{OwnedQueue, Published};
use crate::rx::Polled;
use crate::sampler::{Sampler, note_batch};
use crate::shared::{Shared, StopsUnlessFinished};
use crate::sleep::Sleep;
use crate::steering::InTransit;
use crate::tx::OwnedTx;
use steerage_moves::Event;

/// The outcome of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stepped {
    /// The round received or handled packets: call `step` again.
    Worked,
    /// The round found no work.
    Idle,
    /// Every queue has ended and all packets are finished, or the time for draining is over.
    Finished,
}

/// The phases of a round, in order. The number in a variant is the index of one of the CPU's queues
/// or backlogs. [`Softnet::advance`] runs one phase, and the example of [`Softnet`] runs whole
/// rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Carry out requested changes: moves of buckets, new limits, the end of the run.
    Control,
    /// Take received frames from a queue's device.
    Poll(usize),
    /// Choose each frame's CPU.
    Steer(usize),
    /// Make the staged frames visible to the other CPUs.
    Publish(usize),
    /// Wake the sleeping CPUs that got packets in this round.
    Wake,
    /// Call the handler with a batch of one queue's packets.
    Handle(usize),
    /// Count the verdicts of the handled batch, and mark its slots as finished.
    Finish(usize),
}

/// The part of an instance that one CPU will run, before the CPU's thread starts. `Instance::split`
/// of the crate `steerage` creates one `CpuPart` for each CPU.
pub struct CpuPart<H: Handler> {
    pub(crate) side: CpuSide,
    pub(crate) make: MakeHandler<H>,
    pub(crate) in_transit: Arc<InTransit<H::Moved>>,
}

pub(crate) struct CpuSide {
    pub(crate) index: CpuIndex,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stops: StopsUnlessFinished,
    pub(crate) queues: Vec<OwnedQueue>,
    pub(crate) backlogs: Vec<Backlog>,
    pub(crate) outputs: Vec<OwnedTx>,
    pub(crate) origin: Origin,
}

impl fmt::Debug for CpuSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.shared.cpus[usize::from(self.index)])
    }
}

impl<H: Handler> fmt::Debug for CpuPart<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuPart of {:?}", self.side)
    }
}

impl<H: Handler> CpuPart<H> {
    /// The number of this CPU.
    pub fn cpu(&self) -> CpuId {
        self.side.shared.cpus[usize::from(self.side.index)]
    }

    /// Creates the handler on the calling thread, and prepares the CPU for its first step.
    pub fn enter<P: Platform>(self, platform: P) -> Softnet<H, P> {
        Softnet::new(self, platform)
    }

    /// Like [`enter`](Self::enter), but always uses the clock and the sleep of this machine.
    pub fn enter_machine(self) -> Softnet<H, Machine> {
        let machine = Machine::new(self.side.shared.start, u64::from(self.side.index));
        self.enter(machine)
    }
}

#[derive(Debug)]
struct Round {
    start: Timestamp,
    worked: bool,
    full: bool,
    handled: usize,
    published: Vec<Published>,
}

/// One CPU of the path.
///
/// ```
/// # mod steerage { pub use steerage_core::handler::Handler; pub mod threads { pub use steerage_core::{Armed, softnet::*}; } }
/// use std::{os::fd::OwnedFd, time::Duration};
///
/// use steerage::Handler;
/// use steerage::threads::{Armed, CpuPart, Stepped};
///
/// /// Runs a CPU in an event loop. `wait` waits until the descriptor is readable, or for at most this time.
/// fn serve<H: Handler>(part: CpuPart<H>, wait: impl Fn(&OwnedFd, Option<Duration>)) -> std::io::Result<H::Report> {
///     let mut cpu = part.enter_machine();
///     let event = cpu.event_fd()?;
///     loop {
///         match cpu.poll(256) {
///             Stepped::Worked => {}
///             Stepped::Idle => {
///                 if let Armed::Sleep(until) = cpu.arm() {
///                     wait(&event, until.map(|until| until.since(cpu.now())));
///                 }
///             }
///             Stepped::Finished => return Ok(cpu.finish()),
///         }
///     }
/// }
/// ```
pub struct Softnet<H: Handler, P: Platform> {
    platform: P,
    shared: Arc<Shared>,
    stops: StopsUnlessFinished,
    queues: Vec<OwnedQueue>,
    backlogs: Backlogs,
    runner: Runner<H>,
    control: Participant<H::Moved>,
    sampler: Sampler,
    sleep: Sleep,
    /// True if a queue can wait for outputs. If no queue can wait, outputs are not checked for
    /// room.
    can_wait: bool,
    phase: Phase,
    round: Round,
    received: usize,
    handled: usize,
    /// After a stop was requested: the time until which packets in flight are still handled.
    drain_until: Option<Timestamp>,
    finished: bool,
}

impl<H: Handler, P: Platform> fmt::Debug for Softnet<H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Softnet of CPU {} in {:?}", self.runner.cpu.id, self.phase)
    }
}

impl<H: Handler, P: Platform> Softnet<H, P> {
    fn new(part: CpuPart<H>, mut platform: P) -> Self {
        let CpuPart { side, make, in_transit } = part;
        let CpuSide { index, shared, stops, queues, backlogs, outputs, origin } = side;
        let id = shared.cpus[usize::from(index)];
        let cpu = Cpu { shared: Arc::clone(&shared), id, now: platform.now(), origin, tick_by: None };
        let limits = shared.steering.lock().limits.all;
        let published = Vec::with_capacity(shared.cpus.len() * queues.len().max(1));
        let can_wait = !outputs.is_empty() && backlogs.iter().any(|backlog| backlog.can_wait);
        let backlogs = Backlogs::new(backlogs, index, Arc::clone(&shared.inboxes), || platform.random());
        Self {
            backlogs,
            runner: Runner::new(index, &shared, make, outputs, cpu),
            control: Participant::new(limits, shared.cpus.len(), published.capacity(), in_transit),
            sampler: Sampler::new(),
            sleep: Sleep::default(),
            can_wait,
            phase: Phase::Control,
            round: Round { start: Timestamp::ZERO, worked: false, full: false, handled: 0, published },
            received: 0,
            handled: 0,
            drain_until: None,
            finished: false,
            platform,
            shared,
            stops,
            queues,
        }
    }

    /// Runs one round: receives, steers, wakes other CPUs and handles packets.
    #[inline]
    pub fn step(&mut self) -> Stepped {
        loop {
            if let Some(stepped) = self.advance() {
                return stepped;
            }
        }
    }

    /// Runs rounds until `budget` packets were received or handled, or a round finds no work.
    pub fn poll(&mut self, budget: usize) -> Stepped {
        (self.received, self.handled) = (0, 0);
        loop {
            let stepped = self.step();
            if stepped != Stepped::Worked || self.received.max(self.handled) >= budget {
                return stepped;
            }
        }
    }

    /// Returns how many packets the handler got since the last [`poll`](Self::poll) began.
    pub fn handled(&self) -> usize {
        self.handled
    }

    /// Runs only the next phase. Returns `Some` after the last phase of a round. A simulator uses
    /// `advance` to run the phases of many CPUs in any order.
    // Always inlined into `step`, because a round has at least seven phases.
    #[inline(always)]
    pub fn advance(&mut self) -> Option<Stepped> {
        let _in_round = round::enter();
        self.phase = match self.phase {
            Phase::Control => {
                let may_go_on = self.control_phase();
                if self.finished {
                    return Some(Stepped::Finished);
                }
                if !may_go_on {
                    return Some(Stepped::Worked);
                }
                self.to_poll(0)
            }
            Phase::Poll(queue) => {
                self.receive(queue);
                Phase::Steer(queue)
            }
            Phase::Steer(queue) => {
                self.queues[queue].steer(self.runner.cpu.now);
                Phase::Publish(queue)
            }
            Phase::Publish(queue) => {
                self.queues[queue].publish(&mut self.round.published);
                self.to_poll(queue + 1)
            }
            Phase::Wake => {
                if !self.round.published.is_empty() {
                    self.shared.set_inbox_bits_and_wake(&mut self.round.published, self.runner.index);
                }
                if self.round.worked && self.sampler.times_receiving() {
                    let took = self.platform.now().since(self.round.start);
                    self.sampler.received_in(took, self.runner.ledger());
                }
                self.next_to_handle(0)
            }
            Phase::Handle(place) => {
                self.handle(place);
                Phase::Finish(place)
            }
            Phase::Finish(place) => {
                self.finish_batch(place);
                // Every round handles all packets in this CPU's lanes (lists of its own frames) and
                // at least one backlog, so that no backlog waits forever.
                if place < self.queues.len() {
                    let again = if self.control.is_void() { place + 1 } else { place };
                    let next = self.next_to_handle(again);
                    // If the round ends here, the next round reads the clock when it begins.
                    if next != Phase::Control || self.sampler.is_timing() {
                        self.end_batch();
                    }
                    next
                } else {
                    let took = self.end_batch().since(self.round.start);
                    let limits = &self.control.limits;
                    if self.round.handled >= limits.budget || took > limits.budget_time {
                        self.runner.ledger().time_squeeze.add(1);
                        Phase::Control
                    } else {
                        self.next_to_handle(place + 1)
                    }
                }
            }
        };
        if self.phase != Phase::Control {
            return None;
        }
        if !self.round.worked {
            self.runner.flush_outputs();
        }
        Some(if self.round.worked { Stepped::Worked } else { Stepped::Idle })
    }

    /// Returns true if this CPU has returned [`Stepped::Finished`].
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns the time at which the handler's next tick is due, if a tick was requested.
    pub fn next_tick(&self) -> Option<Timestamp> {
        self.runner.next_tick
    }

    /// Returns the phase that runs next.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn to_poll(&self, queue: usize) -> Phase {
        if queue < self.queues.len() { Phase::Poll(queue) } else { Phase::Wake }
    }

    #[inline(always)]
    fn next_to_handle(&mut self, from: usize) -> Phase {
        let held_back = self.can_wait && self.holds_back();
        let own = self.queues.len();
        if let Some(place) = (from..own).find(|place| self.queues[*place].is_due(held_back)) {
            return Phase::Handle(place);
        }
        if from <= own {
            self.backlogs.begin();
        }
        self.backlogs.next_to_serve(held_back).map_or(Phase::Control, |queue| Phase::Handle(own + queue))
    }

    #[inline]
    fn queue_at(&self, place: usize) -> usize {
        self.queues.get(place).map_or_else(|| place - self.queues.len(), |queue| queue.id)
    }

    /// While an output is full, the CPU handles no packets of queues whose device can wait. A
    /// capture file is read only as fast as its packets are written. After a stop was requested,
    /// packets wait only during the first half of the maximum time for draining.
    #[inline(never)]
    fn holds_back(&self) -> bool {
        let time_left = self.drain_until.is_none_or(|until| self.runner.cpu.now + DRAIN_MAX / 2 < until);
        time_left && self.runner.is_output_full()
    }

    fn control_phase(&mut self) -> bool {
        if self.sleep.is_armed() {
            self.sleep.awake(self.runner.index, &self.shared);
        }
        let now = self.platform.now();
        self.begin_round(now);
        let platform = &self.platform;
        let clock = || platform.now();
        let own = Own { queues: &mut self.queues, sleep: &self.sleep, runner: &mut self.runner };
        let goes_on = self.control.take_part(own, &mut self.sampler, &clock);
        if std::mem::take(&mut self.control.has_other_queues) {
            let _outside = round::leave(); // This may take memory.
            self.round.published.reserve(self.queues.len() * self.shared.cpus.len());
        }
        if goes_on && self.runner.next_tick.is_some_and(|due| due <= now) && self.runner.tick().is_err() {
            self.control.start_over(&mut self.runner);
        }
        if goes_on && self.shared.requests.take(usize::from(self.runner.index)) {
            self.control.serve(&mut self.runner);
        }
        if self.shared.is_stopping() && self.drain_until.is_none() {
            self.drain_until = Some(now + DRAIN_MAX);
            self.queues.iter_mut().for_each(OwnedQueue::stop);
        }
        if self.queues.iter().any(|queue| queue.state.ended) {
            self.close_queues();
        }
        let drained =
            self.shared.all_closed() && self.backlogs.waiting().next().is_none() && !self.runner.cpu.waits_for_kept();
        self.finished = drained || self.drain_until.is_some_and(|until| now >= until);
        if self.finished {
            self.runner.flush_outputs();
        }
        !self.control.is_void()
    }

    fn begin_round(&mut self, now: Timestamp) {
        let round = &mut self.round;
        if std::mem::take(&mut round.worked) {
            // The same reading of the clock ends the previous round and starts this round.
            note_batch(self.runner.ledger(), &self.runner.cpu, now);
            let ledger = self.runner.ledger();
            ledger.busy_nanos.add(now.since(round.start).as_nanos() as u64);
            ledger.rounds.add(1);
            if std::mem::take(&mut round.full) {
                ledger.full_rounds.add(1);
            }
        }
        (round.start, round.handled) = (now, 0);
        self.runner.cpu.now = now;
    }

    /// Closes queues that have ended. If another thread holds the control lock, the CPU tries again
    /// in the next round.
    fn close_queues(&mut self) {
        let at_rest = |queue: &mut OwnedQueue| !queue.is_parked() && queue.is_at_rest();
        while let Some(at) = self.queues.iter_mut().position(at_rest) {
            let Some(mut state) = self.shared.steering.try_lock() else { return };
            let mut queue = self.queues.swap_remove(at);
            state.on(Event::Closed { queue: queue.id });
            self.control.publish(&self.shared, state, self.runner.index);
            self.sleep.forget(&queue);
            // Closing a device may allocate memory.
            let _outside = round::leave();
            queue.close();
            self.shared.close_one();
        }
    }

    fn receive(&mut self, queue: usize) {
        let queue = &mut self.queues[queue];
        if let Err(error) = queue.poll(self.runner.cpu.now) {
            tracing::error!(device = %error.device, offset = error.offset, "{error}");
            self.shared.ledgers.queues[queue.id].failed(error.to_string(), error.offset);
        }
        // A poll that ends with an error may have received frames before the error.
        let polled = queue.frames_polled;
        if polled > 0 {
            self.round.worked = true;
            // A queue that sets its next poll to the current time or earlier has more frames.
            let has_more = matches!(queue.state.polled, Polled::NotBefore(due) if due <= self.runner.cpu.now);
            self.round.full |= has_more || polled >= self.control.limits.dev_weight;
            self.received += polled;
            self.runner.ledger().polled.add(polled as u64);
        }
    }

    #[inline(always)]
    fn end_batch(&mut self) -> Timestamp {
        let now = self.platform.now();
        note_batch(self.runner.ledger(), &self.runner.cpu, now);
        self.runner.cpu.now = now;
        self.sampler.end(&self.shared, now);
        now
    }

    fn handle(&mut self, place: usize) {
        self.round.worked = true;
        if self.control.is_void() {
            self.runner.skip();
            return;
        }
        let queue = self.queue_at(place);
        let backlog = self.backlogs.at(queue);
        let mut own = self.queues.get_mut(place);
        let waiting = match &own {
            Some(queue) => queue.outbox.staying() as u64,
            None if backlog.is_admitted => self.shared.admissions[usize::from(self.runner.index)].waiting(),
            None => backlog.consumer.waiting(),
        };
        self.runner.ledger().backlog_max.raise_to(waiting);
        let revoked = if own.is_none() { backlog.consumer.revoked() } else { 0 };
        if revoked > 0 {
            self.runner.skip();
            backlog.consumer.take(HANDLE_BUDGET.min(revoked as usize));
            return;
        }
        if self.runner.enter().is_err() {
            self.control.start_over(&mut self.runner);
            return;
        }
        let alone = self.sampler.wants_one_alone();
        let most = if alone { 1 } else { self.control.limits.dev_weight };
        let mut hand = match &mut own {
            Some(queue) => queue.take(most),
            None => {
                backlog.consumer.take(most);
                backlog.consumer.hand()
            }
        };
        if alone {
            self.sampler.begin(queue, &mut hand, &self.shared, self.platform.now());
        }
        let taken = hand.len();
        self.round.full |= taken >= self.control.limits.dev_weight;
        self.handled += taken;
        self.round.handled += taken;
        self.runner.handle(&backlog.source, hand);
    }

    fn finish_batch(&mut self, place: usize) {
        let queue = self.queue_at(place);
        let backlog = self.backlogs.at(queue);
        let mut own = self.queues.get_mut(place);
        let hand = match &mut own {
            Some(queue) => queue.outbox.lane().hand(),
            None => backlog.consumer.hand(),
        };
        let count = hand.len() as u64;
        let died = self.runner.finish_batch(&backlog.source, hand);
        let ledger = self.runner.ledger();
        ledger.processed.add(count);
        if let Some(queue) = own {
            ledger.inline.add(count);
            queue.finish();
        } else {
            ledger.handed_in.add(count);
            backlog.consumer.finish();
            if backlog.is_admitted {
                self.shared.admissions[usize::from(self.runner.index)].finish(count);
            }
            if backlog.can_wait && backlog.consumer.producer_waits() {
                let owner = self.shared.ledgers.queues[queue].owner();
                self.shared.wake([owner], Some(self.runner.index));
            }
        }
        if died {
            self.control.start_over(&mut self.runner);
        }
    }

    /// Ends this CPU's part, and returns its handler's report. Packets in rings count as in flight.
    pub fn finish(mut self) -> H::Report {
        // If a CPU ends before the run has finished, the other CPUs would wait for this CPU
        // forever. Dropping `stops` with `finished` false stops the other CPUs too.
        self.stops.finished = self.is_finished();
        self.runner.cpu.now = self.platform.now();
        self.runner.finish()
    }
}
