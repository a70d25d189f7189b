//! Reads run files. The keys of a run file, which is a TOML file, are the long options of the
//! command line (docs/run-files.md).
//!
//! `args` defines the options. The keys of the run file are converted to arguments, which clap
//! parses like a command line. This module records the line of each argument in the run file, so
//! that an error message contains the line.
//!
//! | file | content |
//! |---|---|
//! | `read` | parses TOML to keys with their lines |
//! | `arguments` | turns a key into arguments, by clap's definition of the option |
//! | `merge` | merges them with the rest of the command line, and parses all with clap |

mod arguments;
mod merge;
mod read;

use std::path::Path;

use clap::Command;

use crate::args;
use crate::error::{Error, RunFileError};

pub(crate) use merge::LoadedRun;

const COMMAND: &str = "command";

/// The key for the devices of a run, and the ID of clap's argument.
const DEVICES: &str = "devices";

/// The key for the command of `parallel`'s jobs, and the ID of clap's argument.
const JOB: &str = "job";

fn has_jobs(command: &Command) -> bool {
    command.get_positionals().any(|arg| arg.get_id() == JOB)
}

/// Reads a run file. `more` contains arguments from the command line, which override those in the
/// file.
pub(crate) fn load(path: &Path, more: &[String]) -> Result<LoadedRun, Error> {
    parse(path, &read::text(path)?, more)
}

pub(crate) fn parse(path: &Path, text: &str, more: &[String]) -> Result<LoadedRun, Error> {
    let file = read::keys(path, text)?;
    let mut cli = args::program();
    cli.build();
    let command = find_command(&cli, &file)?;
    let given = arguments::of(command, &file)?;
    merge::merge(&cli, command, &file, given, more)
}

fn commands(cli: &Command) -> Vec<&str> {
    // Devices are positional arguments, and so are the words of the command for jobs.
    let receives = |command: &&Command| {
        let positionals: Vec<&str> = command.get_positionals().map(|arg| arg.get_id().as_str()).collect();
        positionals == [DEVICES] || positionals == [DEVICES, JOB]
    };
    cli.get_subcommands().filter(receives).map(Command::get_name).collect()
}

fn find_command<'a>(cli: &'a Command, file: &read::Keys<'_>) -> Result<&'a Command, RunFileError> {
    let names = commands(cli);
    let listed = names.iter().map(|name| format!("{COMMAND} = \"{name}\"")).collect::<Vec<_>>().join(" or ");
    let Some(key) = file.get(COMMAND) else {
        return Err(file.error(None, format!("it does not say which command it is for: write {listed}")));
    };
    let name = key.value.as_str().filter(|name| names.contains(name));
    let command = name.and_then(|name| cli.find_subcommand(name));
    command.ok_or_else(|| file.error(Some(key.line), format!("{COMMAND}: write {listed}")))
}
