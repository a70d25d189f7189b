//! `steerage run` and `steerage check` read run files.

use steerage_guard::capabilities::Needed;
use steerage_text::{printable, shell_word};

use crate::args::{CheckArgs, Cli, Command, RunArgs, RunFileArgs};
use crate::error::Error;
use crate::run_file::{self, LoadedRun};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::{instance, log, stdout};

use super::{meter, parallel};

pub(crate) fn run(args: &RunFileArgs, verbose: u8) -> Result<(), Error> {
    let mut loaded = run_file::load(&args.file, &args.more)?;
    loaded.cli.verbose = loaded.cli.verbose.saturating_add(verbose);
    log::start(loaded.cli.verbose);
    super::dispatch(&loaded.cli).map_err(|error| loaded.blame(error))
}

pub(crate) fn check(CheckArgs { checked: args, sandbox }: &CheckArgs) -> Result<(), Error> {
    let needs = Needs::of(SandboxProfile::Check).reads(&args.file).reads_machine();
    // Root may check a run file that only its owner is allowed to read.
    let needed = Needed::default().read_file(&args.file);
    let _kept = sandbox::enter_keeping(needs, &needed, sandbox)?;
    let loaded = match run_file::load(&args.file, &args.more) {
        Err(Error::Usage(error)) if error.use_stderr() => return Err(Error::Refused(crate::usage::message(&error))),
        other => other?,
    };
    let plan = plan(&loaded.cli).map_err(|error| match loaded.blame(error) {
        error @ Error::RunFile(_) => error,
        error => Error::Refused(error.to_string()),
    })?;
    stdout::print(described(&loaded, &args.file.display().to_string(), &plan))
}

/// Checks the command line without opening a device or writing a file.
fn plan(cli: &Cli) -> Result<String, Error> {
    let run: &RunArgs = match &cli.command {
        Command::Count(run) => run,
        Command::Forward(args) => &args.run,
        Command::Meter(args) => {
            meter::check(args)?;
            &args.run
        }
        Command::Parallel(args) => {
            parallel::check(args)?;
            return Ok(String::new());
        }
        _ => return Ok(String::new()),
    };
    instance::check(run)
}

fn described(loaded: &LoadedRun, file: &str, cpus: &str) -> String {
    let words: Vec<String> = loaded.arguments.iter().map(|argument| shell_word(argument)).collect();
    let file = printable(file);
    let mut text = format!("{file} is right; it runs\n\n    steerage {}\n\n", words.join(" "));
    for origin in &loaded.origins {
        text.push_str(&format!("{file}:{:<4} {}\n", origin.line, printable(&origin.what)));
    }
    text + cpus
}
