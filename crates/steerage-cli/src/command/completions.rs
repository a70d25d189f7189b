//! `steerage completions`: generates shell completions from the definition of the command line.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::error::Error;
use crate::stdout;

/// Prints the completion script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "steerage", &mut script);
    stdout::print(&script)
}
