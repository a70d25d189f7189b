//! The options that all commands which receive packets share.

use std::time::Duration;

use clap::{ArgAction, Args, FromArgMatches};
use steerage_capture::Pace;

use super::values::{interval, packets, seconds};
use super::{ControlArgs, CpuArgs, LiveArgs, MetricsArgs, SandboxArgs, SteeringArgs, WebArgs};

/// The options of every command that receives packets.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// An interface, `any`, capture files, or synthetic traffic
    #[arg(value_name = "DEVICE", default_value = "synthetic")]
    pub(crate) devices: Vec<String>,

    /// Replay files as fast as they were recorded, or FACTOR times as fast
    #[arg(hide_short_help = true, long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", allow_negative_numbers = true)]
    pub(crate) pace: Option<Pace>,

    #[command(flatten)]
    pub(crate) habits: HabitArgs,
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
    pub(crate) web: WebArgs,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

impl RunArgs {
    /// The options of an empty command line.
    pub(crate) fn of_no_options() -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("run"));
        Self::from_arg_matches(&command.try_get_matches_from(["run"])?)
    }
}

/// Options that have no effect. Users of tcpdump give them out of habit.
#[derive(Clone, Debug, Args)]
pub(crate) struct HabitArgs {
    /// As for tcpdump; has no effect, because addresses and ports are always shown as numbers
    #[arg(hide_short_help = true, short = 'n', long = "numeric", action = ArgAction::Count)]
    _numeric: u8,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "When to stop")]
pub(crate) struct StopArgs {
    /// Stop after N packets
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Stop after S seconds; 0 means never [default: 10 for synthetic traffic without an end, else 0]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// Print the report as one line of JSON (steerage help report)
    #[arg(long)]
    pub(crate) json: bool,

    /// Also print a line every DURATION, such as 10s
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    pub(crate) interval: Option<Duration>,

    /// Exit with 3 if a packet was lost or out of order; includes --check-order
    #[arg(hide_short_help = true, long)]
    pub(crate) strict: bool,

    /// Print no report, live table or notes; JSON, files and errors stay
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
