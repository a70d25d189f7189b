//! The options of `steerage explain`.

use std::time::Duration;

use clap::Args;
use steerage::limits::CPUS_MAX;

use super::values::{number, packets, seconds};
use super::{DirectionArg, HashArgs, SandboxArgs, SteeringCommand};

pub(super) const EXPLAIN_HELP: &str = "\
For a flow, this prints its key, hash and bucket, and its CPU among 2, 4, 8 and more. For a
capture or synthetic traffic, it prints the same for one packet, with the headers that made the
key; the share that the busiest CPU would have; the largest flows; what keeps traffic from
spreading; and advice: how many CPUs and which mask, with the commands for steerage and for the
kernel's own RPS.

The answer is for the command that --for names. count, meter, fanout and respond keep both
directions of a flow on one CPU; forward keeps each direction together by itself.

An interface is listened to for 10 s, unless -c or --seconds says otherwise. No packet is taken
away from the kernel.

Examples:
  steerage explain 'tcp 10.0.0.1:5 > 10.0.0.2:80'
  steerage explain capture.pcap                  is this traffic spreadable?
  steerage explain capture.pcap --packet 17      why did that packet go there?
  steerage explain capture.pcap --outer          the same if tunnels stay together
  steerage explain capture.pcap -f 'port 53'     the same for a part of the traffic
  steerage explain capture.pcap --for forward    the same as a router would steer it
  steerage explain eth0 -Q in --work 500         how many CPUs for 500 ns of work a packet?";

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A flow such as 'tcp 10.0.0.1:5 > 10.0.0.2:80', or where packets come from
    #[arg(value_name = "FLOW|DEVICE", required = true)]
    pub(crate) what: Vec<String>,

    /// Explain how this command steers: count, meter, fanout,
    /// forward or respond
    #[arg(
        long = "for",
        value_name = "COMMAND",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        verbatim_doc_comment
    )]
    pub(crate) command: SteeringCommand,

    /// Look closely at the Nth packet, from 1
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packet: u64,

    /// Show the N largest flows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,

    /// Look only at what tcpdump would show: an expression, numbers
    /// or @FILE; see docs/filters.md
    #[arg(short = 'f', long, value_name = "EXPR", verbatim_doc_comment)]
    pub(crate) filter: Option<String>,

    /// Look at the first N packets only
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Listen to an interface for S seconds (0: no end) [default: 10, with -c 0]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,

    /// Which packets of an interface: in, out or inout; forward
    /// and respond receive only what comes in
    #[arg(
        short = 'Q',
        long,
        value_name = "WAY",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        verbatim_doc_comment
    )]
    pub(crate) direction: DirectionArg,

    /// Advise for this much work per packet, in ns or such as 2us [default: 1000]
    #[arg(long, value_name = "NS", allow_negative_numbers = true, value_parser = work)]
    pub(crate) work: Option<Duration>,

    /// Advise for a machine of N CPUs instead of this one
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CPUS_MAX))]
    pub(crate) virtual_cpus: Option<usize>,

    /// Explain in one line of JSON: see docs/explain.md
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hash: HashArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// The most work on a packet that advice is given for: beyond, it is not packets that are to be spread.
const WORK_MAX: Duration = Duration::from_secs(1);

fn work(text: &str) -> Result<Duration, &'static str> {
    let time = text.parse().map(Duration::from_nanos).ok().or_else(|| humantime::parse_duration(text).ok());
    time.filter(|time| *time <= WORK_MAX).ok_or("write a number of nanoseconds, or such as 2us, up to 1s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_in_nanoseconds_or_has_a_unit() {
        assert_eq!(["0", "250", "2us"].map(|text| work(text).unwrap().as_nanos()), [0, 250, 2_000]);
        for wrong in ["", "-1", "2s", "fast", "1.5"] {
            assert!(work(wrong).is_err(), "{wrong}");
        }
    }
}
