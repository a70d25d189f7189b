//! `steerage bench`, and what it can measure.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::bench_report::{BenchReportArgs, REPORT_HELP};
use super::{duration, number};

pub(super) const BENCH_HELP: &str = "\
Examples:
  steerage bench rr 10.0.0.2:5000          requests and responses over 500 connections
  steerage bench rr --help                 every option of it
  steerage bench report a.json b.jsonl     show what was measured, here and by other programs";

pub(super) const RR_HELP: &str = "\
The load that receive packet steering was published with: netperf's TCP_RR and UDP_RR, a request of
one byte, and the next one once the response is there, over 500 connections. It uses the kernel's
sockets; whoever answers is at TARGET, such as `steerage respond` or any server that answers a
request of that length by a response of that length. See docs/performance.md.

Latency is from before a request is written until its whole response is read. CPU time of other
programs, such as a server on this machine, is in the machine's and not in this process's.

Examples:
  steerage bench rr 10.0.0.2:5000
  steerage bench rr 10.0.0.2:5000 -n 64 --request 100 --response 1400 --seconds 30
  steerage bench rr 10.0.0.2:7 --udp --json
  taskset -c 0 steerage bench rr 10.0.0.2:5000     on one CPU";

/// The most connections: the ports of one address, and some to spare.
const CONNECTIONS_MAX: usize = 60_000;

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 1 << 24;

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
    /// Requests and responses over many connections, by the kernel's sockets
    #[command(verbatim_doc_comment, after_help = RR_HELP)]
    Rr(RrArgs),

    /// Put together what was measured, here and by other programs, and show it
    #[command(verbatim_doc_comment, after_help = REPORT_HELP)]
    Report(BenchReportArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RrArgs {
    /// Who answers: an address or a name, and a port
    #[arg(value_name = "TARGET", value_parser = target)]
    pub(crate) target: SocketAddr,

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
    #[arg(long)]
    pub(crate) udp: bool,

    /// How long it is measured
    #[arg(long, value_name = "S", default_value = "10", value_parser = measured)]
    pub(crate) seconds: Duration,

    /// How long it runs before that
    #[arg(long, value_name = "S", default_value = "1", value_parser = measured)]
    pub(crate) warm_up: Duration,

    /// Threads, each with its share of the connections
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, THREADS_MAX))]
    pub(crate) threads: usize,

    /// Tell it in one line of JSON: see docs/performance.md
    #[arg(long)]
    pub(crate) json: bool,
}

fn target(text: &str) -> Result<SocketAddr, String> {
    let found =
        text.to_socket_addrs().map_err(|error| format!("{error}; write such as 10.0.0.2:5000 or [fd00::2]:5000"));
    found?.next().ok_or_else(|| "this name has no address".to_owned())
}

fn measured(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time <= SECONDS_MAX { Ok(time) } else { Err("write 3600 s or less".to_owned()) })
}
