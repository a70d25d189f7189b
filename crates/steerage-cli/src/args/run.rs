//! The options that all commands which receive packets share.

use std::time::Duration;

use clap::{Args, FromArgMatches};
use steerage_device::capture::Pace;

use super::values::{interval, packets, seconds};
use super::{ControlArgs, CpuArgs, LiveArgs, MetricsArgs, SandboxArgs, SteeringArgs};

/// What every command that receives packets can be told.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Where packets come from
    #[arg(value_name = "DEVICE", default_value = "synthetic")]
    pub(crate) devices: Vec<String>,

    /// Read files as fast as they were recorded, or FACTOR times that
    #[arg(long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", allow_negative_numbers = true)]
    pub(crate) pace: Option<Pace>,

    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) cpus: CpuArgs,
    #[command(flatten)]
    pub(crate) steering: SteeringArgs,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    #[command(flatten)]
    pub(crate) control: ControlArgs,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

impl RunArgs {
    /// What an empty command line means.
    pub(crate) fn of_no_options() -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("run"));
        Self::from_arg_matches(&command.try_get_matches_from(["run"])?)
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "When to stop")]
pub(crate) struct StopArgs {
    /// Stop after N packets
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Stop after S seconds; 0: never [default: 10 if synthetic has no end, else 0]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// Report as one line of JSON: see docs/report.md
    #[arg(long)]
    pub(crate) json: bool,

    /// Report also each DURATION, in one line: see docs/report.md
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    pub(crate) interval: Option<Duration>,

    /// Exit with 3 if a packet was lost or reordered; includes --check-order
    #[arg(long)]
    pub(crate) strict: bool,

    /// Nothing on standard error but errors: no live table, no notes
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
