//! `steerage meter` records flows with their endpoints, times and volumes.

mod outputs;
mod summary;

use std::path::Path;
use std::time::SystemTime;

use steerage::WallTime;
use steerage_meter::{MeterOptions, Metered, Metering, Summary};

use crate::args::MeterArgs;
use crate::error::Error;
use crate::instance;
use crate::report::flows::flow_table;
use crate::report::{EndedBy, FlowOutputReport, FlowStage, Flows, Printer};
use crate::run::{self, RunOptions, Stopper};
use crate::sandbox::{Needs, SandboxProfile};
use crate::terminal::{Keys, print_to_stderr};
use outputs::{Outputs, Writers};

/// The number of flows that are collected for the live table: the active flows with the most bytes.
/// Of the collected flows, the live table shows those with the highest rates.
const LIVE_FLOWS: usize = 200;

/// The maximum number of flow records that `--by` adds up: those with the most bytes.
const SUMMED_RECORDS: usize = 1 << 18;

/// The number of records that are kept for each line of the flow table. The flow table shows all
/// records of a flow as one line. A flow of a day has 288 records of five minutes, but only the
/// largest flows matter.
const JOINED: usize = 32;

pub(crate) fn run(args: &MeterArgs, verbose: bool) -> Result<(), Error> {
    if let Some(files) = summary::flow_files(&args.run.devices) {
        return summary::read_again(args, &files);
    }
    let flows = &args.flows;
    let outputs = Outputs::of(args)?;
    let written: Vec<_> = outputs.names().map(Path::to_owned).collect();
    let written: Vec<&Path> = written.iter().map(|path| path.as_path()).collect();
    let printer = Printer::new(&args.run.report, outputs.takes_stdout());
    let connects = outputs.has_collectors();
    let outputs = outputs.open()?;
    let stopper = Stopper::default();
    let keys = if args.run.report.quiet || verbose { None } else { Keys::take() };
    let needs =
        Needs::of(SandboxProfile::Meter).written_files(&written).connects(connects).restores_terminal(keys.is_some());
    let seen = if flows.by.is_some() { SUMMED_RECORDS } else { (flows.top * JOINED).min(SUMMED_RECORDS) };
    let live_top = if keys.is_some() { flows.top.max(LIVE_FLOWS) } else { flows.top };
    let (mut writers, mut meters) = (Writers::default(), None);
    let (instance, services) = instance::receiving(&args.run, needs, |can_wait| {
        let advice = outputs.advice().filter(|_| can_wait && !args.run.report.quiet && !args.run.report.json);
        advice.iter().for_each(print_to_stderr);
        writers = outputs.start(can_wait, &stopper)?;
        let options = MeterOptions {
            active: flows.active,
            active_by_clock: flows.active_clock,
            inactive: flows.inactive,
            flows_max: flows.max_flows,
            // Live inputs report their largest flows during the run, and capture files only at its
            // end.
            top: if can_wait || flows.by.is_some() { seen.max(live_top) } else { live_top },
            layers: args.run.steering.hash.layers(),
            epoch: now(),
            can_wait,
            sample: flows.sample,
            names: flows.names,
            cic: false,
        };
        let metering = Metering::new(options, writers.exporter(can_wait));
        meters = Some(metering.clone());
        Ok(move |_cpu| metering.meter())
    })?;
    let outputs = writers.outputs();
    let mut options = RunOptions { stopper, printer, keys, ..RunOptions::new(&args.run, verbose, services) };
    let sources = &mut options.sources;
    (sources.meters, sources.flow_outputs, sources.sample) = (meters, outputs.clone(), sampled(flows.sample));
    let ended = run::to_end(instance, &options)?;

    let reports = ended.outcome.reports;
    let handled_bytes = reports.iter().map(|(cpu, report)| (cpu.0, report.handled_bytes)).collect();
    let (mut metered, open) = Metered::of(reports.into_iter().map(|(_cpu, report)| report), seen);
    let table = match flows.by {
        None => flow_table(&metered, flows.top),
        Some(by) => {
            let mut summary = Summary::new(by);
            metered.top.iter().for_each(|record| summary.add(record));
            summary::table(summary, flows.top)
        }
    };
    metered.top.truncate(flows.top);
    let written = writers.finish(open);
    let outputs = FlowOutputReport::of_all(&outputs);
    let flows = Some(Flows { stage: FlowStage::Ended { metered, table }, outputs, sample: sampled(flows.sample) });
    let mut report = ended.report.with_flows(flows);
    report.document.handled_bytes = handled_bytes;
    if written.is_err() {
        report.document.ended_by = Some(EndedBy::Error);
    }
    let reported = report.finish(printer, args.run.report.strict);
    written.and(reported)
}

fn sampled(sample: u32) -> Option<u32> {
    (sample > 1).then_some(sample)
}

pub(crate) fn check(args: &MeterArgs) -> Result<(), Error> {
    Outputs::of(args).map(drop)
}

fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}
