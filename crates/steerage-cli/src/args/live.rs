//! The options for interfaces: listened to by AF_PACKET, or taken from the kernel by AF_XDP.

use std::time::Duration;

use clap::Args;
use steerage_device::af_packet::{BLOCK_TIMEOUT_MAX, Direction, QUEUES_MAX};
use steerage_device::af_xdp::Take;

use super::memory;
use super::values::{duration, named, number};

/// How interfaces are listened to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct LiveArgs {
    /// Receive only what this tcpdump filter matches, such as 'port 53'
    #[arg(short = 'f', long, value_name = "EXPR")]
    pub(crate) filter: Option<String>,

    /// Receive packets of this direction: in, out or inout
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

    /// Receive only packets that are for this machine
    #[arg(hide_short_help = true, short = 'p', long)]
    pub(crate) no_promiscuous: bool,

    /// Memory for each receive queue, in KiB as for tcpdump, or with K, M or G [default: 32M]
    #[arg(hide_short_help = true, short = 'B', long, value_name = "SIZE", value_parser = memory::buffer)]
    pub(crate) buffer_size: Option<usize>,

    /// Longest time that a packet waits for a batch to fill [default: 10ms; forward: 1ms]
    #[arg(hide_short_help = true, long, value_name = "DURATION", value_parser = block_timeout)]
    pub(crate) block_timeout: Option<Duration>,

    /// Receive queues for each interface; each queue has a share of the flows
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, QUEUES_MAX))]
    pub(crate) queues: usize,

    /// Packets that af_xdp takes from the kernel, such as 'udp port 53', or all
    #[arg(long, value_name = "EXPR")]
    pub(crate) take: Option<Take>,

    /// Replace an XDP program that the interface already has
    #[arg(hide_short_help = true, long)]
    pub(crate) replace: bool,

    /// Share the interface with other XDP programs: which runs first; the lowest number does
    /// [default: 50 if xdp-loader loaded one]
    #[arg(hide_short_help = true, long, value_name = "N")]
    pub(crate) xdp_priority: Option<u32>,

    /// The command sends received packets on, so their checksums must be right.
    #[arg(skip)]
    pub(crate) forwards: bool,

    /// The command sends received packets through outputs that support super-frames.
    #[arg(skip)]
    pub(crate) offloads: bool,

    /// The command needs neither both directions of a flow on one CPU, nor the flows inside of tunnels.
    #[arg(skip)]
    pub(crate) outer_flows: bool,
}

/// The changes of the machine that are undone at the end of a run.
#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// Programs in dispatchers, by the numbers of their interfaces and their own, and files of interfaces
    #[arg(value_name = "INTERFACE:PROGRAM|INTERFACE/FILE=BEFORE=OURS", required = true)]
    pub(crate) done: Vec<String>,
}

pub(super) const DIRECTIONS: [(&str, Direction); 3] =
    [("in", Direction::In), ("out", Direction::Out), ("inout", Direction::InOut)];

fn block_timeout(text: &str) -> Result<Duration, String> {
    let within = |time: &Duration| (Duration::from_millis(1)..=BLOCK_TIMEOUT_MAX).contains(time);
    duration(text).ok().filter(within).ok_or_else(|| "write a time from 1ms to 10s".to_owned())
}
