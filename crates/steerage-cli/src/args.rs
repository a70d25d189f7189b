//! The command line: what can be asked for, in the words of `--help`.
//!
//! The groups are shared by all commands that receive packets; a command flattens [`RunArgs`] and adds its own.

mod bench;
mod bench_report;
mod control;
mod doctor;
mod explain;
mod fanout;
mod forward;
mod memory;
mod meter;
mod metrics;
mod respond;
mod send;
mod tools;
mod top;

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use steerage::flow::Layers;
use steerage::{BACKLOG_MAX, CPUS_MAX, HashKey};
use steerage_device::af_packet::{BLOCK_TIMEOUT_MAX, Direction, QUEUES_MAX};
use steerage_device::af_xdp::Take;
use steerage_device::capture::Pace;

pub(crate) use bench::{Bench, BenchArgs, ExperimentArgs, RrArgs};
pub(crate) use bench_report::BenchReportArgs;
pub(crate) use control::{ControlArgs, GetArgs, SetArgs, ToArgs, UnmountArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use fanout::FanoutArgs;
pub(crate) use forward::ForwardArgs;
pub(crate) use memory::MemoryArgs;
pub(crate) use meter::MeterArgs;
pub(crate) use metrics::MetricsArgs;
pub(crate) use respond::{HostArgs, RespondArgs};
pub(crate) use send::SendArgs;
pub(crate) use tools::{CompletionsArgs, ManArgs, RunFileArgs};
pub(crate) use top::TopArgs;

/// Receive packet steering in user space: one busy receive queue spread over
/// many CPUs, flow by flow, in order.
#[derive(Debug, Parser)]
#[command(name = "steerage", version, verbatim_doc_comment, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Tell what happens on standard error; -vv tells more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  steerage count                     10 s of synthetic traffic over all CPUs
  steerage meter capture.pcap        who talked to whom
  steerage run traffic.toml          what is written down there
  steerage count --help              every option of a command, with examples

Exit status: 0 it went well, 1 an error, 2 a wrong command line,
3 with --strict a packet that was lost or out of order.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Count packets: what the path itself can do
    #[command(verbatim_doc_comment, after_help = COUNT_HELP)]
    Count(CountArgs),

    /// Meter flows: who talked to whom, when and how much
    #[command(verbatim_doc_comment, after_help = meter::METER_HELP)]
    Meter(MeterArgs),

    /// Deal flows out to several outputs, each to one of them
    #[command(verbatim_doc_comment, after_help = fanout::FANOUT_HELP)]
    Fanout(FanoutArgs),

    /// Forward IPv4 and IPv6 between interfaces, as a router does
    #[command(verbatim_doc_comment, after_help = forward::FORWARD_HELP)]
    Forward(ForwardArgs),

    /// Answer as a host of its own: ping, echo, requests by TCP
    #[command(verbatim_doc_comment, after_help = respond::RESPOND_HELP)]
    Respond(RespondArgs),

    /// Send packets: made up, or from capture files
    #[command(verbatim_doc_comment, after_help = send::SEND_HELP)]
    Send(SendArgs),

    /// Explain where packets go, and whether traffic can be spread
    #[command(verbatim_doc_comment, after_help = explain::EXPLAIN_HELP)]
    Explain(ExplainArgs),

    /// Measure: experiments that were published, on this machine
    #[command(verbatim_doc_comment, after_help = bench::BENCH_HELP)]
    Bench(BenchArgs),

    /// Tell what this machine offers, and what to do about each lack
    #[command(verbatim_doc_comment, after_help = doctor::DOCTOR_HELP)]
    Doctor(DoctorArgs),

    /// Read from a running instance's tree
    #[command(verbatim_doc_comment, after_help = control::GET_HELP)]
    Get(GetArgs),

    /// Change a running instance: its masks, its limits
    #[command(verbatim_doc_comment, after_help = control::SET_HELP)]
    Set(SetArgs),

    /// Watch a running instance: its CPUs, queues and buckets
    #[command(verbatim_doc_comment, after_help = top::TOP_HELP)]
    Top(TopArgs),

    /// Run what is written down in a file
    #[command(verbatim_doc_comment, after_help = tools::RUN_HELP)]
    Run(RunFileArgs),

    /// Check such a file, and tell what it would do
    #[command(verbatim_doc_comment, after_help = tools::CHECK_HELP)]
    Check(RunFileArgs),

    /// Print what has a shell complete the command line
    #[command(verbatim_doc_comment, after_help = tools::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),

    /// Print the manual page, or write those of all commands
    #[command(verbatim_doc_comment, after_help = tools::MAN_HELP)]
    Man(ManArgs),

    /// Take a mounted tree away when standard input ends: what --control starts
    #[command(hide = true)]
    UnmountAtEnd(UnmountArgs),
}

