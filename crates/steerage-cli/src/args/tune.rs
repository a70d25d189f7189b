//! The options of `steerage tune`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::SandboxArgs;
use super::values::duration;

pub(super) const TUNE_HELP: &str = "\
Without an option, tune prints what it would change and why, with the commands that you could type \
yourself. It changes nothing then, and needs no privilege. With --apply, it measures each candidate in turn \
with the present setting, and keeps only what helps. Each change may reorder live traffic for a moment. \
`steerage help tune` has the table of all stages.

Examples:
  steerage tune eth0                    what would be measured, with commands
  sudo steerage tune eth0 --apply       measure, and keep what helps
  sudo steerage tune --undo             everything as it was before
  steerage tune eth0 --check            exit status 3 if somebody changed it
  sudo steerage tune eth0 --apply --global --irq
  sudo steerage tune eth0 --watch       set it again when links or CPUs change
  sudo steerage tune --for af_xdp eth0 --apply";

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Interface to tune; --undo without it undoes all interfaces
    #[arg(value_name = "IFACE", required_unless_present = "undo")]
    pub(crate) interface: Option<String>,

    /// Measure, keep what helps, and write an undo file
    #[arg(long, group = "mode")]
    pub(crate) apply: bool,

    /// Restore what tune has changed
    #[arg(long, group = "mode")]
    pub(crate) undo: bool,

    /// Exit with 0 if all is as tune left it, or with 3 and the differences
    #[arg(long, group = "mode")]
    pub(crate) check: bool,

    /// Keep the setting: set it again when links, queues or CPUs change
    #[arg(long, group = "mode")]
    pub(crate) watch: bool,

    /// Leave the setting in force when --watch ends
    #[arg(long, requires = "watch")]
    pub(crate) keep: bool,

    /// Also change settings of the whole machine, such as netdev_budget
    #[arg(long)]
    pub(crate) global: bool,

    /// Also change the CPUs of the interface's interrupts
    #[arg(long)]
    pub(crate) irq: bool,

    /// Also change rings, queues and the card's hash, which may take the link down for a moment
    #[arg(long)]
    pub(crate) allow_reset: bool,

    /// Allow --allow-reset on the interface through which this machine is reached
    #[arg(long, requires = "allow_reset")]
    pub(crate) yes: bool,

    /// Write the setting to a file that outlives a restart: link (a .link file of systemd)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) write: Option<WriteArg>,

    /// Prepare the interface for a capture (listen) or a program with AF_XDP, without measuring
    #[arg(long = "for", value_name = "PURPOSE", conflicts_with_all = ["undo", "check", "watch", "write"])]
    pub(crate) purpose: Option<PurposeArg>,

    /// Length of each measured window, for tests of the program
    #[arg(long, hide = true, value_name = "DURATION", value_parser = duration)]
    pub(crate) window: Option<Duration>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PurposeArg {
    #[value(name = "af_xdp")]
    AfXdp,
    Listen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteArg {
    Link,
}
