//! `steerage`: receive packet steering in user space, from the command line.
//!
//! Here is what becomes of a run: its exit code, and for an error its one line. Each command has a file in `command`.
#![forbid(unsafe_code)]

mod args;
mod command;
mod error;
mod live;
mod log;
mod machine;
mod report;
mod run;
mod setup;
mod signals;
mod usage;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use report::units::printable;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error),
    };
    log::start(cli.verbose);
    let result = match &cli.command {
        Command::Count(args) => command::count::run(args, cli.verbose > 0),
        Command::Explain(args) => command::explain::run(args, cli.verbose > 0),
        Command::Meter(args) => command::meter::run(args, cli.verbose > 0),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error closed there is nobody left to tell but the exit code.
            let _ = writeln!(std::io::stderr(), "steerage: {}", printable(&error.to_string()));
            error.exit_code()
        }
    }
}
