//! A run from its start to its end. The thread that starts the run also waits for its end, for
//! signals, and for timed events: interval reports, the live table and the time limit.

mod options;
mod sources;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use steerage::{Handle, Handler, Instance, Outcome, Snapshot, stats::DropReason};
use steerage_control::Audience;
use steerage_meter::{FlowOutput, Metering};

use crate::error::{EndingError, Error};
use crate::instance::RunServices;
use crate::report::interval::Intervals;
use crate::report::{EndedBy, Interval, Printer, Recorded, Report};
use crate::signals::SignalRequest;
use crate::terminal::{Keys, can_redraw, print_to_stderr, warn};
use crate::view::{LiveTable, RunEnds};

pub(crate) use options::{RunOptions, StopHook, Stopper};

/// The maximum duration of a wait. The value does not matter, because every event ends the wait.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// The maximum delay before the run notices that a key was pressed.
const KEY_LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct FinishedRun<R> {
    pub(crate) report: Report,
    pub(crate) outcome: Outcome<R>,
}

enum RunEvent<R> {
    Signal(SignalRequest),
    Ended(Box<Outcome<R>>),
}

pub(crate) fn to_end<H: Handler>(instance: Instance<H>, options: &RunOptions) -> Result<FinishedRun<H::Report>, Error> {
    let (events_in, events) = mpsc::channel();
    // Signals are handled before the instance starts, so that every signal ends the run properly.
    let (asked, outputs, on_stop) = (events_in.clone(), options.sources.flow_outputs.clone(), options.on_stop.clone());
    options.services.signals.listen(move |what| {
        // After the run, the program may still wait for another process that reads flows too
        // slowly.
        if what == SignalRequest::Stop {
            outputs.iter().for_each(FlowOutput::hurry);
            if let Some(hook) = &on_stop {
                hook.call(EndedBy::Signal);
            }
        }
        asked.send(RunEvent::Signal(what)).is_ok() || !outputs.is_empty() || on_stop.is_some()
    })?;

    let (started, start) = (SystemTime::now(), Instant::now());
    let running = instance.start()?;
    options.stopper.started(running.handle());
    let ends = RunEnds { packets: options.packets, seconds: options.seconds };
    let mut run = Run {
        options,
        handle: running.handle(),
        started,
        start,
        deadline: options.seconds.and_then(|seconds| start.checked_add(seconds)),
        stopped_by: None,
        intervals: options.interval.map(|every| Intervals::new(every, start)),
        live_table: LiveTable::new(options.live_table && can_redraw(), ends, options.sources.meters.is_some()),
    };
    let RunServices { control, tap, web, metrics, service, .. } = &options.services;
    let report = || reports(options, running.handle(), started, start);
    let _shown = control.serve(running.handle(), report(), tap)?;
    let page = web.serve(report())?;
    let _metrics = metrics.serve(Some(running.handle()), options.sources.clone().metrics())?;
    tracing::info!("running; signals are listened to");
    service.ready();
    options.note.iter().for_each(print_to_stderr);
    let waiter = thread::Builder::new().name("join".to_owned()).spawn(move || {
        let _ = events_in.send(RunEvent::Ended(Box::new(running.join())));
    });
    waiter.map_err(|error| Error::System { operation: "start a thread to wait for the end", error })?;

    loop {
        match events.recv_timeout(run.time_to_wait()) {
            Ok(RunEvent::Ended(outcome)) => {
                let notes = options.sources.capture.iter().flat_map(|capture| capture.notes());
                notes.for_each(|note| warn(&note));
                let finished = run.ended(*outcome);
                finished.report.show_on(page);
                return Ok(finished);
            }
            Ok(RunEvent::Signal(SignalRequest::Stop)) => run.stop(EndedBy::Signal),
            Ok(RunEvent::Signal(SignalRequest::Report)) => run.report_now()?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let error = io::Error::other("the thread that waits for it is gone");
                return Err(Error::System { operation: "wait for the end", error });
            }
        }
        run.do_what_is_due()?;
    }
}

/// Returns a function that creates a report as JSON, from any thread.
fn reports(
    options: &RunOptions,
    handle: Handle,
    started: SystemTime,
    start: Instant,
) -> impl Fn(Audience) -> String + Send + Sync + 'static {
    let sources = options.sources.clone();
    move |audience| sources.report(started, start, handle.snapshot(), None).json(audience)
}

