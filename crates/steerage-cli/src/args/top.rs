//! The options of `steerage top`.

use std::time::Duration;

use clap::Args;

use super::ToArgs;
use super::values::interval;

pub(super) const TOP_HELP: &str = "\
On a terminal it runs until q is pressed, and h shows the other keys. In a pipe, and with --once, it prints one table. If NO_COLOR is \
set, it uses no colours. `steerage help top` explains the columns.

Examples:
  steerage top                        the run on this machine
  steerage top --to 4711              the run of process 4711
  steerage top --interval 200ms       five updates per second
  steerage top --once | head -20      one table
  steerage top --once --json | jq .   one report";

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Print one table and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Print the run's report as a line of JSON instead, every --interval; with --once, one line
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}
