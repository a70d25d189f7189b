//! The options of `steerage explain`.

use std::time::Duration;

use clap::Args;
use steerage::limits::CPUS_MAX;
use steerage_device::af_packet::Direction;

use super::live::DIRECTIONS;
use super::values::{named, number, packets, seconds};
use super::{HabitArgs, HashArgs, SandboxArgs, SteeringCommand};

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A flow such as 'tcp 10.0.0.1:5 > 10.0.0.2:80', or the input as for count
    #[arg(value_name = "FLOW|DEVICE", required = true)]
    pub(crate) what: Vec<String>,

    /// Explain for this command: count, meter, fanout or forward
    #[arg(long = "for", value_name = "COMMAND", value_enum, default_value_t, hide_possible_values = true)]
    pub(crate) command: SteeringCommand,

    /// Explain the Nth packet in detail, counted from 1
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packet: u64,

    /// Show the N largest flows
    #[arg(short = 't', long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,

    /// Look only at what this tcpdump filter matches, such as 'port 53'
    #[arg(short = 'f', long, value_name = "EXPR")]
    pub(crate) filter: Option<String>,

    /// Look only at the first N packets
    #[arg(hide_short_help = true, short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Listen to an interface for S seconds; 0 means no end [default: 10; with -c: 0]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,

    /// Look at packets of this direction: in, out or inout; forward receives only incoming packets
    #[arg(
        hide_short_help = true,
        short = 'Q',
        long,
        value_name = "WAY",
        default_value = "inout",
        hide_possible_values = true,
        value_parser = named(DIRECTIONS)
    )]
    pub(crate) direction: Direction,

    /// Advise for this much work per packet, in ns or with a unit, such as 2us [default: 1000]
    #[arg(long, value_name = "NS", allow_negative_numbers = true, value_parser = work)]
    pub(crate) work: Option<Duration>,

    /// Advise for a machine of N CPUs instead of this one
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CPUS_MAX))]
    pub(crate) virtual_cpus: Option<usize>,

    /// Print the explanation as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) habits: HabitArgs,

    #[command(flatten)]
    pub(crate) hash: HashArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// With more work per packet, packets are not the bottleneck, and `explain` gives no advice.
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
