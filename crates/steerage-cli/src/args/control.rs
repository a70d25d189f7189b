//! The options for the control tree of a run, and those of `steerage get` and `set`.

use std::path::PathBuf;

use clap::Args;

use super::SandboxArgs;

pub(super) const GET_HELP: &str = "\
A run shows a tree of attributes, like the kernel's /sys and /proc (steerage help control). For a directory, get lists the paths \
below it. A leading / is allowed.

Examples:
  steerage get                                           every path
  steerage get sys/class/net/eth1/queues/rx-0/rps_cpus   the mask of a queue
  steerage get proc/net/softnet_stat                     the counts of each CPU
  steerage get steerage/history --to 4711                changes of that run";

pub(super) const SET_HELP: &str = "\
When set returns, the change is in force for new packets. Only root and the user who started the run may change it. `steerage help \
control` lists the attributes that can be set (mode 0644).

Examples:
  steerage set sys/class/net/eth1/queues/rx-0/rps_cpus f         CPUs 0 to 3
  steerage set sys/class/net/eth1/queues/rx-0/rps_cpus_list 1-3  CPUs 1 to 3
  steerage set proc/sys/net/core/netdev_max_backlog 500";

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
