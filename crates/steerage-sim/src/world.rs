//! Simulates many CPUs on one thread. Each CPU has its own virtual time.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steerage::{
    Handle, Handler, Instance, Timestamp,
    threads::{Armed, Bell, Phase, Platform, Softnet, Stepped},
};

use crate::chance::Chance;
use crate::machine::Profile;
use crate::meter::Meter;
use crate::racer::Racer;
use crate::turns::Turns;

/// The clock and the random numbers of one virtual CPU.
#[derive(Debug)]
pub struct Virtual {
    now: Rc<Cell<Timestamp>>,
    chance: Chance,
}

impl Platform for Virtual {
    fn now(&self) -> Timestamp {
        self.now.get()
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], _: Option<Timestamp>) -> io::Result<()> {
        Ok(()) // A world lets its CPUs sleep by not stepping them.
    }

    fn random(&mut self) -> u64 {
        self.chance.draw()
    }
}

/// The times at which the world calls [`Handle::control`], as a control thread would. The times of
/// control calls must not affect what happens to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// [`Handle::control`] is always called at the time that the previous call requested.
    OnTime,
    /// [`Handle::control`] is called late, by up to this time. Short delays are as frequent as long
    /// delays.
    Late(Duration),
    /// [`Handle::control`] is never called.
    Stopped,
    /// [`Handle::control`] is called on time, but another thread sometimes holds the control lock.
    Racing {
        /// Another thread takes the control lock once in this many phases.
        once_in: u64,
        /// The thread that takes the control lock holds it for up to this many phases.
        phases: u64,
    },
}

/// The virtual time of each type of work, the frequency of delays, and when control is called.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The time of a phase (a step of a CPU's loop) without packets.
    pub phase: Duration,
    /// The time to receive a packet.
    pub receive: Duration,
    /// The time to handle a packet.
    pub packet: Duration,
    /// The time from the wake-up of a sleeping CPU (the ring of its bell) until the CPU runs.
    pub wake: Duration,
    /// Once in this many phases (never if 0), a virtual CPU is not scheduled for some time.
    pub held_up_once_in: u64,
    /// The maximum time for which a virtual CPU is not scheduled.
    pub held_up: Duration,
    /// Once in this many batches (never if 0), a handler stalls.
    pub stalls_once_in: u64,
    /// The maximum time for which a handler stalls.
    pub stall: Duration,
    /// The times at which [`Handle::control`] is called.
    pub control: Control,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            phase: Duration::from_nanos(100),
            receive: Duration::ZERO,
            packet: Duration::from_nanos(100),
            wake: Duration::from_micros(20),
            held_up_once_in: 500,
            held_up: Duration::from_micros(200),
            stalls_once_in: 0,
            stall: Duration::ZERO,
            control: Control::OnTime,
        }
    }
}

struct VirtualCpu<H: Handler> {
    softnet: Softnet<H, Virtual>,
    now: Rc<Cell<Timestamp>>,
    state: Doing,
    others: f64,
    /// The total time of the CPU's phases, in picoseconds. `now` has only whole nanoseconds.
    busy: u64,
    asleep_since: Timestamp,
    stolen_at: Timestamp,
}

impl<H: Handler> VirtualCpu<H> {
    fn lose_time(&mut self, meter: &Meter) {
        let machine = meter.machine();
        while machine.stolen > 0.0 && self.now.get() >= self.stolen_at {
            let slice = machine.stolen_slice * 1e3;
            self.now.set(self.now.get() + Duration::from_nanos(slice as u64));
            self.stolen_at = self.stolen_at + Duration::from_nanos((slice / machine.stolen) as u64);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Running,
    /// The CPU sleeps until it is woken, or until this time at the latest.
    Asleep(Option<Timestamp>),
    /// The CPU was woken, and runs from this time on.
    Waking(Timestamp),
    Finished,
}

/// A set of CPUs, their clocks, and the order of events.
pub struct World<H: Handler> {
    cpus: Vec<VirtualCpu<H>>,
    handle: Handle,
    chance: Chance,
    costs: Costs,
    history: DefaultHasher,
    steps: u64,
    clock: Timestamp,
    next_control: Option<Timestamp>,
    racer: Option<Arc<Racer>>,
    described: Option<Described>,
    turns: Turns,
    asleep: Vec<u64>,
    /// True if a CPU's bell may have rung (a CPU was woken) since all bells were last read.
    may_have_rung: bool,
    /// The CPU that ran the latest phase, or `None` if control was called after that phase.
    ran: Option<usize>,
    control_took: Vec<Duration>,
}

struct Described {
    meter: Arc<Meter>,
    idle_poll: Duration,
}

impl<H: Handler> std::fmt::Debug for World<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World of {} CPUs after {} steps", self.cpus.len(), self.steps)
    }
}

