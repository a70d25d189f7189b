//! CPUs on one thread, each with its own virtual time.

use std::cell::Cell;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use steerage::{
    Handle, Handler, Instance, Timestamp,
    threads::{Armed, Bell, Phase, Platform, Softnet, Stepped},
};

use crate::chance::Chance;
use crate::racer::Racer;

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

/// When the world calls control ([`Handle::control`]), as a thread would. Packets must not depend
/// on these calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Control is called at the time that it requests.
    OnTime,
    /// Control is called up to this time later. Short delays are as frequent as long delays.
    Late(Duration),
    /// Control is never called.
    Stopped,
    /// Control is called on time. In addition, another thread sometimes takes the control lock and
    /// holds it.
    Racing {
        /// The lock is taken once in this many phases.
        once_in: u64,
        /// The other thread holds the lock for up to this many phases.
        phases: u64,
    },
}

/// The virtual time of each type of work, the frequency of delays, and the calls of control.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// The time of a phase without packets.
    pub phase: Duration,
    /// The time to receive a packet.
    pub receive: Duration,
    /// The time to handle a packet.
    pub packet: Duration,
    /// The time from the ring of a bell until the bell's CPU runs.
    pub wake: Duration,
    /// A CPU loses its processor once in this many phases (never for 0).
    pub held_up_once_in: u64,
    /// The maximum time for which a CPU loses its processor.
    pub held_up: Duration,
    /// A handler stalls once in this many batches (never for 0).
    pub stalls_once_in: u64,
    /// The maximum time for which a handler stalls.
    pub stall: Duration,
    /// When control is called.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Running,
    /// The CPU sleeps until it is woken, or until this time.
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
}

impl<H: Handler> std::fmt::Debug for World<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World of {} CPUs after {} steps", self.cpus.len(), self.steps)
    }
}

impl<H: Handler> World<H> {
    /// Creates a world with the instance's CPUs. The history of the world depends only on `seed`.
    pub fn new(instance: Instance<H>, costs: Costs, seed: u64) -> Self {
        let (parts, handle) = instance.split();
        let mut chance = Chance::new(seed);
        let enter = |part: steerage::threads::CpuPart<H>| {
            let now = Rc::new(Cell::new(Timestamp::ZERO));
            let platform = Virtual { now: Rc::clone(&now), chance: Chance::new(chance.draw()) };
            VirtualCpu { softnet: part.enter(platform), now, state: Doing::Running, others: 0.0 }
        };
        let cpus = parts.into_iter().map(enter).collect();
        let (history, clock) = (DefaultHasher::new(), Timestamp::ZERO);
        let next_control = (costs.control != Control::Stopped).then_some(clock);
        let racer = matches!(costs.control, Control::Racing { .. }).then(|| Racer::new(handle.clone()));
        Self { cpus, handle, chance, costs, history, steps: 0, clock, next_control, racer }
    }

    /// The thread that sometimes holds the control lock, if there is one.
    pub fn racer(&self) -> Option<&Arc<Racer>> {
        self.racer.as_ref()
    }

    /// The handle to change the instance during the run.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// From now on, other programs take this share of a CPU's time, from 0 to less than 1. All work
    /// of the CPU takes longer.
    pub fn take_time(&mut self, cpu: usize, share: f64) {
        self.cpus[cpu].others = share;
        let id = self.handle.snapshot().cpus[cpu].cpu;
        self.handle.set_others_time(&[(id, share)]);
    }

    /// The number of phases so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The time at which the last phase began.
    pub fn now(&self) -> Timestamp {
        self.clock
    }

    /// A hash of everything that has happened: the actions of all CPUs, their times and their
    /// results.
    pub fn history(&self) -> u64 {
        self.history.finish()
    }

    /// Runs the next phase of the CPU with the earliest time, and calls control before it if a call
    /// is due. If another thread takes the control lock, the function runs all phases until that
    /// thread releases the lock. So the lock is always free between two calls. Returns false when
    /// all CPUs have finished.
    ///
    /// # Panics
    /// If no CPU can continue although not all have finished, because a wake-up was lost. Calls of
    /// control do not count, because no packet may depend on control.
    pub fn step(&mut self) -> bool {
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
        self.next_control = self.handle.control(now).map(|next| next + delay);
        ("control", now, self.next_control).hash(&mut self.history);
    }

    fn phase(&mut self) -> bool {
        self.hear_bells();
        let Some((turn, at)) = self.whose_turn() else {
            assert!(self.cpus.iter().all(|cpu| cpu.state == Doing::Finished), "all sleep, and not all is finished");
            return false;
        };
        self.steps += 1;
        self.clock = self.clock.max(turn);
        let costs = self.costs;
        let cpu = &mut self.cpus[at];
        if cpu.state != Doing::Running {
            cpu.state = Doing::Running;
            cpu.now.set(turn);
        }
        let phase = cpu.softnet.phase();
        let before = cpu.softnet.handled();
        let polled = &self.handle.ledgers().cpus[at].polled;
        let polled_before = polled.get();
        let stepped = cpu.softnet.advance();
        let mut took = costs.phase + costs.receive * (polled.get() - polled_before) as u32;
        if matches!(phase, Phase::Handle(_)) {
            took += costs.packet * (cpu.softnet.handled() - before) as u32;
            if self.chance.once_in(costs.stalls_once_in) {
                took += Duration::from_nanos(self.chance.below(costs.stall.as_nanos() as u64 + 1));
            }
        }
        if self.chance.once_in(costs.held_up_once_in) {
            took += Duration::from_nanos(self.chance.below(costs.held_up.as_nanos() as u64 + 1));
        }
        // Add a small random time to every phase, so that equal CPUs do not run in step.
        took += Duration::from_nanos(self.chance.below(20));
        if cpu.others > 0.0 {
            took = took.div_f64(1.0 - cpu.others);
        }
        cpu.now.set(cpu.now.get() + took);
        match stepped {
            Some(Stepped::Idle) => {
                if let Armed::Sleep(until) = cpu.softnet.arm() {
                    cpu.state = Doing::Asleep(until);
                }
            }
            Some(Stepped::Finished) => cpu.state = Doing::Finished,
            _ => {}
        }
        (at, format!("{phase:?}{stepped:?}"), cpu.now.get(), cpu.softnet.handled()).hash(&mut self.history);
        true
    }

    fn hear_bells(&mut self) {
        for cpu in &mut self.cpus {
            if matches!(cpu.state, Doing::Asleep(_)) && cpu.softnet.is_woken() {
                cpu.state = Doing::Waking(self.clock.max(cpu.now.get()) + self.costs.wake);
            }
        }
    }

    fn whose_turn(&self) -> Option<(Timestamp, usize)> {
        let next = |cpu: &VirtualCpu<H>| match cpu.state {
            Doing::Running => Some(cpu.now.get()),
            Doing::Waking(at) => Some(at),
            Doing::Asleep(until) => until.map(|until| until.max(cpu.now.get())),
            Doing::Finished => None,
        };
        self.cpus.iter().enumerate().filter_map(|(at, cpu)| Some((next(cpu)?, at))).min()
    }

    /// Runs until all CPUs have finished, for at most `steps_max` phases. `each` is called before
    /// each phase and may change settings.
    ///
    /// # Panics
    /// If not all CPUs have finished after `steps_max` phases.
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

    /// Ends the handlers, and returns their reports by CPU.
    pub fn finish(self) -> Vec<H::Report> {
        self.cpus.into_iter().map(|cpu| cpu.softnet.finish()).collect()
    }
}
