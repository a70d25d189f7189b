use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use steerage_core::limits::{DRAIN_MAX, JOIN_LOOK, LEAVE_BEHIND_AFTER};
use steerage_core::{error::BuildError, handler::Handler, softnet::CpuPart};
use steerage_ledger::{CpuSnapshot, Snapshot};
use steerage_policy::ControlThread;
use steerage_topology::{CpuId, CpuWatch, PinnedThreads};

use crate::handle::Handle;

/// An instance that was built but does not run yet.
pub struct Instance<H: Handler> {
    pub(crate) parts: Vec<CpuPart<H>>,
    pub(crate) handle: Handle,
    pub(crate) threads: Threads,
}

/// The default stack size of each thread of an instance, in bytes: the default of Rust's threads.
pub const STACK_BYTES: usize = 2 << 20;

/// A handler is moved by value while it is created, so several copies are on the stack: at most
/// seven in a build without optimisation.
const HANDLERS_PER_STACK: usize = 8;

/// The time for which `join` waits for CPUs to close their devices after all packets were handled.
/// Detaching an XDP program may restart the network card, which takes seconds.
const CLOSE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
pub(crate) struct Threads {
    pub(crate) pin: bool,
    pub(crate) idle_poll: Duration,
    pub(crate) stack_size: usize,
}

impl<H: Handler> fmt::Debug for Instance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance on {} CPUs", self.parts.len())
    }
}

impl<H: Handler> Instance<H> {
    /// Returns the handle that changes, reads and stops the instance.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Splits the instance into one part for each CPU. The caller starts, pins and names the
    /// threads that run the parts, and calls [`Handle::control`] regularly. Without calls of
    /// `control`, the policy [`Balance`](crate::Balance) never adds a CPU. The policy
    /// [`Hash`](struct@crate::Hash) works without `control`.
    ///
    /// ```
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// use steerage::{Handler, Instance};
    ///
    /// fn run<H>(instance: Instance<H>)
    /// where
    ///     H: Handler + 'static,
    /// {
    ///     let (parts, handle) = instance.split();
    ///     for part in parts {
    ///         thread::spawn(move || part.enter_machine().run(Duration::ZERO));
    ///     }
    ///     loop {
    ///         let next = handle.control(handle.now());
    ///         let wait = next.map_or(Duration::from_secs(60), |next| next.since(handle.now()));
    ///         if handle.wait_finished(wait) {
    ///             break;
    ///         }
    ///     }
    /// }
    /// ```
    pub fn split(self) -> (Vec<CpuPart<H>>, Handle) {
        (self.parts, self.handle)
    }

    /// Starts one pinned thread for each CPU, and one more thread, which calls [`Handle::control`]
    /// and watches the CPUs.
    ///
    /// # Errors
    /// Fails with [`BuildError::System`] if a thread cannot be started, and with
    /// [`BuildError::HandlerTooLarge`] if a handler takes more than an eighth of the
    /// [stack](crate::Builder::stack_size).
    pub fn start(self) -> Result<Running<H::Report>, BuildError> {
        let bytes = size_of::<H>();
        if bytes > self.threads.stack_size / HANDLERS_PER_STACK {
            return Err(BuildError::HandlerTooLarge { bytes, stack_size: self.threads.stack_size });
        }
        let idle_poll = self.threads.idle_poll;
        let (mut cpus, mut bodies) = (Vec::with_capacity(self.parts.len()), Vec::with_capacity(self.parts.len()));
        let reports = Arc::new(Mutex::new(Vec::with_capacity(self.parts.len())));
        for part in self.parts {
            let (cpu, reports) = (part.cpu(), Arc::clone(&reports));
            cpus.push(cpu);
            bodies.push(Box::new(move || {
                let report = part.enter_machine().run(idle_poll);
                reports.lock().unwrap_or_else(PoisonError::into_inner).push((cpu, report));
            }) as Box<dyn FnOnce() + Send>);
        }
        Ok(Running { threads: CpuThreads::start(cpus, bodies, self.handle, self.threads)?, reports })
    }
}

