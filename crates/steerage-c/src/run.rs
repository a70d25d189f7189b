use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steerage::flow::Layers;
use steerage::limits::{BACKLOG_MAX, CPUS_MAX};
use steerage::policy::{POLICIES, Policy};
use steerage::topology::Topology;
use steerage::{Builder, CpuId, CpuMask, Handle, Handler, Outcome, Running, Snapshot};
use steerage_capture::CaptureOptions;
use steerage_device::Opened;

use crate::failure::{Code, Failure};

/// An unlimited wait consists of several waits of one hour, because no `Instant` is infinitely far
/// in the future.
const WAIT: Duration = Duration::from_secs(3600);

/// The type `steerage` of the C header.
pub(crate) struct Run {
    stage: Mutex<Stage>,
    /// The handle is outside of the lock, so that no call waits for another thread that runs
    /// `join`. `start` sets the handle before the first thread starts, because the program's
    /// functions may use it at once.
    handle: OnceLock<Handle>,
    /// True if a stop was requested, perhaps before the run had a handle.
    is_stopped: AtomicBool,
    /// Why the threads could not be started.
    not_started: OnceLock<Failure>,
    notes: CString,
}

enum Stage {
    Opened(Opened, Options),
    Running(Running<()>),
    /// A call on another thread is changing the stage of the run.
    Changing,
    Ended(Result<(), Failure>),
}

#[derive(Default)]
struct Options {
    cpus: Option<String>,
    rps_cpus: Option<String>,
    rps_cpus_list: Option<String>,
    policy: Option<Box<dyn Policy>>,
    virtual_cpus: Option<usize>,
    backlog: Option<usize>,
    packets: Option<u64>,
    outer: bool,
}

const OPTIONS: &str = "cpus, rps-cpus, rps-cpus-list, policy, virtual-cpus, backlog, packets, outer";

impl Options {
    fn set(&mut self, option: &str, value: &str) -> Result<(), Failure> {
        match option {
            "cpus" => self.cpus = Some(value.to_owned()),
            "rps-cpus" => self.rps_cpus = Some(value.to_owned()),
            "rps-cpus-list" => self.rps_cpus_list = Some(value.to_owned()),
            "policy" => {
                let unknown = |_| wrong(option, value, &format!("one of {}", POLICIES.join(", ")));
                self.policy = Some(value.parse().map_err(unknown)?);
            }
            "virtual-cpus" => self.virtual_cpus = Some(number(option, value, CPUS_MAX)?),
            "backlog" => self.backlog = Some(number(option, value, BACKLOG_MAX)?),
            "packets" => self.packets = Some(number(option, value, usize::MAX)? as u64),
            "outer" if value == "yes" => self.outer = true,
            "outer" => return Err(wrong(option, value, "yes")),
            _ => {
                return Err(Failure::new(
                    Code::Argument,
                    format!("there is no option `{option}`: use one of {OPTIONS}"),
                ));
            }
        }
        Ok(())
    }

    fn builder(self) -> Result<Builder, Failure> {
        let Self { cpus, rps_cpus, rps_cpus_list, policy, virtual_cpus, backlog, outer, packets: _ } = self;
        let nr = virtual_cpus.unwrap_or_else(nr_cpu_ids);
        let mut builder = Builder::new();
        if let Some(count) = virtual_cpus {
            builder = builder.virtual_cpus(count);
        }
        if let Some(list) = cpus {
            builder = builder.cpus(cpu_list("cpus", &list, nr)?);
        }
        if let Some(mask) = rps_cpus {
            let mask = CpuMask::parse_bitmap(&mask, nr);
            builder =
                builder.rps_cpus(mask.map_err(|error| Failure::new(Code::Argument, format!("rps-cpus: {error}")))?);
        }
        if let Some(list) = rps_cpus_list {
            builder = builder.rps_cpus(cpu_list("rps-cpus-list", &list, nr)?);
        }
        if let Some(frames) = backlog {
            builder = builder.backlog(frames);
        }
        if outer {
            builder = builder.layers(Layers::Outer);
        }
        Ok(match policy {
            Some(policy) => builder.policy(policy),
            None => builder,
        })
    }
}