impl<H: Handler> World<H> {
    /// Creates a world whose history depends only on the instance, the costs and `seed`.
    pub fn new(instance: Instance<H>, costs: Costs, seed: u64) -> Self {
        let (parts, handle) = instance.split();
        let mut chance = Chance::new(seed);
        let enter = |part: steerage::threads::CpuPart<H>| {
            let now = Rc::new(Cell::new(Timestamp::ZERO));
            let platform = Virtual { now: Rc::clone(&now), chance: Chance::new(chance.draw()) };
            let (softnet, zero) = (part.enter(platform), Timestamp::ZERO);
            VirtualCpu {
                softnet,
                now,
                state: Doing::Running,
                others: 0.0,
                busy: 0,
                asleep_since: zero,
                stolen_at: zero,
            }
        };
        let cpus: Vec<VirtualCpu<H>> = parts.into_iter().map(enter).collect();
        let mut turns = Turns::new(cpus.len());
        (0..cpus.len()).for_each(|cpu| turns.set(cpu, Some(0)));
        let asleep = vec![0; cpus.len().div_ceil(64)];
        let clock = Timestamp::ZERO;
        let next_control = (costs.control != Control::Stopped).then_some(clock);
        let racer = matches!(costs.control, Control::Racing { .. }).then(|| Racer::new(handle.clone()));
        Self {
            cpus,
            handle,
            chance,
            costs,
            history: DefaultHasher::new(),
            steps: 0,
            clock,
            next_control,
            racer,
            described: None,
            turns,
            asleep,
            may_have_rung: true,
            ran: None,
            control_took: Vec::new(),
        }
    }

    /// Creates a world in which `meter` computes the times of phases. Idle CPUs poll for
    /// `idle_poll` before they sleep.
    pub fn described(instance: Instance<H>, meter: Arc<Meter>, idle_poll: Duration, seed: u64) -> Self {
        let costs = Costs { held_up_once_in: 0, ..Costs::default() };
        let mut world = Self::new(instance, costs, seed);
        for cpu in &mut world.cpus {
            let machine = meter.machine();
            if machine.stolen > 0.0 {
                let period = (machine.stolen_slice * 1e3 / machine.stolen) as u64;
                cpu.stolen_at = Timestamp::from_nanos(world.chance.below(period));
            }
        }
        world.described = Some(Described { meter, idle_poll });
        world
    }

    /// Returns the busy nanoseconds of each CPU, in a world that was created by
    /// [`described`](Self::described).
    pub fn busy(&self) -> Vec<f64> {
        self.cpus.iter().map(|cpu| cpu.busy as f64 / 1e3).collect()
    }

    /// Returns the thread that sometimes holds the control lock, if there is one.
    pub fn racer(&self) -> Option<&Arc<Racer>> {
        self.racer.as_ref()
    }

    /// Returns the handle with which the instance can be changed during the run.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Sets the share of a CPU's time that other programs take from now on, from 0 to less than 1.
    pub fn take_time(&mut self, cpu: usize, share: f64) {
        self.cpus[cpu].others = share;
        let id = self.handle.snapshot().cpus[cpu].cpu;
        self.handle.set_others_time(&[(id, share)]);
    }

    /// Returns the real duration of each control call on the machine that runs the simulation.
    pub fn control_took(&self) -> &[Duration] {
        &self.control_took
    }

    /// Returns the number of phases (steps of a CPU's loop) so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the time at which the last phase (step of a CPU's loop) began.
    pub fn now(&self) -> Timestamp {
        self.clock
    }

    /// Returns a hash of the actions of all CPUs, and of the times and results of these actions.
    pub fn history(&self) -> u64 {
        self.history.finish()
    }

