//! `steerage fanout`: distributes flows to several outputs.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;

use steerage::Output;
use steerage_apps::Fanout;
use steerage_device::output;

use crate::args::FanoutArgs;
use crate::error::Error;
use crate::instance::{self, SendOptions};
use crate::run::{self, RunOptions};
use crate::terminal::printable;

/// Distributes flows until the end, and reports.
pub(crate) fn run(args: &FanoutArgs, verbose: bool) -> Result<(), Error> {
    let outputs = outputs(args)?;
    let fanout = Fanout::over(outputs.len());
    let cpus = instance::count_cpus(&args.run.cpus)?;
    let open = |_: &[usize]| outputs.iter().map(|spec| open_output(spec, cpus)).collect();
    let sending = SendOptions { rate: None, originated: 0, outputs: open };
    let (instance, services) = instance::sending(&args.run, None, sending, |_| Ok(move |_cpu| fanout))?;
    let options = RunOptions::new(&args.run, verbose, services);
    let ended = run::to_end(instance, &options)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(options.printer, args.run.report.strict, left_behind, &failed)
}

/// Opens an output. If nobody reads a FIFO, this notes that and waits for a reader. A stop signal ends the program
/// meanwhile.
pub(super) fn open_output(spec: &str, cpus: usize) -> Result<Output, Error> {
    let waits = |path: &str, asked: u64| {
        if asked == 0 {
            // An error means that standard error is closed.
            let _ = writeln!(io::stderr(), "waiting for a reader of {} (FIFO)", printable(path));
        }
        true
    };
    output::open_when_read(spec, cpus, waits).map_err(Error::Output)
}

/// The outputs that `--to` names. None may be an input, and no two may be the same file.
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

/// Checks that the output is not an input.
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

/// The identity of a file, whatever its name.
fn identity(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
