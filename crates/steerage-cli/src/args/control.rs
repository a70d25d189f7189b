//! The options for the control tree of a run, and those of `steerage get` and `set`.

use std::path::PathBuf;

use clap::Args;

use super::SandboxArgs;

pub(super) const GET_HELP: &str = "\
A running instance shows a tree of attributes, as the kernel's /sys and /proc: docs/control.md tells
all of them. Of a directory, get lists what is below it. There may be a / in front of a PATH.

Examples:
  steerage get                                                    every path
  steerage get sys/class/net/eth1/queues/rx-0/rps_cpus            a queue's CPU mask
  steerage get proc/net/softnet_stat                              the counts of each CPU
  steerage get steerage/history --to 4711                         what was changed, of that process";

pub(super) const SET_HELP: &str = "\
When it returns, the change is in force for new packets. It is root and the user who started the
instance that may do it. What can be set has mode 0644 in docs/control.md.

Examples:
  steerage set sys/class/net/eth1/queues/rx-0/rps_cpus f          CPUs 0 to 3
  steerage set sys/class/net/eth1/queues/rx-0/rps_cpus_list 1-3   CPUs 1 to 3
  steerage set proc/sys/net/core/netdev_max_backlog 500";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Control")]
pub(crate) struct ControlArgs {
    /// Listen there for get and set: PATH with a / in it, a NAME,
    /// or none [default: the process's number, as a name]
    #[arg(long, value_name = "PATH", verbatim_doc_comment)]
    pub(crate) socket: Option<String>,

    /// Mount the tree on this empty directory: see docs/control.md
    #[arg(long, value_name = "DIR")]
    pub(crate) control: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ToArgs {
    /// Which instance, where several run: process, name, or socket
    #[arg(long, value_name = "PID|NAME|PATH")]
    pub(crate) to: Option<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// What to read
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    pub(crate) path: String,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// What to change
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// To what
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) value: String,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}