    /// Runs the next phase of the CPU with the earliest time. If a call of control is due, `step`
    /// makes it first. If another thread takes the control lock, `step` runs phases until the lock
    /// is released. Returns false when all CPUs have finished.
    ///
    /// # Panics
    /// Panics if no CPU can continue although not all CPUs have finished, because a wake-up was
    /// lost. A pending call of control does not prevent this panic, because the fate of packets
    /// must not depend on control.
    pub fn step(&mut self) -> bool {
        // The caller may have changed the instance since the last call of `step`.
        self.may_have_rung |= self.described.is_none();
        let (Some(racer), Control::Racing { once_in, phases }) = (self.racer.clone(), self.costs.control) else {
            self.control();
            return self.phase();
        };
        if self.chance.once_in(once_in) {
            racer.hold();
        } else {
            self.control();
        }
        let mut goes_on = self.phase();
        if racer.is_held() {
            let more = self.chance.below(phases);
            goes_on = goes_on && (0..more).all(|_| self.phase());
            racer.release();
        }
        goes_on
    }

    fn control(&mut self) {
        self.hear_bells();
        let Some((turn, _)) = self.whose_turn() else { return };
        let Some(now) = self.next_control.filter(|due| *due <= turn) else { return };
        let delay = match self.costs.control {
            Control::Late(most) => {
                let magnitude = self.chance.below(u64::from(most.as_nanos().max(1).ilog2()) + 1);
                Duration::from_nanos(self.chance.below(2 << magnitude))
            }
            _ => Duration::ZERO,
        };
        let began = Instant::now();
        self.next_control = self.handle.control(now).map(|next| next + delay);
        self.control_took.push(began.elapsed());
        (self.may_have_rung, self.ran) = (true, None);
        (now, self.next_control).hash(&mut self.history);
    }

    fn phase(&mut self) -> bool {
        self.hear_bells();
        let Some((turn, at)) = self.whose_turn() else {
            assert!(self.cpus.iter().all(|cpu| cpu.state == Doing::Finished), "all sleep, and not all is finished");
            return false;
        };
        self.steps += 1;
        self.clock = self.clock.max(turn);
        self.ran = Some(at);
        if self.cpus[at].state != Doing::Running {
            self.runs_again(at, turn);
        }
        let is_sibling_busy = self.is_sibling_busy(at);
        let cpu = &mut self.cpus[at];
        let ledgers = self.handle.ledgers();
        let phase = cpu.softnet.phase();
        let (handled, polled) = (cpu.softnet.handled(), ledgers.cpus[at].polled.get());
        let stepped = match &self.described {
            None => cpu.softnet.advance(),
            Some(Described { meter, .. }) => {
                let hashed = || meter.queues_of(at).map(|queue| ledgers.queues[queue].ledger.hashed.get()).sum::<u64>();
                let hashed_before = if matches!(phase, Phase::Steer(_)) { hashed() } else { 0 };
                let wakes_sent = ledgers.cpus[at].wakes_sent.get();
                meter.begin_phase(at, is_sibling_busy);
                let stepped = cpu.softnet.advance();
                let hashed = if matches!(phase, Phase::Steer(_)) { hashed() - hashed_before } else { 0 };
                let received = ledgers.cpus[at].polled.get() - polled;
                let took = meter.end_phase(at, phase, received, hashed);
                self.may_have_rung = phase == Phase::Control || ledgers.cpus[at].wakes_sent.get() > wakes_sent;
                let before = cpu.busy;
                cpu.busy += took;
                cpu.now.set(cpu.now.get() + Duration::from_nanos(cpu.busy / 1000 - before / 1000));
                cpu.lose_time(meter);
                stepped
            }
        };
        if self.described.is_none() {
            let costs = self.costs;
            let mut took = costs.phase + costs.receive * (ledgers.cpus[at].polled.get() - polled) as u32;
            if matches!(phase, Phase::Handle(_)) {
                took += costs.packet * (cpu.softnet.handled() - handled) as u32;
                if self.chance.once_in(costs.stalls_once_in) {
                    took += Duration::from_nanos(self.chance.below(costs.stall.as_nanos() as u64 + 1));
                }
            }
            if self.chance.once_in(costs.held_up_once_in) {
                took += Duration::from_nanos(self.chance.below(costs.held_up.as_nanos() as u64 + 1));
            }
            // A small random time is added, so that CPUs with equal work do not run in lockstep.
            took += Duration::from_nanos(self.chance.below(20));
            if cpu.others > 0.0 {
                took = took.div_f64(1.0 - cpu.others);
            }
            cpu.now.set(cpu.now.get() + took);
            self.may_have_rung = true;
        }
        match stepped {
            Some(Stepped::Idle) => {
                if let Armed::Sleep(until) = cpu.softnet.arm() {
                    let now = cpu.now.get();
                    let until = until.map(|until| match &self.described {
                        Some(described) if until.since(now) > described.idle_poll => {
                            until + Duration::from_nanos(described.meter.profile().woken as u64)
                        }
                        _ => until,
                    });
                    cpu.state = Doing::Asleep(until);
                    cpu.asleep_since = now;
                    self.asleep[at / 64] |= 1 << (at % 64);
                }
            }
            Some(Stepped::Finished) => cpu.state = Doing::Finished,
            _ => {}
        }
        (at, phase, stepped, cpu.now.get(), cpu.softnet.handled()).hash(&mut self.history);
        self.enter_turn(at);
        true
    }

