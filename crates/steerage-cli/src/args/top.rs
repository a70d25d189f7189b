//! The options of `steerage top`.

use std::time::Duration;

use clap::Args;

use super::ToArgs;
use super::values::interval;

pub(super) const TOP_HELP: &str = "\
In a terminal it goes on until q; h tells the other keys. Into a pipe, and with --once, it prints
one table. With NO_COLOR in the environment it uses none. See docs/top.md.

Examples:
  steerage top                            the one instance that runs here
  steerage top --to 4711                  that of process 4711
  steerage top --interval 200ms           five times a second
  steerage top --once | head -20          one table, of one second";

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Look each DURATION
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Print one table, and no more
    #[arg(long)]
    pub(crate) once: bool,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}
