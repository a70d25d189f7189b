//! An instance that is put together: run on threads of its own, or split for those who bring theirs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::builder::BuildError;
use crate::cpu::CpuId;
use crate::handle::Handle;
use crate::handler::Handler;
use crate::ledger::Snapshot;
use crate::limits::{DRAIN_MAX, JOIN_LOOK, LEAVE_BEHIND_AFTER};
use crate::origin::Origin;
use crate::platform::{Machine, Platform};
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
        Handle::of(&self.shared)
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
        // Virtual CPUs are nobody's to take away.
        let watch = match self.pin.then(|| watching::watch(handle.clone(), cpus.clone(), Arc::clone(&pinned))) {
            Some(Err(error)) => {
                tracing::warn!("cannot watch over CPUs: {error}");
                None
            }
            watched => watched.and_then(Result::ok),
        };
        for part in self.parts {
            let (to_join, shared, watch) = (to_join.clone(), Arc::clone(&self.shared), watch.clone());
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
                drop(watch);
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
        Ok(Running { run: StopsWhenDropped { handle, armed: true }, threads, ended, cpus, watch })
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

/// An instance at work. Dropping it stops the run, as [`Handle::stop`] does, and does not wait for the end:
/// [`join`](Self::join) waits, [`detach`](Self::detach) lets the run go on alone.
#[derive(Debug)]
#[must_use = "dropping it stops the run: join it or detach it"]
pub struct Running<R> {
    run: StopsWhenDropped,
    threads: Vec<JoinHandle<()>>,
    ended: Receiver<(CpuId, Option<R>)>,
    cpus: Vec<CpuId>,
    /// The CPUs are watched until something is sent here, or until this and the copies in the CPUs' threads are gone.
    watch: Option<mpsc::Sender<()>>,
}

/// So that an error between the start and the end of a run does not leave its threads behind.
#[derive(Debug)]
struct StopsWhenDropped {
    handle: Handle,
    armed: bool,
}

impl Drop for StopsWhenDropped {
    fn drop(&mut self) {
        if self.armed {
            self.handle.stop();
        }
    }
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
        self.run.handle.clone()
    }

    /// Lets the run go on until every queue has ended or the returned handle stops it. What the CPUs' handlers report at the
    /// end is lost.
    pub fn detach(mut self) -> Handle {
        self.run.armed = false;
        self.handle()
    }

    /// Waits until every queue has ended or a stop is through, and the outputs have finished
    /// ([`Handle::finish_outputs`]). After a stop, a CPU whose handler does not return is left
    /// behind.
    pub fn join(mut self) -> Outcome<R> {
        let mut reports = Vec::with_capacity(self.cpus.len());
        let mut failed = Vec::new();
        let mut give_up: Option<Instant> = None;
        while reports.len() + failed.len() < self.cpus.len() {
            match self.ended.recv_timeout(JOIN_LOOK) {
                Ok((cpu, Some(report))) => reports.push((cpu, report)),
                Ok((cpu, None)) => failed.push(cpu),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if self.run.handle.is_stopping() {
                        let give_up = *give_up.get_or_insert(Instant::now() + DRAIN_MAX + LEAVE_BEHIND_AFTER);
                        if Instant::now() > give_up {
                            break;
                        }
                    }
                }
            }
        }
        // A run that ended by itself was not stopped.
        self.run.armed = false;
        if let Some(watch) = &self.watch {
            // It may have ended with the CPUs' threads.
            let _ = watch.send(());
        }
        let ended = |cpu: &CpuId| failed.contains(cpu) || reports.iter().any(|(reported, _)| reported == cpu);
        let left_behind: Vec<CpuId> = self.cpus.into_iter().filter(|cpu| !ended(cpu)).collect();
        if left_behind.is_empty() {
            // They have nothing left to do but return.
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        reports.sort_by_key(|(cpu, _)| *cpu);
        self.run.handle.finish_outputs();
        Outcome { snapshot: self.run.handle.snapshot(), reports, left_behind, failed }
    }
}
