//! The options of `steerage send`.

use clap::Args;
use steerage_device::rate::RATE_MAX;

use super::RunArgs;
use super::values::number;

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Interface or file to send to, such as eth1 or pcap:FILE
    #[arg(value_name = "OUTPUT")]
    pub(crate) to: String,

    /// Packets per second, or max [default: 1000 to interfaces, max to files]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "pace", value_parser = rate)]
    pub(crate) rate: Option<u64>,

    /// Send the capture files N times
    #[arg(long = "loop", value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, LOOPS_MAX))]
    pub(crate) times: usize,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// The maximum number of times that `send` sends its files. Each repetition is an entry in a list.
const LOOPS_MAX: usize = 1_000_000;

fn rate(text: &str) -> Result<u64, String> {
    if text == "max" {
        return Ok(u64::MAX);
    }
    let number = text.parse().ok().filter(|number| (1..=RATE_MAX).contains(number));
    number.ok_or_else(|| format!("write a number of packets from 1 to {RATE_MAX}, or max"))
}
