//! The options of `steerage bench`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::SandboxArgs;
use super::bench_report::{BenchReportArgs, REPORT_HELP};
use super::values::{duration, number};

pub(super) const BENCH_HELP: &str = "\
Each experiment repeats a published one on this machine (steerage help bench). All of them take about nine minutes on two CPUs. Only \
rr needs a network or privileges. Nothing else should run at the same time.

Examples:
  steerage bench all --html report.html   everything, as a page with charts
  steerage bench rps                      one experiment, as text
  steerage bench handoff --rounds 15      more rounds show smaller differences
  steerage bench all --quick              does it work here? Takes seconds
  sudo steerage bench rr                  the kernel's stack against respond
  steerage bench rr 10.0.0.2:5000         500 connections to a server
  steerage bench report a.json b.jsonl    show earlier measurements";

const EXPERIMENT_HELP: &str = "\
Cases run in turn: A B C A B C. Before and after each run, the distance between the CPUs is measured. Near and far CPUs are reported \
separately, and runs in which the distance changed are left out. A terminal shows the progress. Ctrl-C ends it after the present \
run, and reports what was measured. A second Ctrl-C quits at once. `steerage help bench` explains each experiment.

Examples:
  steerage bench all --html report.html
  setsid nice -n -20 steerage bench rps --cpus 2,3
  steerage bench page-cache --rounds 21 --seconds 0.2 --json";

pub(super) const RR_HELP: &str = "\
This is the load that receive packet steering was published with: netperf's TCP_RR and UDP_RR. A client sends a request of one byte, \
and sends the next one when the response has arrived, over 500 connections. It uses the kernel's sockets.

With a TARGET, it measures the server there: `steerage respond`, or any server that answers such requests. The latency is the time \
from before a request is written until its whole response is read. The CPU time of other programs counts for the machine, not for \
this process.

Without a TARGET, it is an experiment like the others. In two network namespaces that a veth joins, the kernel's stack and `steerage \
respond` are the server in turn, with and without steering. It needs root and `ip`. The machine's own network is left alone.

Examples:
  steerage bench rr 10.0.0.2:5000
  steerage bench rr 10.0.0.2:5000 -C 64 --request 100 --response 1400
  steerage bench rr 10.0.0.2:7 --udp --json
  taskset -c 0 steerage bench rr 10.0.0.2:5000   on one CPU
  sudo steerage bench rr --html rr.html          the kernel against respond";

/// The most rounds. More would take longer than a day.
const ROUNDS_MAX: usize = 1000;

/// The most connections. An address has a few more ports than this.
const CONNECTIONS_MAX: usize = 60_000;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 1 << 24;

/// The shortest run. In a shorter one, most of the time is start and end.
const SECONDS_MIN: Duration = Duration::from_millis(1);

/// The longest run. A benchmark needs no more.
const SECONDS_MAX: Duration = Duration::from_secs(3600);

/// The most threads.
const THREADS_MAX: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Run all experiments below, one after the other
    #[command(after_help = EXPERIMENT_HELP)]
    All(ExperimentArgs),

    /// Compare steering with no steering, by work per packet and number of CPUs
    #[command(after_help = EXPERIMENT_HELP)]
    Rps(ExperimentArgs),

    /// Measure the delay of packets with steering and without, at a part of the load
    #[command(after_help = EXPERIMENT_HELP)]
    Delay(ExperimentArgs),

    /// Compare lists of packets with single packets, with and without a collector CPU
    #[command(after_help = EXPERIMENT_HELP)]
    Handoff(ExperimentArgs),

    /// Compare early with late metadata: throughput, and loss at a fixed rate
    #[command(after_help = EXPERIMENT_HELP)]
    LateMetadata(ExperimentArgs),

    /// Compare the local page cache on and off, with queues that compete
    #[command(after_help = EXPERIMENT_HELP)]
    PageCache(ExperimentArgs),

    /// Measure the cost of a packet on the receiving CPU and the worker
    #[command(after_help = EXPERIMENT_HELP)]
    Path(PathArgs),

    /// Measure how long the flow key and hash take, by kind of traffic
    #[command(after_help = EXPERIMENT_HELP)]
    Hash(ExperimentArgs),

    /// Measure metering of a capture in memory
    #[command(after_help = EXPERIMENT_HELP)]
    Meter(ExperimentArgs),

    /// Measure requests and responses: against TARGET, or the kernel against respond
    #[command(after_help = RR_HELP)]
    Rr(RrArgs),

    /// Merge and show measurements of this and other programs
    #[command(after_help = REPORT_HELP)]
    Report(BenchReportArgs),
}

/// How experiments are run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// CPUs to use [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,

    /// Runs of each case, in turn [default: 3 to 15]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, ROUNDS_MAX))]
    pub(crate) rounds: Option<usize>,

    /// Length of each run, roughly [default: 0.5; rr: 2; rr TARGET: 10]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = measured)]
    pub(crate) seconds: Option<Duration>,

    /// Test that it works here: one round that is too short for figures
    #[arg(long)]
    pub(crate) quick: bool,

    /// Write a page with charts to FILE, and print only its name
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Print the report as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PathArgs {
    /// Print a line for each aim (steerage help performance) instead of the report
    #[arg(long, conflicts_with = "json")]
    pub(crate) summary: bool,

    #[command(flatten)]
    pub(crate) experiment: ExperimentArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RrArgs {
    /// Server to measure: an address or a name, and a port
    #[arg(value_name = "TARGET", value_parser = target, conflicts_with_all = ["cpus", "rounds", "quick", "html"])]
    pub(crate) target: Option<SocketAddr>,

    /// Connections at a time
    #[arg(short = 'C', long, value_name = "N", default_value_t = 500, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CONNECTIONS_MAX))]
    pub(crate) connections: usize,

    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, MESSAGE_BYTES_MAX))]
    pub(crate) request: usize,

    /// Bytes of a response
    #[arg(long, value_name = "BYTES", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, MESSAGE_BYTES_MAX))]
    pub(crate) response: usize,

    /// Use UDP, with a datagram for each request and response
    #[arg(long, requires = "target")]
    pub(crate) udp: bool,

    /// Time before the measurement begins [default: 1]
    #[arg(hide_short_help = true, long, value_name = "S", allow_negative_numbers = true, value_parser = measured)]
    pub(crate) warm_up: Option<Duration>,

    /// Threads; each has a share of the connections
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, THREADS_MAX))]
    pub(crate) threads: usize,

    #[command(flatten)]
    pub(crate) experiment: ExperimentArgs,
}

fn target(text: &str) -> Result<SocketAddr, String> {
    let found =
        text.to_socket_addrs().map_err(|error| format!("{error}; write such as 10.0.0.2:5000 or [fd00::2]:5000"));
    found?.next().ok_or_else(|| "this name has no address".to_owned())
}

fn measured(text: &str) -> Result<Duration, String> {
    let within = |time: &Duration| (SECONDS_MIN..=SECONDS_MAX).contains(time);
    duration(text)
        .and_then(|time| Some(time).filter(within).ok_or_else(|| "write a time from 1ms to 3600 s".to_owned()))
}
