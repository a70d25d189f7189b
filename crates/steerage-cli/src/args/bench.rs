//! The options of `steerage bench`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::SandboxArgs;
use super::bench_report::{BenchReportArgs, REPORT_HELP};
use super::values::{duration, number};

pub(super) const BENCH_HELP: &str = "\
Each experiment repeats the shape of a published one, on this machine: see docs/bench.md. All of
them take some nine minutes on two CPUs; none but rr needs a network or privileges. Let nothing
else run meanwhile.

Examples:
  steerage bench all --html report.html    everything, as a page with charts
  steerage bench rps                       one of them, as text
  steerage bench handoff --rounds 15       more rounds: differences show that are smaller
  steerage bench all --quick               does it work here? A few seconds, and no figures
  sudo steerage bench rr                   the kernel's stack beside respond, in namespaces
  steerage bench rr 10.0.0.2:5000          requests and responses over 500 connections, to a server
  steerage bench report a.json b.jsonl     show what was measured, here and by other programs";

const EXPERIMENT_HELP: &str = "\
Cases are run in turn, A B C A B C ... Before and after each run it is measured how far the CPUs are
apart: near and far are told apart, and runs in which that changed are left out. Progress is shown
on a terminal. Ctrl-C ends it after the present run, and reports what there is; a second one quits
at once. docs/bench.md tells what each experiment is, and how to read it.

Examples:
  steerage bench all --html report.html
  setsid nice -n -20 steerage bench rps --cpus 2,3
  steerage bench page-cache --rounds 21 --seconds 0.2 --json";

pub(super) const RR_HELP: &str = "\
The load that receive packet steering was published with: netperf's TCP_RR and UDP_RR, a request of
one byte, and the next one once the response is there, over 500 connections. It uses the kernel's
sockets.

With a TARGET, whoever answers is there, such as `steerage respond` or any server that answers a
request of that length by a response of that length. Latency is from before a request is written
until its whole response is read. CPU time of other programs, such as a server on this machine, is
in the machine's and not in this process's.

Without one it is an experiment as the others: in two network namespaces of its own, joined by a
veth, the kernel's stack and `steerage respond` are the server in turn, with steering and without.
That takes root, and `ip`; nothing of the machine's own network is touched. See docs/bench.md.

Examples:
  steerage bench rr 10.0.0.2:5000
  steerage bench rr 10.0.0.2:5000 -n 64 --request 100 --response 1400 --seconds 30
  steerage bench rr 10.0.0.2:7 --udp --json
  taskset -c 0 steerage bench rr 10.0.0.2:5000     on one CPU
  sudo steerage bench rr --html rr.html            the kernel beside respond";

/// The most rounds: a day's worth.
const ROUNDS_MAX: usize = 1000;

/// The most connections: the ports of one address, and some to spare.
const CONNECTIONS_MAX: usize = 60_000;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 1 << 24;

/// The shortest that it runs: below, it is mostly beginning and end.
const SECONDS_MIN: Duration = Duration::from_millis(1);

/// The longest that it runs: whoever wants more is no benchmark.
const SECONDS_MAX: Duration = Duration::from_secs(3600);

/// The most threads.
const THREADS_MAX: usize = 256;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// All of the experiments below, one after the other
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    All(ExperimentArgs),

    /// With and without steering, by work per packet; and its delay
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    Rps(ExperimentArgs),

    /// Lists against single packets, with a collecting CPU and without
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    Handoff(ExperimentArgs),

    /// Metadata made early and late: throughput, and loss at a rate
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    LateMetadata(ExperimentArgs),

    /// The local page cache on and off, with queues that contend
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    PageCache(ExperimentArgs),

    /// What a packet costs the receiving CPU and the worker
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    Path(PathArgs),

    /// Reading headers: key and hash, by traffic
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    Hash(ExperimentArgs),

    /// Metering a capture in memory
    #[command(verbatim_doc_comment, after_help = EXPERIMENT_HELP)]
    Meter(ExperimentArgs),

    /// Requests and responses: a load for TARGET, or the kernel beside us
    #[command(verbatim_doc_comment, after_help = RR_HELP)]
    Rr(RrArgs),

    /// Put together what was measured, here and by other programs, and show it
    #[command(verbatim_doc_comment, after_help = REPORT_HELP)]
    Report(BenchReportArgs),
}

/// How experiments are run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// CPUs to use [default: those this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,

    /// How often each case is run, in turn [default: 3 to 15]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, ROUNDS_MAX))]
    pub(crate) rounds: Option<usize>,

    /// How long each run is measured, about
    /// [default: 0.5; rr: 2, with a TARGET 10]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = measured, verbatim_doc_comment)]
    pub(crate) seconds: Option<Duration>,

    /// One round of runs too short for figures: does it work here?
    #[arg(long)]
    pub(crate) quick: bool,

    /// Write the report to FILE as a page with charts, which needs
    /// nothing else
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    pub(crate) html: Option<PathBuf>,

    /// Print the report as one line of JSON: see docs/bench-report.md
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PathArgs {
    /// Print one line for each aim of docs/performance.md instead of the
    /// report
    #[arg(long, conflicts_with = "json", verbatim_doc_comment)]
    pub(crate) summary: bool,

    #[command(flatten)]
    pub(crate) experiment: ExperimentArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RrArgs {
    /// Who answers: an address or a name, and a port
    #[arg(value_name = "TARGET", value_parser = target, conflicts_with_all = ["cpus", "rounds", "quick", "html"])]
    pub(crate) target: Option<SocketAddr>,

    /// How many connections at a time
    #[arg(short = 'n', long, value_name = "N", default_value_t = 500, allow_negative_numbers = true,
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

    /// By UDP: a datagram for each request and response
    #[arg(long, requires = "target")]
    pub(crate) udp: bool,

    /// How long it runs before it is measured [default: 1]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = measured)]
    pub(crate) warm_up: Option<Duration>,

    /// Threads, each with its share of the connections
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
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
