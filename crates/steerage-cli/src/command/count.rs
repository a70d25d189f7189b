//! `steerage count`: counts packets, which costs next to nothing, so what it shows is the path itself.

use steerage_apps::Count;

use crate::args::CountArgs;
use crate::error::Error;
use crate::report::Report;
use crate::run::{self, Plan};
use crate::setup::{self, Begins};

/// Counts until the end and reports.
pub(crate) fn run(args: &CountArgs, verbose: bool) -> Result<(), Error> {
    let args = &args.run;
    let (instance, capture) = setup::instance(args, None, Begins::Inline, |_| Ok(|_cpu| Count::default()))?;
    let plan = Plan::new(args, verbose, capture);
    let ended = run::to_end(instance, &plan)?;
    let bytes = ended.outcome.reports.iter().map(|(cpu, counted)| (*cpu, counted.bytes)).collect();
    let report = Report { handled_bytes: bytes, ..ended.report };
    report.finish(plan.printer, args.report.strict, ended.outcome.left_behind.len(), &ended.outcome.failed)
}