const COUNT_HELP: &str = "\
DEVICE:
  synthetic[:OPTION=VALUE,...]   packets made up on the spot; options: flows, size, zipf,
                                 packets, rate, seed, mix (such as udp4+tcp6+vlan), queues
  FILE                           a capture: pcap or pcapng, as it is or packed by gzip or zstd
  -                              a capture that comes by standard input
  IFACE                          an interface, listened to: see docs/interfaces.md
  af_xdp:IFACE[,OPTION=VALUE...] an interface, its packets taken from the kernel, which needs
                                 --take: see docs/af_xdp.md

Several files are read one after the other, as one capture; see docs/captures.md.

Synthetic traffic has no end of its own: without -c, --seconds or `packets=` it stops after 10 s.
--seconds 0 goes on until Ctrl-C.

CPU lists are written 0-3,8 or all; a MASK is the kernel's bitmap, in hex, as in rps_cpus.
Ctrl-C or SIGTERM stops, finishes what is in flight (2 s at most) and reports; a second Ctrl-C
quits at once. SIGUSR1 reports and goes on.

Examples:
  steerage count                                        synthetic traffic over all CPUs
  steerage count capture.pcap --check-order             a file, and was any flow reordered?
  steerage count part1.pcap.gz part2.pcap.gz            a capture in parts, as one
  tcpdump -i eth0 -w - | steerage count -               whatever tcpdump sees
  steerage count capture.pcap --pace 2                  twice as fast as it was recorded
  steerage count eth1                                   whatever comes and goes by eth1
  steerage count eth1 -f 'not port 22'                  the same without what tcpdump calls port 22
  steerage count af_xdp:eth1 --take 'udp port 53'       DNS by eth1, taken from the kernel
  steerage count --rx-cpu 0 --cpus 1-3                  CPU 0 only receives, 1 to 3 work
  steerage count synthetic:rate=1000000 --strict        fails unless all of 1 Mpps arrives
  steerage count --seconds 0 --interval 10              a line each 10 s, until Ctrl-C
  steerage count --virtual-cpus 16 -c 1000000 --json    16 CPUs on any machine, for scripts";

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

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
}

/// How interfaces are listened to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct LiveArgs {
    /// Of an interface only what tcpdump would show: an
    /// expression, numbers or @FILE; see docs/filters.md
    #[arg(short = 'f', long, value_name = "EXPR", verbatim_doc_comment)]
    pub(crate) filter: Option<String>,

    /// Which packets: in, out or inout
    #[arg(short = 'Q', long, value_name = "WAY", value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) direction: DirectionArg,

    /// Only packets that are for this machine
    #[arg(short = 'p', long)]
    pub(crate) no_promiscuous: bool,

    /// Size of each receive queue's ring, with K, M or G [default: 32M]
    #[arg(short = 'B', long, value_name = "SIZE", value_parser = memory::size)]
    pub(crate) buffer_size: Option<usize>,

    /// How long packets may wait for a block to be full of them:
    /// when little comes, they are that late
    /// [default: 10ms; forward: 1ms]
    #[arg(long, value_name = "DURATION", verbatim_doc_comment, value_parser = block_timeout)]
    pub(crate) block_timeout: Option<Duration>,

    /// Receive queues of an interface, each a share of flows
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, QUEUES_MAX))]
    pub(crate) queues: usize,

    /// What is taken away from the kernel by af_xdp: such as
    /// 'udp port 53 or net 10.0.0.0/8', or all; see docs/af_xdp.md
    #[arg(long, value_name = "EXPR", verbatim_doc_comment)]
    pub(crate) take: Option<Take>,

    /// Put our XDP program in the place of one that is there already
    #[arg(long)]
    pub(crate) replace: bool,

    /// What is received is sent on: its checksums have to be right.
    #[arg(skip)]
    pub(crate) forwards: bool,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DirectionArg {
    In,
    Out,
    #[default]
    Inout,
}

impl From<DirectionArg> for Direction {
    fn from(direction: DirectionArg) -> Self {
        match direction {
            DirectionArg::In => Self::In,
            DirectionArg::Out => Self::Out,
            DirectionArg::Inout => Self::InOut,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "CPUs")]
pub(crate) struct CpuArgs {
    /// CPUs that work [default: those this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,

    /// CPUs that poll the receive queues, in turn [default: --cpus]
    #[arg(long, value_name = "LIST")]
    pub(crate) rx_cpu: Option<String>,

    /// CPUs that packets are spread over [default: --cpus]; 0: no steering
    #[arg(long, value_name = "MASK", conflicts_with = "rps_cpus_list")]
    pub(crate) rps_cpus: Option<String>,

    /// The same, as a list
    #[arg(long, value_name = "LIST")]
    pub(crate) rps_cpus_list: Option<String>,

