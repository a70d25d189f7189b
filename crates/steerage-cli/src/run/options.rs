//! The tasks of a run besides handling packets, and the way in which another thread stops it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::Handle;
use steerage_capture::CaptureInfo;
use steerage_device::synthetic::SyntheticOptions;
use steerage_guard::sandbox::InForce;
use steerage_meter::{FlowOutput, Metering};
use steerage_router::Forwarding;

use crate::args::RunArgs;
use crate::control_tree::ControlTree;
use crate::instance::RunServices;
use crate::metrics::Metrics;
use crate::report::{EndedBy, Printer};
use crate::service::ServiceManager;
use crate::signals::HeldSignals;
use crate::terminal::Keys;

/// How long endless synthetic traffic runs if the command line gives no limit. It is long enough
/// for a steady rate, and short enough that users need not interrupt a first run.
const ENDLESS: Duration = Duration::from_secs(10);
const ENDLESS_NOTE: &str = "10 s of synthetic traffic (--seconds 0 for no end, -c N for N packets)";

/// The tasks of a run besides handling packets.
#[derive(Debug)]
pub(crate) struct RunOptions {
    /// The time after which the run stops.
    pub(crate) seconds: Option<Duration>,
    /// The number of packets after which the run stops. The devices were opened with this limit.
    pub(crate) packets: Option<u64>,
    /// Writes the reports.
    pub(crate) printer: Printer,
    /// The time between two interval reports.
    pub(crate) interval: Option<Duration>,
    /// A note for standard error once the run has started.
    pub(crate) note: Option<&'static str>,
    /// Whether to draw the live table, if standard error is a terminal.
    pub(crate) live_table: bool,
    /// The facts about the capture files, if there are any.
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// The control tree. Users watch and change the run through it.
    pub(crate) control: ControlTree,
    /// The signals that stop the run or ask for a report.
    pub(crate) signals: HeldSignals,
    /// The service manager. It gets a message when the run has started.
    pub(crate) service: ServiceManager,
    /// The counters of `forward`.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// The listener for Prometheus.
    pub(crate) metrics: Metrics,
    /// The sandbox that is in force, if there is one.
    pub(crate) sandbox: Option<InForce>,
    /// Whether the report says more (`-v`).
    pub(crate) verbose: bool,
    /// The counters of `meter`.
    pub(crate) meters: Option<Metering>,
    /// The keys of the terminal, if the live table has keys.
    pub(crate) keys: Option<Keys>,
    /// The outputs of `meter`. Their threads finish soon if the user asks the run to stop.
    pub(crate) flow_outputs: Vec<FlowOutput>,
    /// `meter` meters one flow of this many.
    pub(crate) sample: Option<u32>,
    /// Lets another thread stop the run.
    pub(crate) stopper: Stopper,
    /// The function that is called when the run is asked to stop.
    pub(crate) on_stop: Option<StopHook>,
}

/// A function that is called when a run should stop. It may also be called after the run is over,
/// until the program ends. It returns whether the run should stop now. Otherwise the run ends by
/// itself.
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
            service: services.service,
            forwarding: None,
            metrics: services.metrics,
            sandbox: services.sandbox,
            verbose,
            meters: None,
            keys: None,
            flow_outputs: Vec::new(),
            sample: None,
            stopper: Stopper::default(),
            on_stop: None,
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

    /// The packets that the run has dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        let run = self.0.lock().unwrap_or_else(PoisonError::into_inner).run.clone();
        run.map_or(0, |run| run.snapshot().dropped().total())
    }

    /// Records that the run has started.
    pub(super) fn started(&self, run: Handle) {
        let mut stoppable = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stoppable.stopped {
            run.stop();
        }
        stoppable.run = Some(run);
    }
}
