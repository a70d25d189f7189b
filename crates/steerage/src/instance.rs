//! A built instance, which runs on its own threads or is split into parts for the caller's threads.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use steerage_core::error::BuildError;
use steerage_core::handler::Handler;
use steerage_core::limits::{DRAIN_MAX, JOIN_LOOK, LEAVE_BEHIND_AFTER};
use steerage_core::softnet::CpuPart;
use steerage_ledger::{CpuSnapshot, Snapshot};
use steerage_policy::ControlThread;
use steerage_topology::{CpuId, CpuWatch, PinnedThreads};

use crate::handle::Handle;

/// An instance that has been built and does not run yet.
pub struct Instance<H: Handler> {
    parts: Vec<CpuPart<H>>,
    handle: Handle,
    threads: Threads,
}

/// The stack of each thread of an instance, in bytes, as that of Rust's threads.
pub const STACK_BYTES: usize = 2 << 20;

/// How long a join waits for CPUs that close their devices after all packets were handled. A driver may
/// restart its card when its XDP program is detached, which takes seconds.
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
    pub(crate) fn new(parts: Vec<CpuPart<H>>, handle: Handle, threads: Threads) -> Self {
        Self { parts, handle, threads }
    }

    /// The handle that changes, reads and stops the instance.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Splits the instance into one part per CPU, which the caller runs on its own threads. No
    /// thread is started, pinned or named. The caller must also call [`Handle::control`].
    /// Otherwise, the policy never checks the load: with [`Balance`](crate::Balance), no CPU ever
    /// joins. [`Hash`](struct@crate::Hash) needs no calls.
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
        let handle = self.handle();
        (self.parts, handle)
    }

    /// Starts a pinned thread for each CPU. Starts another thread that calls [`Handle::control`]
    /// and watches the CPUs.
    ///
    /// # Errors
    /// [`BuildError::System`] if a thread cannot be started.
    pub fn start(self) -> Result<Running<H::Report>, BuildError> {
        let (handle, Threads { pin, idle_poll, stack_size }) = (self.handle(), self.threads);
        let (to_join, ended) = mpsc::channel();
        let mut threads = Vec::with_capacity(self.parts.len());
        let cpus: Vec<CpuId> = self.parts.iter().map(CpuPart::cpu).collect();
        let pinned = PinnedThreads::new(&cpus);
        // Virtual CPUs cannot go offline.
        let watch = pin.then(|| CpuWatch::new(pinned.clone()));
        let control = handle
            .control
            .start_thread(watch)
            .map_err(|error| BuildError::System { operation: "start the control thread", error })?;
        for (place, part) in self.parts.into_iter().enumerate() {
            let (to_join, handle, control) = (to_join.clone(), handle.clone(), control.clone());
            let pinned = pin.then(|| pinned.clone());
            let cpu = part.cpu();
            let body = move || {
                if let Some(Err(error)) = pinned.map(|pinned| pinned.pin(place)) {
                    tracing::warn!(cpu = cpu.0, "cannot pin a thread to its CPU: {error}");
                }
                let report = catch_unwind(AssertUnwindSafe(|| part.enter_machine().run(idle_poll)));
                if report.is_err() {
                    tracing::error!(cpu = cpu.0, "the receive path panicked; everything stops");
                    handle.stop();
                }
                // The receiving end may already be dropped.
                let _ = to_join.send((cpu, report.ok()));
                drop(control);
            };
            let thread = std::thread::Builder::new().name(format!("steerage/{cpu}")).stack_size(stack_size).spawn(body);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    self.handle.stop();
                    return Err(BuildError::System { operation: "start a thread for each CPU", error });
                }
            }
        }
        Ok(Running { run: StopsWhenDropped { handle, armed: true }, threads, ended, cpus, control })
    }
}

/// A running instance. Dropping this value stops the run, as
/// [`Handle::stop`](steerage_core::control::Handle::stop) does, and does not wait for the end.
/// [`join`](Self::join) waits for the end, and [`detach`](Self::detach) lets the run continue
/// without this value.
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
    run: StopsWhenDropped,
    threads: Vec<JoinHandle<()>>,
    ended: Receiver<(CpuId, Option<R>)>,
    cpus: Vec<CpuId>,
    control: ControlThread,
}

/// Stops the run when dropped, so that an error does not leave the run's threads running.
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
    /// The ledger at the end.
    pub snapshot: Snapshot,
    /// The report of each CPU's handler.
    pub reports: Vec<(CpuId, R)>,
    /// CPUs that did not end in time because their handlers did not return. The threads of these
    /// CPUs are still running.
    pub left_behind: Vec<CpuId>,
    /// CPUs on which the path panicked, or on which a handler panicked while it was created or
    /// finished. Panics while a handler handles packets are not included.
    pub failed: Vec<CpuId>,
    /// CPUs whose reports are incomplete, because their handlers were made again after a panic or
    /// because they did not return in time. These reports cover only the packets after the last
    /// time.
    pub partial: Vec<CpuId>,
}

impl<R> Outcome<R> {
    /// What the numbers of the outcome alone do not show, in one sentence each: incomplete and
    /// missing reports, a slow handler that lost packets, a device's hash that fills few buckets.
    /// Empty after a run without such an event.
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
    /// The handle that changes, reads and stops the instance.
    pub fn handle(&self) -> Handle {
        self.run.handle.clone()
    }

    /// Lets the run continue until every queue has ended or the returned handle stops it. The final
    /// reports of the handlers are lost.
    pub fn detach(mut self) -> Handle {
        self.run.armed = false;
        self.handle()
    }

    /// Waits until every queue has ended or a stop is complete, and until the outputs have finished
    /// ([`Handle::finish_outputs`](steerage_core::control::Handle::finish_outputs)). After a stop,
    /// `join` does not wait for a CPU whose handler does not return.
    pub fn join(mut self) -> Outcome<R> {
        let mut reports = Vec::with_capacity(self.cpus.len());
        let mut failed = Vec::new();
        let mut stopping: Option<Instant> = None;
        while reports.len() + failed.len() < self.cpus.len() {
            match self.ended.recv_timeout(JOIN_LOOK) {
                Ok((cpu, Some(report))) => reports.push((cpu, report)),
                Ok((cpu, None)) => failed.push(cpu),
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
        let ended = |cpu: &CpuId| failed.contains(cpu) || reports.iter().any(|(reported, _)| reported == cpu);
        let left_behind: Vec<CpuId> = self.cpus.into_iter().filter(|cpu| !ended(cpu)).collect();
        if left_behind.is_empty() {
            self.threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        reports.sort_by_key(|(cpu, _)| *cpu);
        self.run.handle.finish_outputs();
        let snapshot = self.run.handle.snapshot();
        let was_made_again = |cpu: &&CpuSnapshot| cpu.panics + cpu.deaths > 0;
        let partial = snapshot.cpus.iter().filter(was_made_again).map(|cpu| cpu.cpu).collect();
        Outcome { snapshot, reports, left_behind, failed, partial }
    }
}
