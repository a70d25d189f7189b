//! `steerage count` does almost no work for each packet, so its speed is the speed of steerage
//! itself.

use steerage_apps::Count;

use crate::args::RunArgs;
use crate::error::Error;
use crate::instance;
use crate::run::{self, RunOptions};
use crate::sandbox::{Needs, SandboxProfile};

pub(crate) fn run(args: &RunArgs, verbose: bool) -> Result<(), Error> {
    let mut args = args.clone();
    // `count` does not need all packets of a flow on one CPU.
    args.live.outer_flows = true;
    let (instance, services) =
        instance::receiving(&args, Needs::of(SandboxProfile::Count), |_| Ok(|_cpu| Count::default()))?;
    let options = RunOptions::new(&args, verbose, services);
    let ended = run::to_end(instance, &options)?;
    let mut report = ended.report;
    report.document.handled_bytes = ended.outcome.reports.iter().map(|(cpu, counted)| (cpu.0, counted.bytes)).collect();
    report.finish(options.printer, args.report.strict)
}
