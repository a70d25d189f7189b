//! A run from its start to its end: it waits for whatever comes first, and between that draws the live table.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use steerage::{DropReason, Handle, Handler, Instance, Outcome, Snapshot};
use steerage_apps::forward::Forwarding;
use steerage_apps::meter::{Hurry, Metering};
use steerage_apps::respond::Responding;
use steerage_control::metrics::More;
use steerage_device::capture::CaptureInfo;
use steerage_device::synthetic::SyntheticOptions;

use crate::args::RunArgs;
use crate::control::Control;
use crate::error::Error;
use crate::live::{self, Live};
use crate::metrics::{self, Metrics};
use crate::report::interval::Intervals;
use crate::report::{EndedBy, Flows, ForwardReport, Interval, Printer, Recorded, Report, RespondReport};
use crate::setup::Around;
use crate::signals::{Asked, Caught};

/// How long a run may wait for the next event when none is due: there is no event to be missed, so any time will do.
const LONG: Duration = Duration::from_secs(3600);

/// How long synthetic traffic without an end runs where nothing says how long: enough for a steady rate, and nobody's first
/// run has to be interrupted.
const ENDLESS: Duration = Duration::from_secs(10);
const ENDLESS_NOTE: &str = "10 s of synthetic traffic (--seconds 0 for ever, -c N for N packets)";

/// What a run is to do besides its packets.
#[derive(Debug)]
pub(crate) struct Plan {
    /// When to stop.
    pub(crate) seconds: Option<Duration>,
    /// The limit that the device was opened with.
    pub(crate) packets: Option<u64>,
    /// Where reports go.
    pub(crate) printer: Printer,
    /// How often there is one, if at all.
    pub(crate) interval: Option<Duration>,
    /// What to tell on standard error once it runs.
    pub(crate) note: Option<&'static str>,
    /// The live table, if standard error is a terminal.
    pub(crate) live: bool,
    /// What is known of the capture files, if there are any.
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// How it is asked and told while it runs.
    pub(crate) control: Control,
    /// How it is stopped.
    pub(crate) signals: Caught,
    /// Who knows what was forwarded, if anything is.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// Who knows what was answered, if anything is.
    pub(crate) responding: Option<Arc<Responding>>,
    /// Where Prometheus asks.
    pub(crate) metrics: Metrics,
    /// Who knows of flows, if they are metered.
    pub(crate) meters: Option<Metering>,
    /// Who writes flows, if anybody does: to be told that somebody wants an end.
    pub(crate) hurry: Option<Hurry>,
    /// What else can stop it.
    pub(crate) stopper: Stopper,
}

impl Plan {
    /// By the command line.
    pub(crate) fn new(args: &RunArgs, verbose: bool, around: Around) -> Self {
        let endless = args.stop.seconds.is_none() && is_endless(args);
        Self {
            seconds: if endless { Some(ENDLESS) } else { args.stop.seconds.filter(|seconds| !seconds.is_zero()) },
            packets: args.stop.packets,
            printer: Printer::new(&args.report, false),
            interval: args.report.interval,
            note: (endless && !args.report.quiet).then_some(ENDLESS_NOTE),
            live: !args.report.quiet && !verbose,
            capture: around.capture,
            control: around.control,
            signals: around.signals,
            forwarding: None,
            responding: None,
            metrics: around.metrics,
            meters: None,
            hurry: None,
            stopper: Stopper::default(),
        }
    }
}

/// Whether there are always more packets.
fn is_endless(args: &RunArgs) -> bool {
    let endless = |device: &String| SyntheticOptions::parse(device).is_ok_and(|options| options.packets.is_none());
    args.stop.packets.is_none() && args.devices.iter().any(endless)
}

/// Stops a run from any thread: at once, or as soon as it has begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopper(Arc<Mutex<Stoppable>>);

#[derive(Debug, Default)]
struct Stoppable {
    run: Option<Handle>,
    stopped: bool,
}

impl Stopper {
    /// Stops the run.
    pub(crate) fn stop(&self) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stoppable.stopped = true;
        stoppable.run.iter().for_each(Handle::stop);
    }

    fn begins(&self, run: Handle) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stoppable.stopped {
            run.stop();
        }
        stoppable.run = Some(run);
    }
}

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Ended<R> {
    /// The report, without what the command alone knows.
    pub(crate) report: Report,
    /// What the instance came to; its snapshot is in the report.
    pub(crate) outcome: Outcome<R>,
}