struct Run<'a> {
    options: &'a RunOptions,
    handle: Handle,
    started: SystemTime,
    start: Instant,
    /// The time at which the run must end. `None` if the run has no time limit, or if the limit has
    /// been reached.
    deadline: Option<Instant>,
    stopped_by: Option<EndedBy>,
    intervals: Option<Intervals>,
    live_table: LiveTable,
}

impl Run<'_> {
    fn time_to_wait(&self) -> Duration {
        let due = self.deadline.into_iter().chain(self.live_table.due()).chain(self.intervals_due()).min();
        let wait = due.map_or(IDLE_WAIT, |due| due.saturating_duration_since(Instant::now()));
        if self.options.keys.is_some() && self.stopped_by.is_none() { wait.min(KEY_LOOK) } else { wait }
    }

    /// Returns when the next interval report is due. After a request to stop, no report is due.
    fn intervals_due(&self) -> Option<Instant> {
        self.intervals.as_ref().filter(|_| self.stopped_by.is_none()).map(Intervals::due)
    }

    fn do_what_is_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.stop(EndedBy::Seconds);
        }
        if self.intervals_due().is_some_and(|due| due <= now) {
            self.report_interval(now)?;
        }
        for key in self.options.keys.iter().flat_map(Keys::pressed) {
            match key {
                b'q' | b'Q' => self.stop(EndedBy::Signal),
                key => self.live_table.key(key),
            }
        }
        if self.live_table.due().is_some_and(|due| due <= now) {
            let report = self.report(self.handle.snapshot(), None);
            self.live_table.show(&report);
        }
        Ok(())
    }

    /// Prints an interval report. If the reader of the reports is too slow, the next report also
    /// includes the counts of this interval.
    fn report_interval(&mut self, now: Instant) -> Result<(), Error> {
        if self.options.printer.is_stalled() {
            self.intervals.iter_mut().for_each(|intervals| intervals.skip(now));
            return Ok(());
        }
        let interval = self.interval(&self.handle.snapshot());
        self.print(|printer| interval.map_or(Ok(()), |interval| printer.interval(&interval)))
    }

    fn interval(&mut self, snapshot: &Snapshot) -> Option<Interval> {
        let interval = self.intervals.as_mut()?.next(Instant::now(), self.started, self.start, snapshot);
        let recorded = self.options.sources.capture.as_deref().map(Recorded::of);
        let flows = self.options.sources.meters.as_ref().map(Metering::so_far);
        Some(interval.with_capture(recorded.as_ref()).with_flows_so_far(flows))
    }

    fn stop(&mut self, by: EndedBy) {
        self.deadline = None;
        self.stopped_by.get_or_insert(by);
        self.live_table.end();
        if self.options.on_stop.as_ref().is_none_or(|hook| hook.call(by)) {
            self.handle.stop();
        }
        self.options.sources.flow_outputs.iter().for_each(FlowOutput::hurry);
    }

    fn report_now(&mut self) -> Result<(), Error> {
        let report = self.report(self.handle.snapshot(), None);
        self.print(|printer| printer.report(&report))
    }

    /// Prints text above the live table.
    fn print(&mut self, what: impl FnOnce(Printer) -> io::Result<()>) -> Result<(), Error> {
        self.live_table.erase();
        match what(self.options.printer) {
            // The reader has closed the pipe, and would not read the final report either.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.stop(EndedBy::Signal),
            other => other.map_err(EndingError::Report)?,
        }
        self.live_table.redraw();
        Ok(())
    }

    fn ended<R>(mut self, outcome: Outcome<R>) -> FinishedRun<R> {
        self.live_table.end();
        let by = self.stopped_by.unwrap_or_else(|| reason_by_itself(&outcome.snapshot, self.options.packets));
        let last = self.interval(&outcome.snapshot);
        let mut report = self.report(outcome.snapshot.clone(), Some(by));
        report.last = last;
        (report.left_behind, report.panicked) = (outcome.left_behind.len(), outcome.failed.clone());
        FinishedRun { report, outcome }
    }

    fn report(&self, snapshot: Snapshot, ended_by: Option<EndedBy>) -> Report {
        self.options.sources.report(self.started, self.start, snapshot, ended_by)
    }
}

fn reason_by_itself(snapshot: &Snapshot, packets: Option<u64>) -> EndedBy {
    // Packets that the device lost do not count towards the packet limit.
    let handed_over = snapshot.received() - snapshot.dropped().get(DropReason::Device);
    if snapshot.queues.iter().any(|queue| queue.error.is_some()) {
        EndedBy::Error
    } else if packets.is_some_and(|packets| handed_over >= packets) {
        EndedBy::Packets
    } else {
        EndedBy::Input
    }
}
