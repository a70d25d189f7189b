//! `steerage fanout`: deals flows out to several outputs.

use std::fs;
use std::os::unix::fs::MetadataExt;

use steerage_apps::Fanout;
use steerage_device::output;

use crate::args::FanoutArgs;
use crate::error::Error;
use crate::run::{self, Plan};
use crate::setup;

/// Deals out until the end and reports.
pub(crate) fn run(args: &FanoutArgs, verbose: bool) -> Result<(), Error> {
    let outputs = outputs(args)?;
    let fanout = Fanout::over(outputs.len());
    let open = || outputs.iter().map(|spec| output::open(spec).map_err(Error::Output)).collect();
    let (instance, capture) = setup::sending(&args.run, None, open, |_| Ok(move |_cpu| fanout))?;
    let plan = Plan::new(&args.run, verbose, capture);
    let ended = run::to_end(instance, &plan)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(plan.printer, args.run.report.strict, left_behind, &failed)
}

/// What `--to` stands for. An input is not overwritten, and no two outputs write the same file.
fn outputs(args: &FanoutArgs) -> Result<Vec<String>, Error> {
    let mut specs: Vec<String> = Vec::new();
    for spec in &args.to {
        specs.extend(output::expand(spec).map_err(Error::Output)?);
    }
    let inputs: Vec<_> = args.run.devices.iter().filter_map(|device| identity(device)).collect();
    for (nth, spec) in specs.iter().enumerate() {
        let file = |spec: &String| spec.split_once(':').and_then(|(_, path)| identity(path));
        let this = file(spec);
        if this.is_some_and(|this| inputs.contains(&this)) {
            return Err(Error::SameFile { spec: spec.clone(), what: "an input" });
        }
        if specs[..nth].iter().any(|other| other == spec || (this.is_some() && file(other) == this)) {
            return Err(Error::SameFile { spec: spec.clone(), what: "an output already" });
        }
    }
    Ok(specs)
}

/// Which file a name stands for, whatever else it is called.
fn identity(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
