//! What a run does besides handling packets, and how another thread stops it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::Handle;
use steerage_apps::forward::Forwarding;
use steerage_apps::meter::{Hurry, Metering};
use steerage_apps::respond::Responding;
use steerage_device::capture::CaptureInfo;
use steerage_device::synthetic::SyntheticOptions;

use crate::args::RunArgs;
use crate::control_tree::ControlTree;
use crate::instance::RunServices;
use crate::metrics::Metrics;
use crate::report::Printer;
use crate::signals::SignalHandlers;

/// How long endless synthetic traffic runs if the command line gives no limit: long enough for a steady rate, and short
/// enough that nobody has to interrupt a first run.
const ENDLESS: Duration = Duration::from_secs(10);
const ENDLESS_NOTE: &str = "10 s of synthetic traffic (--seconds 0 for ever, -c N for N packets)";

/// What a run does besides handling packets.
#[derive(Debug)]
pub(crate) struct RunOptions {
    /// The time after which the run stops.
    pub(crate) seconds: Option<Duration>,
    /// The number of packets after which the run stops; the devices were opened with this limit.
    pub(crate) packets: Option<u64>,
    /// Writes the reports.
    pub(crate) printer: Printer,
    /// The time between two interval reports.
    pub(crate) interval: Option<Duration>,
    /// A note for standard error once the run has started.
    pub(crate) note: Option<&'static str>,
    /// Whether to draw the live table, if standard error is a terminal.
    pub(crate) live_table: bool,
    /// What is known about the capture files, if there are any.
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// The control tree, by which the run is watched and changed.
    pub(crate) control: ControlTree,
    /// The signals that stop the run or ask for a report.
    pub(crate) signals: SignalHandlers,
    /// The counters of `forward`.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// The counters of `respond`.
    pub(crate) responding: Option<Arc<Responding>>,
    /// The listener for Prometheus.
    pub(crate) metrics: Metrics,
    /// The counters of `meter`.
    pub(crate) meters: Option<Metering>,
    /// Tells the thread that writes flows to finish soon, because the user asked the run to stop.
    pub(crate) hurry: Option<Hurry>,
    /// Lets another thread stop the run.
    pub(crate) stopper: Stopper,
}

impl RunOptions {
    /// The options of the command line.
    pub(crate) fn new(args: &RunArgs, verbose: bool, services: RunServices) -> Self {
        let endless = args.stop.seconds.is_none() && is_endless(args);
        Self {
            seconds: if endless { Some(ENDLESS) } else { args.stop.seconds.filter(|seconds| !seconds.is_zero()) },
            packets: args.stop.packets,
            printer: Printer::new(&args.report, false),
            interval: args.report.interval,
            note: (endless && !args.report.quiet).then_some(ENDLESS_NOTE),
            live_table: !args.report.quiet && !verbose,
            capture: services.capture,
            control: services.control,
            signals: services.signals,
            forwarding: None,
            responding: None,
            metrics: services.metrics,
            meters: None,
            hurry: None,
            stopper: Stopper::default(),
        }
    }
}

/// Whether the input never ends.
fn is_endless(args: &RunArgs) -> bool {
    let endless = |device: &String| SyntheticOptions::parse(device).is_ok_and(|options| options.packets.is_none());
    args.stop.packets.is_none() && args.devices.iter().any(endless)
}

/// Stops a run from any thread. If the run has not started yet, it stops as soon as it starts.
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
        stoppable.run.iter().for_each(|handle| handle.stop());
    }

    /// Notes that the run has started.
    pub(super) fn started(&self, run: Handle) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stoppable.stopped {
            run.stop();
        }
        stoppable.run = Some(run);
    }
}