/// What the run waits for.
enum Event<R> {
    Asked(Asked),
    Ended(Box<Outcome<R>>),
}

/// Starts the instance and waits until its input ends, the plan's time is over or a signal asks to stop.
pub(crate) fn to_end<H: Handler>(instance: Instance<H>, plan: &Plan) -> Result<Ended<H::Report>, Error> {
    let (events_in, events) = mpsc::channel();
    // Before the start, so that no signal finds a run that it cannot end well.
    let (asked, hurry) = (events_in.clone(), plan.hurry.clone());
    plan.signals.listen(move |what| {
        // Also of a run that is over, and only waits for a reader.
        if what == Asked::Stop {
            hurry.iter().for_each(Hurry::hurry);
        }
        asked.send(Event::Asked(what)).is_ok() || hurry.is_some()
    })?;

    let (started, start) = (SystemTime::now(), Instant::now());
    let running = instance.start()?;
    plan.stopper.begins(running.handle());
    let mut run = Run {
        plan,
        handle: running.handle(),
        started,
        start,
        deadline: plan.seconds.and_then(|seconds| start.checked_add(seconds)),
        stopped_by: None,
        intervals: plan.interval.map(|every| Intervals::new(every, start)),
        live: Live::new(plan.live && live::is_possible(), plan, start),
    };
    let _shown = plan.control.show(running.handle(), reports(plan, running.handle(), started, start))?;
    let _metrics = plan.metrics.serve(running.handle(), Sources::of(plan).metrics())?;
    tracing::info!("running; signals are listened to");
    if let Some(note) = plan.note {
        let _ = writeln!(io::stderr(), "{note}");
    }
    let waiter = thread::Builder::new().name("join".to_owned()).spawn(move || {
        let _ = events_in.send(Event::Ended(Box::new(running.join())));
    });
    waiter.map_err(|error| Error::System { operation: "start a thread to wait for the end", error })?;

    loop {
        match events.recv_timeout(run.time_to_wait()) {
            Ok(Event::Ended(outcome)) => return Ok(run.ended(*outcome)),
            Ok(Event::Asked(Asked::Stop)) => run.stop(EndedBy::Signal),
            Ok(Event::Asked(Asked::Report)) => run.report_now()?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let error = io::Error::other("the thread that waits for it is gone");
                return Err(Error::System { operation: "wait for the end", error });
            }
        }
        run.look_at_the_clock()?;
    }
}

/// Makes reports from any thread, as JSON: what the control socket is asked for.
fn reports(
    plan: &Plan,
    handle: Handle,
    started: SystemTime,
    start: Instant,
) -> impl Fn() -> String + Send + Sync + 'static {
    let sources = Sources::of(plan);
    move || sources.report(started, start, handle.snapshot(), None).json()
}

/// Who knows what a report tells besides the ledger.
struct Sources {
    capture: Option<Arc<CaptureInfo>>,
    forwarding: Option<Arc<Forwarding>>,
    responding: Option<Arc<Responding>>,
    meters: Option<Metering>,
}

impl Sources {
    fn of(plan: &Plan) -> Self {
        let Plan { capture, forwarding, responding, meters, .. } = plan;
        let (forwarding, responding) = (forwarding.clone(), responding.clone());
        Self { capture: capture.clone(), forwarding, responding, meters: meters.clone() }
    }

    /// What the packet function has to tell besides.
    fn metrics(self) -> Option<More> {
        let flows = self.meters.map(metrics::of_flows);
        let forwarding = self.forwarding.map(metrics::of_forwarding);
        flows.or(forwarding).or_else(|| self.responding.map(metrics::of_responding))
    }

    fn report(&self, started: SystemTime, start: Instant, snapshot: Snapshot, ended_by: Option<EndedBy>) -> Report {
        let capture = self.capture.as_deref().map(Recorded::of);
        let forwarded = self.forwarding.as_deref().map(ForwardReport::of);
        let responded = self.responding.as_deref().map(|responding| RespondReport::of(responding, &snapshot));
        let so_far = |meters: &Metering| Flows::SoFar { counts: meters.so_far(), largest: meters.largest_so_far() };
        let flows = self.meters.as_ref().map(so_far);
        Report { capture, flows, forwarded, responded, ..Report::new(started, start.elapsed(), ended_by, snapshot) }
    }
}