    /// How they are used: balance, as load asks for it; hash, all of
    /// them alike, as in Linux; dry-run, as hash, telling what balance
    /// would move [default: balance]
    #[arg(long, value_name = "POLICY", default_value = "balance", hide_possible_values = true, hide_default_value = true,
        value_parser = PossibleValuesParser::new(steerage::POLICIES), verbatim_doc_comment)]
    pub(crate) policy: String,

    /// Be a machine of N CPUs, with a thread for each: for tests
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CPUS_MAX))]
    pub(crate) virtual_cpus: Option<usize>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct SteeringArgs {
    #[command(flatten)]
    pub(crate) hash: HashArgs,

    /// Most packets waiting for a CPU: netdev_max_backlog
    #[arg(long, value_name = "N", default_value_t = steerage::BACKLOG_DEFAULT, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, BACKLOG_MAX))]
    pub(crate) backlog: usize,

    /// Most packets polled, and handed over, at a time: dev_weight
    #[arg(long, value_name = "N", default_value_t = steerage::POLL_BUDGET, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, steerage::POLL_BUDGET))]
    pub(crate) dev_weight: usize,

    #[command(flatten)]
    pub(crate) memory: MemoryArgs,

    /// Check that each flow's packets are handled in the order of their arrival
    #[arg(long)]
    pub(crate) check_order: bool,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct HashArgs {
    /// Flow hash
    #[arg(long, value_name = "HASH", value_enum, default_value_t, hide_possible_values = true,
        help = HASH_HELP)]
    pub(crate) hash: HashChoice,

    /// The hash's key in 80 hex digits [default: by chance; for toeplitz
    /// Microsoft's, as in most network cards]
    #[arg(long, value_name = "HEX", verbatim_doc_comment)]
    pub(crate) hash_key: Option<HashKey>,

    /// Go by the outermost IP header: what is in a tunnel stays together
    #[arg(long)]
    pub(crate) outer: bool,
}

impl HashArgs {
    /// Which flow counts where packets are in tunnels.
    pub(crate) fn layers(&self) -> Layers {
        if self.outer { Layers::Outer } else { Layers::Inner }
    }

    /// Whether a device's hash may serve, where it keeps together what must stay together.
    pub(crate) fn allows_device(&self) -> bool {
        matches!(self.hash, HashChoice::Auto | HashChoice::Device)
    }

    /// Whether an interface's packets are to be hashed by the kernel.
    pub(crate) fn asks_kernel(&self) -> bool {
        self.hash == HashChoice::Device
    }

    /// Whether each run draws a key of its own.
    pub(crate) fn has_key_by_chance(&self) -> bool {
        self.hash_key.is_none()
            && matches!(self.hash, HashChoice::Auto | HashChoice::Device | HashChoice::Aes | HashChoice::Siphash)
    }
}

const HASH_HELP: &str = "\
auto (the device's where it serves, else ours), device (an interface's
by the kernel), aes, siphash, toeplitz, toeplitz-table,
toeplitz-gfni";

/// Which hash flows are told apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HashChoice {
    /// The device's own where it keeps together what must stay together, else AES, else SipHash.
    #[default]
    Auto,
    /// The kernel's for live interfaces, though it keeps less together than ours.
    Device,
    Aes,
    Siphash,
    /// What network cards compute, by the fastest means that this CPU has.
    Toeplitz,
    ToeplitzTable,
    ToeplitzGfni,
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

/// A number of things of which there can be `most`.
fn number(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {most}"))
}

/// A number of seconds, or with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = seconds(text).ok().or_else(|| humantime::parse_duration(text).ok());
    parsed
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "write a number of seconds, or such as 500ms, 5m or 1h".to_owned())
}

/// The shortest time between two reports: below, a run would be busier with reporting than a person is with reading.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time < INTERVAL_MIN { Err("write 10 ms or more".to_owned()) } else { Ok(time) })
}

fn block_timeout(text: &str) -> Result<Duration, String> {
    let within = |time: &Duration| (Duration::from_millis(1)..=BLOCK_TIMEOUT_MAX).contains(time);
    duration(text).ok().filter(within).ok_or_else(|| "write a time from 1ms to 10s".to_owned())
}

fn packets(text: &str) -> Result<u64, &'static str> {
    text.parse().ok().filter(|packets| *packets > 0).ok_or("write a number from 1 on")
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "write a number of seconds, such as 10 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|_| "write a number of seconds from 0 on".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        let millis = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(
            [millis("300"), millis("0.5"), millis("5m"), millis("1h 30m"), millis("20ms")].map(Result::unwrap),
            [300_000, 500, 300_000, 5_400_000, 20]
        );
        for wrong in ["", "0", "0s", "-1", "5 minutes ago", "inf"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_may_be_parts_of_one() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["", "-1", "inf", "NaN", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    /// Help is read on terminals of 80 to 100 columns, and clap does not wrap it here.
    #[test]
    fn help_fits_a_terminal() {
        let mut command = Cli::command();
        command.build();
        for command in std::iter::once(&mut command.clone()).chain(command.get_subcommands_mut()) {
            let help = command.render_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
