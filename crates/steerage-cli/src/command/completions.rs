//! `steerage completions`: what a shell needs to complete the command line, from the command line's own definition.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::error::Error;

/// Prints it.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "steerage", &mut script);
    super::print(&script)
}
