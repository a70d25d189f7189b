//! `steerage run` and `steerage check`: what is written down in a file.

use crate::args::{Cli, Command, RunArgs, RunFileArgs};
use crate::error::Error;
use crate::run_file::{self, Ready};
use crate::{log, setup};

use super::meter;

/// Runs what the file says.
pub(crate) fn run(args: &RunFileArgs, verbose: u8) -> Result<(), Error> {
    let mut ready = run_file::load(&args.file, &args.more)?;
    ready.cli.verbose = ready.cli.verbose.saturating_add(verbose);
    log::start(ready.cli.verbose);
    super::dispatch(&ready.cli).map_err(|error| ready.blame(error))
}

/// Says what it would do.
pub(crate) fn check(args: &RunFileArgs) -> Result<(), Error> {
    let ready = match run_file::load(&args.file, &args.more) {
        // Whatever is wrong, the answer is no.
        Err(Error::Usage(error)) if error.use_stderr() => return Err(Error::Refused(crate::usage::message(&error))),
        other => other?,
    };
    let plan = plan(&ready.cli).map_err(|error| match ready.blame(error) {
        error @ Error::RunFile(_) => error,
        error => Error::Refused(error.to_string()),
    })?;
    super::print(told(&ready, &args.file.display().to_string(), &plan).as_bytes())
}

/// What can be found out without opening a device or writing a file.
fn plan(cli: &Cli) -> Result<String, Error> {
    let run: &RunArgs = match &cli.command {
        Command::Count(args) => &args.run,
        Command::Forward(args) => &args.run,
        Command::Meter(args) => {
            meter::check(args)?;
            &args.run
        }
        _ => return Ok(String::new()),
    };
    setup::check(run)
}

fn told(ready: &Ready, file: &str, cpus: &str) -> String {
    let words: Vec<String> = ready.arguments.iter().map(|argument| quoted(argument)).collect();
    let mut told = format!("{file} is right; it runs\n\n    steerage {}\n\n", words.join(" "));
    for origin in &ready.origins {
        told.push_str(&format!("{file}:{:<4} {}\n", origin.line, origin.what));
    }
    told + cpus
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./%@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