fn wrong(option: &str, value: &str, expected: &str) -> Failure {
    Failure::new(Code::Argument, format!("{option}: `{value}` is wrong: write {expected}"))
}

fn number(option: &str, value: &str, most: usize) -> Result<usize, Failure> {
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| wrong(option, value, &format!("a number from 1 to {most}")))
}

fn nr_cpu_ids() -> usize {
    Topology::read().nr_cpu_ids().unwrap_or(CPUS_MAX)
}

fn cpu_list(option: &str, list: &str, nr: usize) -> Result<CpuMask, Failure> {
    CpuMask::parse_list(list, nr).map_err(|error| Failure::new(Code::Argument, format!("{option}: {error}")))
}

impl Run {
    pub(crate) fn open(inputs: &[&str], filter: Option<&str>) -> Result<Self, Failure> {
        if let Some(input) = inputs.iter().find(|input| filter.is_some() && !steerage_device::takes_filter(input)) {
            let text =
                format!("{input}: this input takes no filter: open interfaces or capture files, or pass no filter");
            return Err(Failure::new(Code::Filter, text));
        }
        let files = filter.into_iter().fold(CaptureOptions::new(), CaptureOptions::filter);
        let opened = steerage_device::open_all_with(inputs, &files, |interface| {
            let options = steerage_device::af_packet::AfPacketOptions::new(interface);
            Ok(match filter {
                Some(filter) => options.filtered(filter)?,
                None => options,
            })
        })?;
        let notes = CString::new(opened.notes.join("\n").replace('\0', "")).unwrap_or_default();
        let (handle, is_stopped, not_started) = Default::default();
        let stage = Mutex::new(Stage::Opened(opened, Options::default()));
        Ok(Self { stage, handle, is_stopped, not_started, notes })
    }

    pub(crate) fn notes(&self) -> &CString {
        &self.notes
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, option: &str, value: &str) -> Result<(), Failure> {
        match &mut *self.stage() {
            Stage::Opened(_, options) => options.set(option, value),
            _ => {
                Err(Failure::new(Code::State, format!("cannot set {option}: the run has started; set options before")))
            }
        }
    }

    pub(crate) fn start<H: Handler<Report = ()>>(
        &self,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        let mut stage = self.stage();
        let (opened, options) = match std::mem::replace(&mut *stage, Stage::Changing) {
            Stage::Opened(opened, options) => (opened, options),
            other => {
                *stage = other;
                return Err(Failure::new(Code::State, "cannot start the run: it has started; open another one"));
            }
        };
        match self.started(opened, options, make) {
            Ok(running) => {
                *stage = Stage::Running(running);
                Ok(())
            }
            Err(failure) => {
                let _ = self.not_started.set(failure.clone());
                *stage = Stage::Ended(Err(failure.clone()));
                Err(failure)
            }
        }
    }

    fn started<H: Handler<Report = ()>>(
        &self,
        opened: Opened,
        options: Options,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> Result<Running<()>, Failure> {
        let opened = match options.packets {
            Some(packets) => opened.limited(packets),
            None => opened,
        };
        let builder = opened.inputs.into_iter().fold(options.builder()?, Builder::input);
        let instance = builder.build(make)?;
        let handle = self.handle.get_or_init(|| instance.handle());
        // Pairs with the fence in `stop`: this thread sees the request, or `stop` sees the handle.
        fence(Ordering::SeqCst);
        if self.is_stopped.load(Ordering::Relaxed) {
            handle.stop();
        }
        Ok(instance.start()?)
    }

    pub(crate) fn handle(&self) -> Result<&Handle, Failure> {
        if let Some(failure) = self.not_started.get() {
            return Err(failure.clone());
        }
        let not_yet = || Failure::new(Code::State, "the run has not started: call steerage_start first");
        self.handle.get().ok_or_else(not_yet)
    }

    /// Stops the run, without taking a lock or allocating memory, so that signal handlers can call
    /// this function. May be called before the start.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Pairs with the fence in `started`.
        fence(Ordering::SeqCst);
        if let Some(handle) = self.handle.get() {
            handle.stop();
        }
    }

