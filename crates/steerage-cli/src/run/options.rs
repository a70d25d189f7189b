//! The options of a run that do not concern packets, and the [`Stopper`], which stops a run from
//! another thread.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::Handle;
use steerage_device::synthetic::SyntheticOptions;

use super::sources::ReportSources;
use crate::args::RunArgs;
use crate::instance::RunServices;
use crate::report::{EndedBy, Printer};
use crate::terminal::Keys;

/// The time limit for synthetic traffic for which the user has set no limit. This time is long
/// enough for a steady rate, and short enough that users need not interrupt their first run.
const ENDLESS: Duration = Duration::from_secs(10);
const ENDLESS_NOTE: &str = "10 s of synthetic traffic (--seconds 0 for no end, -c N for N packets)";

#[derive(Debug)]
pub(crate) struct RunOptions {
    pub(crate) seconds: Option<Duration>,
    /// The limit on packets. The devices were opened with the same limit.
    pub(crate) packets: Option<u64>,
    pub(crate) printer: Printer,
    pub(crate) interval: Option<Duration>,
    pub(crate) note: Option<&'static str>,
    pub(crate) live_table: bool,
    pub(crate) sources: ReportSources,
    pub(crate) services: RunServices,
    pub(crate) keys: Option<Keys>,
    pub(crate) stopper: Stopper,
    pub(crate) on_stop: Option<StopHook>,
}

/// A function that is called when the user or a time limit requests a stop, until the program ends.
/// A `StopHook` returns false if the run will end on its own.
#[derive(Clone)]
pub(crate) struct StopHook(Arc<dyn Fn(EndedBy) -> bool + Send + Sync>);

impl StopHook {
    pub(crate) fn new(hook: impl Fn(EndedBy) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(super) fn call(&self, by: EndedBy) -> bool {
        (self.0)(by)
    }
}

impl fmt::Debug for StopHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopHook")
    }
}

impl RunOptions {
    pub(crate) fn new(args: &RunArgs, verbose: bool, services: RunServices) -> Self {
        let endless = args.stop.seconds.is_none() && is_endless(args);
        Self {
            seconds: if endless { Some(ENDLESS) } else { args.stop.seconds.filter(|seconds| !seconds.is_zero()) },
            packets: args.stop.packets,
            printer: Printer::new(&args.report, false),
            interval: args.report.interval,
            note: (endless && !args.report.quiet).then_some(ENDLESS_NOTE),
            live_table: !args.report.quiet && !verbose,
            ..Self::of(services, verbose)
        }
    }

    /// Returns the options of a run without limits.
    pub(crate) fn of(services: RunServices, verbose: bool) -> Self {
        let (capture, sandbox) = (services.capture.clone(), services.sandbox);
        Self {
            seconds: None,
            packets: None,
            printer: Printer::to_stdout(false),
            interval: None,
            note: None,
            live_table: !verbose,
            sources: ReportSources { capture, sandbox, verbose, ..ReportSources::default() },
            services,
            keys: None,
            stopper: Stopper::default(),
            on_stop: None,
        }
    }
}

fn is_endless(args: &RunArgs) -> bool {
    let endless = |device: &String| SyntheticOptions::parse(device).is_ok_and(|options| options.packets.is_none());
    args.stop.packets.is_none() && args.devices.iter().any(endless)
}

/// Stops a run from any thread, even before the run starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopper(Arc<Mutex<Stoppable>>);

#[derive(Debug, Default)]
struct Stoppable {
    run: Option<Handle>,
    stopped: bool,
}

impl Stopper {
    pub(crate) fn stop(&self) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stoppable.stopped = true;
        stoppable.run.iter().for_each(|handle| handle.stop());
    }

    pub(crate) fn dropped(&self) -> u64 {
        let run = self.0.lock().unwrap_or_else(PoisonError::into_inner).run.clone();
        run.map_or(0, |run| run.snapshot().dropped().total())
    }

    pub(super) fn started(&self, run: Handle) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stoppable.stopped {
            run.stop();
        }
        stoppable.run = Some(run);
    }
}
