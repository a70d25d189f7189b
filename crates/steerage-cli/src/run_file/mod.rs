//! A run that is written down: the long options of the command line as keys of a TOML file. docs/run-files.md is for those
//! who write one.
//!
//! There is no second definition of what can be said: keys become arguments for clap, which reads them as it reads those of
//! the command line. What is here besides is where each came from, so that a mistake is told with its line.
//!
//! | file | what happens there |
//! |---|---|
//! | `read` | TOML to keys, with their lines |
//! | `arguments` | from a key to arguments, by what clap knows of the option |
//! | `merge` | with the rest of the command line, and through clap |

mod arguments;
mod merge;
mod read;

use std::fmt;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::error::Error;

pub(crate) use merge::Ready;

/// The key that says which command it is for.
const COMMAND: &str = "command";

/// The key for what is no option: where packets come from. It is also clap's name for that.
const DEVICES: &str = "devices";

/// Reads the file, and `more` of the command line over it.
pub(crate) fn load(path: &Path, more: &[String]) -> Result<Ready, Error> {
    let text = read::text(path)?;
    let file = read::keys(path, &text)?;
    let mut cli = Cli::command();
    cli.build();
    let command = find_command(&cli, &file)?;
    let given = arguments::of(command, &file)?;
    merge::with(&cli, command, &file, given, more)
}

/// Commands that receive packets: these can be written down.
fn commands(cli: &Command) -> Vec<&str> {
    // And all that is no option is where packets come from.
    let receives = |command: &&Command| command.get_positionals().map(|arg| arg.get_id().as_str()).eq([DEVICES]);
    cli.get_subcommands().filter(receives).map(Command::get_name).collect()
}

fn find_command<'a>(cli: &'a Command, file: &read::Keys<'_>) -> Result<&'a Command, FileError> {
    let names = commands(cli);
    let listed = names.iter().map(|name| format!("{COMMAND} = \"{name}\"")).collect::<Vec<_>>().join(" or ");
    let Some(key) = file.get(COMMAND) else {
        return Err(file.error(None, format!("it does not say which command it is for: write {listed}")));
    };
    let name = key.value.as_str().filter(|name| names.contains(name));
    let command = name.and_then(|name| cli.find_subcommand(name));
    command.ok_or_else(|| file.error(Some(key.line), format!("{COMMAND}: write {listed}")))
}

/// What is wrong with a file: where, and in one line what.
#[derive(Clone, Debug)]
pub(crate) struct FileError {
    path: String,
    line: Option<usize>,
    message: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        write!(f, ": {}", self.message)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::RunFile(error)
    }
}

/// The known name that is nearest to a wrong one, if one is near.
fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// As clap has it for options.
    const NEAR: f64 = 0.7;
    let near = known.map(|name| (strsim::jaro(wrong, name), name)).filter(|(nearness, _)| *nearness > NEAR);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}
