//! `steerage`: receive packet steering in user space, from the command line.
//!
//! Here is what becomes of a run: its exit code, and for an error its one line. Each command has a file in `command`.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod command;
mod control;
mod doctor;
mod error;
mod filter;
mod forward;
mod function;
mod live;
mod log;
mod machine;
mod metrics;
mod privileges;
mod report;
mod run;
mod run_file;
mod setup;
mod signals;
mod top;
mod usage;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use error::Error;
use report::units::printable;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error),
    };
    match command::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Usage(error)) => usage::answer(&error),
        Err(error) => {
            // With standard error closed there is nobody left to tell but the exit code.
            let _ = writeln!(std::io::stderr(), "steerage: {}", printable(&error.to_string()));
            error.exit_code()
        }
    }
}
