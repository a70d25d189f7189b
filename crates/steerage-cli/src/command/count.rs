//! `steerage count`: counts packets, which costs next to nothing, so what it shows is the path itself.

use std::time::Duration;

use steerage_apps::Count;
use steerage_device::synthetic::SyntheticOptions;

use crate::args::{CountArgs, RunArgs};
use crate::error::Error;
use crate::report::Report;
use crate::run::{self, Plan};
use crate::setup;

/// How long synthetic traffic without an end is counted where nothing says how long: enough for a steady rate, and
/// nobody's first run has to be interrupted.
const ENDLESS: Duration = Duration::from_secs(10);
const ENDLESS_NOTE: &str = "10 s of synthetic traffic (--seconds 0 for ever, -c N for N packets)";

/// Counts until the end and reports.
pub(crate) fn run(args: &CountArgs, verbose: bool) -> Result<(), Error> {
    let args = &args.run;
    let (instance, capture) = setup::instance(args, |_cpu| Count::default())?;
    let endless = args.stop.seconds.is_none() && is_endless(args);
    let seconds = if endless { Some(ENDLESS) } else { args.stop.seconds.filter(|seconds| !seconds.is_zero()) };
    let plan = Plan {
        seconds,
        packets: args.stop.packets,
        json: args.report.json,
        note: (endless && !args.report.quiet).then_some(ENDLESS_NOTE),
        live: !args.report.quiet && !verbose,
        capture,
    };
    let ended = run::to_end(instance, &plan)?;
    let bytes = ended.outcome.reports.iter().map(|(cpu, counted)| (*cpu, counted.bytes)).collect();
    let report = Report { handled_bytes: bytes, ..ended.report };
    report.finish(&args.report, ended.outcome.left_behind.len(), &ended.outcome.failed)
}

/// Whether there are always more packets.
fn is_endless(args: &RunArgs) -> bool {
    let endless = |device: &String| SyntheticOptions::parse(device).is_ok_and(|options| options.packets.is_none());
    args.stop.packets.is_none() && args.devices.iter().any(endless)
}
