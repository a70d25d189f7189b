//! `steerage fanout`: deals flows out to several outputs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;

use steerage::Output;
use steerage_apps::Fanout;
use steerage_device::output;

use crate::args::FanoutArgs;
use crate::error::Error;
use crate::report::units::printable;
use crate::run::{self, Plan};
use crate::setup::{self, Sending};

/// Deals out until the end and reports.
pub(crate) fn run(args: &FanoutArgs, verbose: bool) -> Result<(), Error> {
    let outputs = outputs(args)?;
    let fanout = Fanout::over(outputs.len());
    let cpus = setup::count_cpus(&args.run.cpus)?;
    let open = |_: &[usize]| outputs.iter().map(|spec| open_output(spec, cpus)).collect();
    let sending = Sending { rate: None, originated: 0, outputs: open };
    let (instance, capture) = setup::sending(&args.run, None, sending, |_| Ok(move |_cpu| fanout))?;
    let plan = Plan::new(&args.run, verbose, capture);
    let ended = run::to_end(instance, &plan)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(plan.printer, args.run.report.strict, left_behind, &failed)
}

/// Opens an output. A FIFO that nobody reads is waited for, and that is said; a stop signal ends the program meanwhile.
pub(super) fn open_output(spec: &str, cpus: usize) -> Result<Output, Error> {
    let waits = |path: &str, asked: u64| {
        if asked == 0 {
            // With standard error closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "waiting for a reader of {} (FIFO)", printable(path));
        }
        true
    };
    output::open_when_read(spec, cpus, waits).map_err(Error::Output)
}

/// What `--to` stands for. An input is not overwritten, and no two outputs write the same file.
fn outputs(args: &FanoutArgs) -> Result<Vec<String>, Error> {
    let mut specs: Vec<String> = Vec::new();
    for spec in &args.to {
        specs.extend(output::expand(spec).map_err(Error::Output)?);
    }
    for (nth, spec) in specs.iter().enumerate() {
        not_an_input(spec, &args.run.devices)?;
        let this = file_of(spec);
        if specs[..nth].iter().any(|other| other == spec || (this.is_some() && file_of(other) == this)) {
            return Err(Error::SameFile { spec: spec.clone(), what: "an output already" });
        }
    }
    Ok(specs)
}

/// No file is written that is read.
pub(super) fn not_an_input(spec: &str, devices: &[String]) -> Result<(), Error> {
    let this = file_of(spec);
    if this.is_some() && devices.iter().any(|device| identity(device) == this) {
        return Err(Error::SameFile { spec: spec.to_owned(), what: "an input" });
    }
    Ok(())
}

fn file_of(spec: &str) -> Option<(u64, u64)> {
    spec.split_once(':').and_then(|(_, path)| identity(path))
}

/// Which file a name stands for, whatever else it is called.
fn identity(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
