//! The options of `steerage top`.

use std::time::Duration;

use clap::Args;

use super::values::interval;
use super::{ToArgs, WebArgs};

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Print one table and exit
    #[arg(long, conflicts_with = "web")]
    pub(crate) once: bool,

    /// Print the run's report as a line of JSON instead, every --interval; with --once, one line
    #[arg(long, conflicts_with = "web")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) web: WebArgs,

    #[command(flatten)]
    pub(crate) to: ToArgs,
}