/// A running instance. Dropping a `Running` stops the run like
/// [`Handle::stop`](steerage_core::control::Handle::stop), without waiting for the run's end.
/// [`join`](Self::join) waits for the end. [`detach`](Self::detach) lets the run continue.
///
/// ```
/// use std::time::Duration;
///
/// use steerage::{BuildError, Handler, Instance, Outcome};
///
/// /// Runs until all inputs have ended, but not longer than `time`.
/// fn run_for<H: Handler>(instance: Instance<H>, time: Duration) -> Result<Outcome<H::Report>, BuildError> {
///     let running = instance.start()?;
///     let handle = running.handle();
///     if !handle.wait_finished(time) {
///         handle.stop();
///     }
///     Ok(running.join())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops the run: join it or detach it"]
pub struct Running<R> {
    threads: CpuThreads,
    reports: Arc<Mutex<Vec<(CpuId, R)>>>,
}

/// The threads of a run. This type does not depend on the handler, so that its code is compiled
/// only once, and not for each handler type.
#[derive(Debug)]
struct CpuThreads {
    run: StopsWhenDropped,
    threads: Vec<JoinHandle<()>>,
    /// The channel that gets, from each thread that ends, its CPU, and true if the receive path has
    /// not panicked.
    ended: Receiver<(CpuId, bool)>,
    cpus: Vec<CpuId>,
    control: ControlThread,
}

/// Stops the run when dropped, so that no thread continues after an error.
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

/// The result of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome<R> {
    /// The packet counters (ledger) at the end of the run.
    pub snapshot: Snapshot,
    /// The reports of the handlers, by CPU.
    pub reports: Vec<(CpuId, R)>,
    /// The CPUs whose threads are still running after the time limit, because their handlers did
    /// not return.
    pub left_behind: Vec<CpuId>,
    /// The CPUs on which the receive path panicked, or on which a handler panicked while it was
    /// created or finished. A CPU whose handler panicked only while it handled packets is not in
    /// `failed`.
    pub failed: Vec<CpuId>,
    /// The CPUs whose reports are incomplete. After a panic, or if a handler did not return in
    /// time, the CPU gets a new handler, and the report covers only the packets of the last
    /// handler.
    pub partial: Vec<CpuId>,
}

impl<R> Outcome<R> {
    /// Returns one sentence for each problem that the numbers in this outcome do not show:
    /// incomplete and missing reports, a slow handler that lost packets, and a device's hash that
    /// fills few buckets.
    pub fn notes(&self) -> Vec<String> {
        let missing = |cpus: &[CpuId], why: &'static str| -> Vec<String> {
            cpus.iter().map(|cpu| format!("CPU {cpu}: its report is missing, because {why}")).collect()
        };
        let failed = missing(&self.failed, "a handler panicked when it was made or finished, or the path failed");
        let left_behind = missing(&self.left_behind, "its handler did not return");
        [self.snapshot.notes.clone(), failed, left_behind].concat()
    }
}

impl<R> Running<R> {
    /// Returns the handle that changes, reads and stops the instance.
    pub fn handle(&self) -> Handle {
        self.threads.run.handle.clone()
    }

    /// Lets the run continue until every queue has ended, or until the returned handle stops the
    /// run. After `detach`, the reports of the handlers are lost.
    pub fn detach(mut self) -> Handle {
        self.threads.run.armed = false;
        self.handle()
    }

