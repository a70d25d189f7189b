//! `steerage completions`: generates shell completions from the definition of the command line.

use crate::args::{self, CompletionsArgs};
use crate::error::Error;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;

pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    sandbox::enter(Needs::of(SandboxProfile::Completions), &args.sandbox)?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::program(), "steerage", &mut script);
    stdout::print(&script)
}
