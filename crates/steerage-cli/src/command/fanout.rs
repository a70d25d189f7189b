//! `steerage fanout`: deals flows out to several outputs.

use std::fs;
use std::os::unix::fs::MetadataExt;

use steerage::Output;
use steerage::flow::Layers;
use steerage_apps::Fanout;
use steerage_device::output;

use crate::args::FanoutArgs;
use crate::error::Error;
use crate::report::Report;
use crate::run::{self, Plan};
use crate::setup;

/// Deals out until the end and reports.
pub(crate) fn run(args: &FanoutArgs, verbose: bool) -> Result<(), Error> {
    let outputs = outputs(args)?;
    // As many as there can be: a verdict has a byte for its output.
    let fanout = Fanout::over(outputs.len());
    let layers = if args.outer { Layers::Outer } else { Layers::Inner };
    let (instance, capture) = setup::instance_with(&args.run, layers, outputs, |_| Ok(move |_cpu| fanout))?;
    let ended = run::to_end(instance, &Plan::new(&args.run, verbose, capture))?;
    let report = Report { ..ended.report };
    report.finish(&args.run.report, false, ended.outcome.left_behind.len(), &ended.outcome.failed)
}

fn outputs(args: &FanoutArgs) -> Result<Vec<Output>, Error> {
    let mut specs = Vec::new();
    for spec in &args.to {
        specs.extend(output::expand(spec).map_err(Error::Output)?);
    }
    let inputs: Vec<_> = args.run.devices.iter().filter_map(|device| identity(device)).collect();
    for (nth, spec) in specs.iter().enumerate() {
        let identity = spec.split_once(':').and_then(|(_, path)| identity(path));
        if identity.is_some_and(|identity| inputs.contains(&identity)) {
            return Err(Error::SameFile { spec: spec.clone(), what: "an input" });
        }
        if specs[..nth].contains(spec) {
            return Err(Error::SameFile { spec: spec.clone(), what: "an output already" });
        }
    }
    specs.iter().map(|spec| output::open(spec).map_err(Error::Output)).collect()
}

/// What a file is, whatever it is called; of a pipe too, but not of what is nothing but a place to write to.
fn identity(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
