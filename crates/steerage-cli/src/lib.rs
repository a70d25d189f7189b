//! The program `steerage`: receive packet steering in user space, from the command line.
//!
//! The code is in this library for fuzz targets and tests. No other program uses the library. Each
//! module in this table imports only modules from rows below its own row:
//!
//! | module | what it does |
//! |---|---|
//! | `fuzzing` | the parsers of the program, for fuzz targets |
//! | `command` | runs the command of the command line: a file for each command |
//! | `run` | runs an instance from its start to its end, with reports, signals and the live table |
//! | `instance` | opens the devices, drops privileges, and builds an instance from the command line |
//! | `top` | `steerage top`, which needs more than one file |
//! | `control_tree`, `metrics` | the control tree and the metrics that a run serves |
//! | `view` | the live view of a run: the screen of `top`, and the table that a run redraws on its terminal |
//! | `report` | writes reports and explanations, as text and as JSON |
//! | `web` | the live page of a run, for a browser |
//! | `run_file` | reads a run file and merges it with the command line |
//! | `sandbox` | the permissions of each command once it is set up |
//! | `helper` | processes that undo a change of the kernel at the end of a run |
//! | `signals`, `service` | signals as events, the service manager |
//! | `host_cpus` | the CPUs of this machine |
//! | `stdout` | writes to standard output |
//! | `guide` | the pages of docs/, which are built in |
//! | `error` | every error: its line and its exit code |
//! | `usage` | help and mistakes of the command line, from clap |
//! | `habits` | advice for mistakes that users of tcpdump make out of habit |
//! | `args` | the command line: commands, options, and the texts of `--help` |
//! | `log`, `terminal` | traces; the terminal, its size, its keys, and lines on standard error |
#![forbid(unsafe_code)]

mod args;
mod command;
mod control_tree;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod guide;
mod habits;
mod helper;
mod host_cpus;
mod instance;
mod log;
mod metrics;
mod report;
mod run;
mod run_file;
mod sandbox;
mod service;
mod signals;
mod stdout;
mod terminal;
mod top;
mod usage;
mod view;
mod web;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use error::Error;
use terminal::warn;

/// Returns the definition of the command line, including hidden options, for tests of the
/// documentation.
#[doc(hidden)]
pub fn definition() -> clap::Command {
    let mut program = args::program();
    program.build();
    program
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let result = match args::parse(arguments.clone()) {
        Ok(cli) => command::run(&cli),
        Err(_) if arguments.len() == 1 && io::stdout().is_terminal() => command::start(),
        Err(error) if error.use_stderr() && names_parallel() => {
            usage::answer(&error, &arguments);
            return ExitCode::from(error::NOT_BY_JOBS);
        }
        Err(error) => return usage::answer(&error, &arguments),
    };
    match result {
        Ok(()) if signals::hung_up() => ExitCode::from(signals::HUNG_UP),
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Usage(error)) => usage::answer(&error, &arguments),
        Err(error) => {
            warn(&error.to_string());
            error.exit_code()
        }
    }
}

/// `parallel` has its own exit codes: 1 to 101 say how many jobs failed.
fn names_parallel() -> bool {
    let is_option = |word: &std::ffi::OsString| word.as_encoded_bytes().starts_with(b"-");
    std::env::args_os().skip(1).find(|word| !is_option(word)).is_some_and(|word| word == "parallel")
}
