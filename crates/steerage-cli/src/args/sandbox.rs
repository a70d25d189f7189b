//! The option for the sandbox.

use clap::Args;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxArgs {
    /// For debugging: restrict neither files nor system calls
    #[arg(hide_short_help = true, long)]
    pub(crate) no_sandbox: bool,
}
