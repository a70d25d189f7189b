//! A policy control that several threads may call, and the thread that calls this control.
//!
//! The control thread also detects CPUs that go offline or come back, and measures the CPU time of
//! other programs. Packets never wake the control thread and never wait for it.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};
use std::thread;

use steerage_core::control::Handle;
use steerage_core::limits::WATCH_EVERY;
use steerage_flow::Timestamp;
use steerage_topology::CpuWatch;

use crate::activity::Activity;
use crate::control::{PolicyControl, Setting};
use crate::limits::{REFINE_EVERY_MAX, REFINE_RETRY};
use crate::policy::Policy;

/// A [`PolicyControl`] that any thread may call, shared by all clones.
#[derive(Clone, Debug)]
pub struct SharedControl {
    handle: Handle,
    control: Arc<Mutex<PolicyControl>>,
    thread: Arc<OnceLock<Weak<Sender<Call>>>>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Now,
    End,
}

/// Keeps the control thread running until [`end`](Self::end), or until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct ControlThread(Arc<Sender<Call>>);

impl ControlThread {
    /// Asks the thread to end.
    pub fn end(&self) {
        let _ = self.0.send(Call::End);
    }
}

impl SharedControl {
    /// Creates the control of the instance to which `handle` belongs.
    pub fn new(handle: Handle, policy: impl Policy + 'static, setting: Setting) -> Self {
        let control = PolicyControl::new(handle.clone(), policy, setting);
        Self { handle, control: Arc::new(Mutex::new(control)), thread: Arc::default() }
    }

    /// Replaces the policy, as [`PolicyControl::set_policy`] does, and wakes the control thread.
    pub fn set_policy(&self, policy: impl Policy + 'static) {
        self.control.lock().unwrap_or_else(PoisonError::into_inner).set_policy(policy);
        if let Some(thread) = self.thread.get().and_then(Weak::upgrade) {
            let _ = thread.send(Call::Now);
        }
    }

    /// Does the work that is due, as [`PolicyControl::check`] does. If another thread is doing this
    /// work, `check` does not wait, and returns an early time for the next call.
    pub fn check(&self, now: Timestamp) -> Option<Timestamp> {
        match self.control.try_lock() {
            Ok(mut control) => control.check(now),
            Err(TryLockError::Poisoned(control)) => control.into_inner().check(now),
            Err(TryLockError::WouldBlock) => Some(now + REFINE_RETRY),
        }
    }

    /// Starts the control thread; to be called once. With `watch`, the thread also watches which
    /// CPUs are online, and how much other programs use them.
    ///
    /// # Errors
    /// Returns the kernel's error if no thread can be started.
    pub fn start_thread(&self, watch: Option<CpuWatch>) -> io::Result<ControlThread> {
        let (caller, calls) = mpsc::channel();
        let (caller, control) = (Arc::new(caller), self.clone());
        thread::Builder::new().name("steerage/control".into()).spawn(move || control.run(watch, &calls))?;
        let _ = self.thread.set(Arc::downgrade(&caller));
        Ok(ControlThread(caller))
    }

    fn run(&self, mut watch: Option<CpuWatch>, calls: &Receiver<Call>) {
        let mut activity = Activity::default();
        let mut next_watch = watch.is_some().then(|| self.handle.now() + WATCH_EVERY);
        if let Some(watch) = &mut watch {
            self.check_cpus(watch);
            self.control.lock().unwrap_or_else(PoisonError::into_inner).await_others(true);
        }
        loop {
            let next_check = self.check(self.handle.now());
            let now = self.handle.now();
            if let Some(watch) = watch.as_mut().filter(|_| next_watch.is_some_and(|at| now >= at)) {
                self.check_cpus(watch);
                self.control.lock().unwrap_or_else(PoisonError::into_inner).await_others(false);
                let every = if activity.since_last(self.handle.ledgers()) { WATCH_EVERY } else { REFINE_EVERY_MAX };
                next_watch = Some(now + every);
            }
            let call = match next_check.into_iter().chain(next_watch).min() {
                Some(next) => calls.recv_timeout(next.since(self.handle.now())),
                None => calls.recv().map_err(RecvTimeoutError::from),
            };
            if matches!(call, Ok(Call::End) | Err(RecvTimeoutError::Disconnected)) {
                return;
            }
        }
    }

    fn check_cpus(&self, watch: &mut CpuWatch) {
        let found = watch.poll();
        self.handle.set_others_time(&found.others);
        for (cpu, error) in found.not_pinned {
            tracing::warn!(cpu = cpu.0, "cannot pin a thread to its CPU again: {error}");
        }
        if let Some(living) = found.living {
            tracing::warn!(cpus = %living, "CPUs of ours are not the same as before");
            self.handle.set_present_cpus(&living);
        }
    }
}