/// A run under way, seen from the thread that watches it.
struct Run<'a> {
    plan: &'a Plan,
    handle: Handle,
    started: SystemTime,
    start: Instant,
    /// When to stop; gone once it has passed.
    deadline: Option<Instant>,
    /// Who asked first.
    stopped_by: Option<EndedBy>,
    intervals: Option<Intervals>,
    live: Live,
}

impl Run<'_> {
    /// Until something is due by the clock.
    fn time_to_wait(&self) -> Duration {
        let due = self.deadline.into_iter().chain(self.live.due()).chain(self.intervals_due()).min();
        due.map_or(LONG, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Once it is asked to stop, what is left is told by the last one.
    fn intervals_due(&self) -> Option<Instant> {
        self.intervals.as_ref().filter(|_| self.stopped_by.is_none()).map(Intervals::due)
    }

    fn look_at_the_clock(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.stop(EndedBy::Seconds);
        }
        if self.intervals_due().is_some_and(|due| due <= now) {
            self.tell_interval(now)?;
        }
        self.live.draw_if_due(now, || self.handle.snapshot());
        Ok(())
    }

    /// A reader that reads no more does not hold up the run: what it is not told is part of what it is told next.
    fn tell_interval(&mut self, now: Instant) -> Result<(), Error> {
        if self.plan.printer.is_stalled() {
            self.intervals.iter_mut().for_each(|intervals| intervals.skip(now));
            return Ok(());
        }
        let interval = self.interval(&self.handle.snapshot());
        self.print(|printer| interval.map_or(Ok(()), |interval| printer.interval(&interval)))
    }

    fn interval(&mut self, snapshot: &Snapshot) -> Option<Interval> {
        let interval = self.intervals.as_mut()?.next(Instant::now(), self.started, self.start, snapshot);
        let recorded = self.plan.capture.as_deref().map(Recorded::of);
        let flows = self.plan.meters.as_ref().map(Metering::so_far);
        Some(interval.with_capture(recorded.as_ref()).with_flows_so_far(flows))
    }

    fn stop(&mut self, by: EndedBy) {
        self.deadline = None;
        self.stopped_by.get_or_insert(by);
        self.live.end();
        self.handle.stop();
        self.plan.hurry.iter().for_each(Hurry::hurry);
    }

    fn report_now(&mut self) -> Result<(), Error> {
        let report = self.report(self.handle.snapshot(), None);
        self.print(|printer| printer.report(&report))
    }

    /// Prints while the run goes on: the live table makes room, and comes back below.
    fn print(&mut self, what: impl FnOnce(Printer) -> io::Result<()>) -> Result<(), Error> {
        self.live.step_aside();
        match what(self.plan.printer) {
            // Nobody will read the last report either.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.stop(EndedBy::Signal),
            other => other.map_err(Error::Report)?,
        }
        self.live.come_back();
        Ok(())
    }

    fn ended<R>(mut self, outcome: Outcome<R>) -> Ended<R> {
        self.live.end();
        let by = self.stopped_by.unwrap_or_else(|| of_its_own(&outcome.snapshot, self.plan.packets));
        let last = self.interval(&outcome.snapshot);
        Ended { report: Report { last, ..self.report(outcome.snapshot.clone(), Some(by)) }, outcome }
    }

    fn report(&self, snapshot: Snapshot, ended_by: Option<EndedBy>) -> Report {
        Sources::of(self.plan).report(self.started, self.start, snapshot, ended_by)
    }
}

/// Why a run ended that nobody stopped.
fn of_its_own(snapshot: &Snapshot, packets: Option<u64>) -> EndedBy {
    // The limit counts what the device handed over, not what it lost.
    let handed_over = snapshot.received() - snapshot.dropped().get(DropReason::Device);
    if snapshot.queues.iter().any(|queue| queue.error.is_some()) {
        EndedBy::Error
    } else if packets.is_some_and(|packets| handed_over >= packets) {
        EndedBy::Packets
    } else {
        EndedBy::Input
    }
}
