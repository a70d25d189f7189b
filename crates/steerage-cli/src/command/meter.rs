//! `steerage meter`: records flows with their endpoints, times and volumes.

use std::path::Path;
use std::time::SystemTime;

use steerage::WallTime;
use steerage_apps::meter::{
    FilePattern, FlowFormat, FlowWriter, FlowsTo, MeterOptions, Metered, Metering, OpenFlows, Rotation,
};

use crate::args::MeterArgs;
use crate::error::Error;
use crate::instance::{self, InitialRegime};
use crate::report::{EndedBy, Flows, Printer, Report};
use crate::run::{self, RunOptions, Stopper};

/// The name that stands for standard output.
const STDOUT: &str = "-";

/// Meters flows until the end, writes them if asked, and reports.
pub(crate) fn run(args: &MeterArgs, verbose: bool) -> Result<(), Error> {
    let flows = &args.flows;
    let to = flows.file.as_deref().map(|name| destination(name, args)).transpose()?;
    let stopper = Stopper::default();
    let (mut writer, mut meters) = (None, None);
    let written = flows.file.as_deref().filter(|name| *name != STDOUT).map(Path::new);
    let (instance, services) = instance::receiving(&args.run, written, InitialRegime::Collector, |can_wait| {
        if let Some((to, format)) = to {
            let stopper = stopper.clone();
            writer = Some(FlowWriter::start(to, format, move || stopper.stop()).map_err(Error::Flows)?);
        }
        let options = MeterOptions {
            active: flows.active,
            inactive: flows.inactive,
            flows_max: flows.max_flows,
            top: flows.top,
            layers: args.run.steering.hash.layers(),
            epoch: now(),
            can_wait,
        };
        let metering = Metering::new(options, writer.as_ref().map(|writer| writer.exporter(can_wait)));
        meters = Some(metering.clone());
        Ok(move |_cpu| metering.meter())
    })?;
    // If flows go to standard output, the report does not.
    let beside = flows.file.as_deref() == Some(STDOUT);
    let printer = Printer::new(&args.run.report, beside);
    let hurry = writer.as_ref().map(FlowWriter::hurry);
    let options = RunOptions { stopper, printer, meters, hurry, ..RunOptions::new(&args.run, verbose, services) };
    let ended = run::to_end(instance, &options)?;

    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    let reports = ended.outcome.reports;
    let handled_bytes = reports.iter().map(|(cpu, report)| (*cpu, report.handled_bytes)).collect();
    let (metered, open) = Metered::of(reports.into_iter().map(|(_cpu, report)| report), flows.top);
    let written = finish(writer, open);
    let ended_by = if written.is_err() { Some(EndedBy::Error) } else { ended.report.ended_by };
    let report = Report { handled_bytes, ended_by, flows: Some(Flows::Ended(metered)), ..ended.report };
    let reported = report.finish(printer, args.run.report.strict, left_behind, &failed);
    written.and(reported)
}

/// Checks the destination for flows, as far as its name tells.
pub(crate) fn check(args: &MeterArgs) -> Result<(), Error> {
    args.flows.file.as_deref().map_or(Ok(()), |name| destination(name, args).map(drop))
}

fn finish(writer: Option<FlowWriter>, open: OpenFlows) -> Result<(), Error> {
    writer.map_or(Ok(()), |writer| writer.finish(open.into_records())).map_err(Error::Flows)
}

/// The time of day, for packets whose device has no timestamps.
fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}

/// The destination for flows, and their format.
fn destination(name: &str, args: &MeterArgs) -> Result<(FlowsTo, FlowFormat), Error> {
    let wrong = |what: &str| Error::FlowsName { name: name.to_owned(), what: what.to_owned() };
    if name == STDOUT {
        if args.flows.rotate.is_some() {
            return Err(wrong("standard output does not rotate: leave --rotate out, or give a file's name"));
        }
        // The same format as the report's.
        let format = if args.run.report.json { FlowFormat::JsonLines } else { FlowFormat::Csv };
        return Ok((FlowsTo::Stdout, format));
    }
    let format = FlowFormat::of_name(name)
        .ok_or_else(|| wrong("write a name that ends in .csv or .jsonl, or - for standard output"))?;
    let pattern = FilePattern::parse(name).map_err(|error| wrong(&error.to_string()))?;
    if args.flows.rotate.is_some() && !pattern.has_time() {
        return Err(wrong("with --rotate each file needs a name of its own: put the time in, such as %Y%m%d-%H%M"));
    }
    let rotate = args.flows.rotate.map(|period| Rotation { period, inactive: args.flows.inactive });
    Ok((FlowsTo::Files { name: pattern, rotate }, format))
}