    /// Waits until `wait` returns true, for at most `timeout_ms`, or without a limit if
    /// `timeout_ms` is negative.
    pub(crate) fn wait(&self, timeout_ms: i64, wait: fn(&Handle, Duration) -> bool) -> Result<bool, Failure> {
        let handle = self.handle()?;
        let timeout = u64::try_from(timeout_ms).map(Duration::from_millis).ok();
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = end.map_or(WAIT, |end| end.saturating_duration_since(Instant::now()).min(WAIT));
            if wait(handle, left) {
                return Ok(true);
            }
            // Counters do not change any more after the end of the run.
            if left.is_zero() || handle.is_finished() {
                return Ok(wait(handle, Duration::ZERO));
            }
        }
    }

    pub(crate) fn join(&self) -> Result<(), Failure> {
        let running = {
            let mut stage = self.stage();
            match std::mem::replace(&mut *stage, Stage::Changing) {
                Stage::Running(running) => running,
                Stage::Ended(ended) => {
                    *stage = Stage::Ended(ended.clone());
                    return ended;
                }
                Stage::Changing => {
                    return Err(Failure::new(Code::State, "cannot wait for the end: another thread waits for it"));
                }
                opened @ Stage::Opened(..) => {
                    *stage = opened;
                    return self.handle().map(drop);
                }
            }
        };
        let ended = result(&running.join());
        *self.stage() = Stage::Ended(ended.clone());
        ended
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        Ok(self.handle()?.snapshot())
    }

    pub(crate) fn set_mask(&self, queue: Option<u32>, list: &str) -> Result<(), Failure> {
        let handle = self.handle()?;
        // The setters check whether the instance has these CPUs, which need not be CPUs of this
        // machine (virtual CPUs).
        let mask = cpu_list("rps-cpus-list", list, CPUS_MAX)?;
        match queue {
            Some(queue) => handle.set_queue_rps_cpus(queue as usize, &mask)?,
            None => handle.set_rps_cpus(&mask)?,
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
        let _ = self.join();
    }
}

/// Returns an error if not all packets were read and handled.
fn result(outcome: &Outcome<()>) -> Result<(), Failure> {
    if let Some(cpu) = outcome.left_behind.first() {
        let text = format!("CPU {cpu}: a function of the program has not returned: functions must not wait");
        return Err(Failure::new(Code::Stuck, text));
    }
    if let Some(cpu) = outcome.failed.first() {
        return Err(Failure::new(Code::Internal, format!("CPU {cpu} has failed: this is a bug in libsteerage")));
    }
    match outcome.snapshot.queues.iter().find_map(|queue| queue.error.as_ref()) {
        Some(error) => Err(Failure::new(Code::Read, &error.message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steerage::{Batch, Cpu};

    use super::*;

    struct Nothing;

    impl Handler for Nothing {
        type Moved = ();
        type Report = ();

        fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

        fn finish(self, _: &mut Cpu) {}
    }

    fn opened() -> Arc<Run> {
        let run = Run::open(&["synthetic"], None).unwrap();
        run.set("virtual-cpus", "4").unwrap();
        Arc::new(run)
    }

    /// A signal may request the stop before the start.
    #[test]
    fn a_stop_before_the_start_ends_the_run() {
        let run = opened();
        run.stop();
        run.start(|_| Nothing).unwrap();
        assert!(run.wait(20_000, |handle, time| handle.wait_finished(time)).unwrap());
        run.join().unwrap();
    }

    /// Packet threads run before `start` returns.
    #[test]
    fn functions_may_use_the_run_from_their_first_call_on() {
        let run = opened();
        let (of_functions, missing) = (Arc::clone(&run), Arc::new(AtomicBool::new(false)));
        let is_missing = Arc::clone(&missing);
        let make = move |_| {
            is_missing.fetch_or(of_functions.handle().is_err(), Ordering::Relaxed);
            of_functions.stop();
            Nothing
        };
        run.start(make).unwrap();
        run.join().unwrap();
        assert!(!missing.load(Ordering::Relaxed));
    }
}