    fn runs_again(&mut self, at: usize, turn: Timestamp) {
        let cpu = &mut self.cpus[at];
        cpu.state = Doing::Running;
        cpu.now.set(turn);
        self.asleep[at / 64] &= !(1 << (at % 64));
    }

    fn is_sibling_busy(&self, at: usize) -> bool {
        let sibling = self.described.as_ref().and_then(|described| described.meter.machine().sibling(at));
        sibling.and_then(|sibling| self.cpus.get(sibling)).is_some_and(|cpu| cpu.state == Doing::Running)
    }

    /// For 1,024 CPUs, `hear_bells` reads 16 words instead of the state of each CPU.
    fn hear_bells(&mut self) {
        if !std::mem::take(&mut self.may_have_rung) {
            return;
        }
        for word in 0..self.asleep.len() {
            // All CPUs share the set of sleeping CPUs, so reading it through CPU 0 is enough.
            let mut woken = self.asleep[word];
            if woken != 0 {
                woken &= !self.cpus[0].softnet.sleepers(word);
            }
            self.asleep[word] &= !woken;
            while woken != 0 {
                self.wakes_up(64 * word + woken.trailing_zeros() as usize);
                woken &= woken - 1;
            }
        }
    }

    fn wakes_up(&mut self, at: usize) {
        let cpu = &mut self.cpus[at];
        let now = self.clock.max(cpu.now.get());
        let wake = match &self.described {
            None => self.costs.wake,
            Some(described) => {
                let Profile { line, woken, wake, .. } = described.meter.profile();
                if now.since(cpu.asleep_since) > described.idle_poll {
                    if let Some(waker) = self.ran {
                        described.meter.charge(waker, *wake);
                    }
                    Duration::from_nanos(*woken as u64)
                } else {
                    Duration::from_nanos(line[1] as u64)
                }
            }
        };
        cpu.state = Doing::Waking(now + wake);
        self.enter_turn(at);
    }

    fn next_of(&self, at: usize) -> Option<Timestamp> {
        let cpu = &self.cpus[at];
        match cpu.state {
            Doing::Running => Some(cpu.now.get()),
            Doing::Waking(at) => Some(at),
            Doing::Asleep(until) => until.map(|until| until.max(cpu.now.get())),
            Doing::Finished => None,
        }
    }

    fn enter_turn(&mut self, at: usize) {
        self.turns.set(at, self.next_of(at).map(Timestamp::as_nanos));
    }

    fn whose_turn(&self) -> Option<(Timestamp, usize)> {
        let (turn, at) = self.turns.first()?;
        Some((Timestamp::from_nanos(turn), at))
    }

    /// Runs until all CPUs have finished. Before each phase, `each` may change settings.
    /// # Panics
    /// Panics if not all CPUs have finished after `steps_max` phases.
    pub fn run(&mut self, steps_max: u64, mut each: impl FnMut(&Handle, u64, &mut Chance)) {
        let mut chance = Chance::new(self.chance.draw());
        while self.steps < steps_max {
            each(&self.handle, self.steps, &mut chance);
            if !self.step() {
                return;
            }
        }
        panic!("not finished after {steps_max} phases");
    }

    /// Ends the handlers, and returns the report of each CPU's handler.
    pub fn finish(self) -> Vec<H::Report> {
        self.cpus.into_iter().map(|cpu| cpu.softnet.finish()).collect()
    }
}