    /// Waits until every queue has ended, or until a stop is complete, and then until the outputs
    /// have finished ([`Handle::finish_outputs`](steerage_core::control::Handle::finish_outputs)).
    /// After a stop, `join` does not wait for a CPU whose handler does not return.
    pub fn join(self) -> Outcome<R> {
        let Outcome { snapshot, left_behind, failed, partial, .. } = self.threads.join();
        let mut reports = std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        // A thread that missed the time limit may have reported afterwards.
        reports.retain(|(cpu, _)| !left_behind.contains(cpu));
        reports.sort_by_key(|(cpu, _)| *cpu);
        Outcome { snapshot, reports, left_behind, failed, partial }
    }
}

impl CpuThreads {
    fn start(
        cpus: Vec<CpuId>,
        bodies: Vec<Box<dyn FnOnce() + Send>>,
        handle: Handle,
        with: Threads,
    ) -> Result<Self, BuildError> {
        let pinned = PinnedThreads::new(&cpus);
        // Virtual CPUs cannot go offline.
        let watch = with.pin.then(|| CpuWatch::new(pinned.clone()));
        let failed = |operation| move |error| BuildError::System { operation, error };
        let control = handle.control.start_thread(watch).map_err(failed("start the control thread"))?;
        // If a thread cannot be started, dropping `run` stops the threads before it.
        let run = StopsWhenDropped { handle, armed: true };
        let (to_join, ended) = mpsc::channel();
        let mut threads = Vec::with_capacity(cpus.len());
        for (place, (cpu, body)) in cpus.iter().copied().zip(bodies).enumerate() {
            let (to_join, stops, keeps_control) = (to_join.clone(), run.handle.clone(), control.clone());
            let pinned = with.pin.then(|| pinned.clone());
            let body = move || {
                if let Some(Err(error)) = pinned.map(|pinned| pinned.pin(place)) {
                    tracing::warn!(cpu = cpu.0, "cannot pin a thread to its CPU: {error}");
                }
                let has_ended = catch_unwind(AssertUnwindSafe(body)).is_ok();
                if !has_ended {
                    tracing::error!(cpu = cpu.0, "the receive path panicked; everything stops");
                    stops.stop();
                }
                // `send` fails only if the channel's receiving end was already dropped.
                let _ = to_join.send((cpu, has_ended));
                drop(keeps_control);
            };
            let builder = std::thread::Builder::new().name(format!("steerage/{cpu}")).stack_size(with.stack_size);
            threads.push(builder.spawn(body).map_err(failed("start a thread for each CPU"))?);
        }
        Ok(Self { run, threads, ended, cpus, control })
    }

    /// Waits for the end of the run. The returned outcome has no reports, because their type
    /// depends on the handler.
    fn join(mut self) -> Outcome<()> {
        let (mut ended, mut failed) = (Vec::with_capacity(self.cpus.len()), Vec::new());
        let mut stopping: Option<Instant> = None;
        while ended.len() < self.cpus.len() {
            match self.ended.recv_timeout(JOIN_LOOK) {
                Ok((cpu, has_ended)) => {
                    ended.push(cpu);
                    failed.extend((!has_ended).then_some(cpu));
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let handle = &self.run.handle;
                    if !handle.is_stopping() {
                        continue;
                    }
                    let is_handled = handle.snapshot().in_flight() == 0;
                    let patience = if is_handled { CLOSE_MAX } else { DRAIN_MAX + LEAVE_BEHIND_AFTER };
                    if stopping.get_or_insert_with(Instant::now).elapsed() > patience {
                        break;
                    }
                }
            }
        }
        self.run.armed = false;
        self.control.end();
        let left_behind: Vec<CpuId> = self.cpus.into_iter().filter(|cpu| !ended.contains(cpu)).collect();
        if left_behind.is_empty() {
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        self.run.handle.finish_outputs();
        let snapshot = self.run.handle.snapshot();
        let was_made_again = |cpu: &&CpuSnapshot| cpu.panics + cpu.deaths > 0;
        let partial = snapshot.cpus.iter().filter(was_made_again).map(|cpu| cpu.cpu).collect();
        Outcome { snapshot, reports: Vec::new(), left_behind, failed, partial }
    }
}
