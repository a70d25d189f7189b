//! The options for the control tree of a run, and those of `steerage get` and `set`.

use std::path::PathBuf;

use clap::Args;

use super::SandboxArgs;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Control")]
pub(crate) struct ControlArgs {
    /// Control socket: a NAME, a PATH with a / in it, or none [default: the process number]
    #[arg(hide_short_help = true, long, value_name = "PATH")]
    pub(crate) socket: Option<String>,

    /// Mount the control tree on this empty directory
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ToArgs {
    /// Which run, if there are several: its process number, name or socket
    #[arg(long, value_name = "PID|NAME|PATH")]
    pub(crate) to: Option<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Attribute or directory to read [default: every path]
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    pub(crate) path: String,

    /// Print a JSON object with the path and its value, or its paths
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Attribute to change
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// New value
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}
