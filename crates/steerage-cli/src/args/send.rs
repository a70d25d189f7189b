//! The options of `steerage send`.

use clap::Args;
use steerage_device::rate::RATE_MAX;

use super::RunArgs;
use super::values::number;

pub(super) const SEND_HELP: &str = "\
OUTPUT is an interface, af_xdp:IFACE, tap:NAME, tun:NAME or pcap:FILE: see docs/outputs.md. DEVICE
is as for count: synthetic traffic or capture files, which are sent as they are.

Packets leave in the order in which they came, from one CPU. With --rps-cpus or --rps-cpus-list
more CPUs send, each its flows, and only flows keep their order.

Without --rate an interface gets 1000 packets a second, so that nobody floods a network by a
default; `--rate max` is as fast as it goes. Files are written as fast as it goes.

Examples:
  steerage send eth1 -c 10000                           10,000 packets made up, in 10 s
  steerage send eth1 capture.pcap --rate 50000 --loop 3 a capture three times over
  steerage send eth1 capture.pcap --pace                as it was recorded
  steerage send pcap:made.pcapng synthetic:flows=100,packets=5000,mix=udp4+tcp6
  steerage send pcap:office.pcapng synthetic:profile=office,packets=100000";

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Where packets go to
    #[arg(value_name = "OUTPUT")]
    pub(crate) to: String,

    /// Packets a second, or max [default: 1000 into interfaces]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "pace", value_parser = rate)]
    pub(crate) rate: Option<u64>,

    /// Send capture files N times over
    #[arg(long = "loop", value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, LOOPS_MAX))]
    pub(crate) times: usize,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// How often files can be sent: each time is an entry in a list.
const LOOPS_MAX: usize = 1_000_000;

fn rate(text: &str) -> Result<u64, String> {
    if text == "max" {
        return Ok(u64::MAX);
    }
    let number = text.parse().ok().filter(|number| (1..=RATE_MAX).contains(number));
    number.ok_or_else(|| format!("write a number of packets from 1 to {RATE_MAX}, or max"))
}
