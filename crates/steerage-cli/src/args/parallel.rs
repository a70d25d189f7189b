//! The options of `steerage parallel`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use steerage::limits::OUTPUTS_MAX;
use steerage_capture::Pace;
use steerage_parallel::{Format, Order, Together};

use super::run::StopArgs;
use super::values::{duration, named, number};
use super::{HabitArgs, HashArgs, LiveArgs, MemoryArgs, SandboxArgs, WebArgs};

#[derive(Debug, Args)]
pub(crate) struct ParallelArgs {
    /// An interface, `any`, capture files, or synthetic traffic
    #[arg(id = "devices", value_name = "INPUT", required = true)]
    pub(crate) inputs: Vec<String>,

    /// Command that each job runs
    #[arg(id = "job", value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) jobs: JobArgs,
    #[command(flatten)]
    pub(crate) split: SplitArgs,
    #[command(flatten)]
    pub(crate) output: JobOutputArgs,

    /// Replay files as fast as they were recorded, or FACTOR times as fast
    #[arg(hide_short_help = true, long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", allow_negative_numbers = true)]
    pub(crate) pace: Option<Pace>,

    #[command(flatten)]
    pub(crate) habits: HabitArgs,
    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) hash: HashArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) web: WebArgs,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExecWhenReadyArgs {
    /// Command to start
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Jobs")]
pub(crate) struct JobArgs {
    /// Number of jobs [default: the number of CPUs that this process may use]
    #[arg(short = 'j', long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, OUTPUTS_MAX))]
    pub(crate) jobs: Option<usize>,

    /// Kill a job that reads nothing for DURATION although packets wait [default: warn after 30 s, and kill none]
    #[arg(hide_short_help = true, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) job_timeout: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
pub(crate) struct SplitArgs {
    /// Keep together: flow (both directions), hosts (two addresses), source or destination [default: flow]
    #[arg(long, value_name = "KEY", default_value = "flow", hide_default_value = true, hide_possible_values = true,
        value_parser = named(Together::ALL))]
    pub(crate) key: Together,

    /// Pass on the inner frame of VXLAN, Geneve, GRE, ERSPAN, TZSP and MPLS
    #[arg(hide_short_help = true, long)]
    pub(crate) strip_tunnels: bool,

    /// Format that jobs read: pcap (microseconds), pcap-ns (nanoseconds) or pcapng [default: the
    /// format of the input; pcap-ns for interfaces and pipes]
    #[arg(hide_short_help = true, long, value_name = "FORMAT", hide_possible_values = true,
        value_parser = named([("pcap", Format::Pcap), ("pcap-ns", Format::PcapNanos), ("pcapng", Format::Pcapng)]))]
    pub(crate) format: Option<Format>,
}

/// The most header lines. Zeek's logs have eight.
const HEADER_MAX: usize = 100;

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct JobOutputArgs {
    /// Begin each line with the job's number and a tab
    #[arg(long, conflicts_with_all = ["no_merge", "results"])]
    pub(crate) tag: bool,

    /// Print the output of job 1 first, then that of job 2, and so on: --order job
    #[arg(short, long, conflicts_with_all = ["no_merge", "results", "order"])]
    pub(crate) keep_order: bool,

    /// Output in any, job or time order [default: any]
    #[arg(long, value_name = "ORDER", hide_possible_values = true, conflicts_with_all = ["no_merge", "results"],
        value_parser = named([("any", Order::Any), ("job", Order::Job), ("time", Order::Time)]))]
    pub(crate) order: Option<Order>,

    /// Print the first N lines of each output only once, as for CSV; without N: 1
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", conflicts_with_all = ["no_merge", "results"], allow_negative_numbers = true,
        value_parser = |text: &str| number(text, HEADER_MAX))]
    pub(crate) header: Option<usize>,

    /// Let the jobs write to standard output themselves; lines may mix
    #[arg(hide_short_help = true, long, conflicts_with = "results")]
    pub(crate) no_merge: bool,

    /// Run job N in DIR/N, and write DIR/N/stdout and DIR/N/stderr
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,

    /// Print the summary on standard error as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print no summary; errors and the jobs' own output stay
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl JobOutputArgs {
    pub(crate) fn order(&self) -> Order {
        self.order.unwrap_or(if self.keep_order { Order::Job } else { Order::Any })
    }
}
