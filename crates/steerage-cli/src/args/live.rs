//! The options for interfaces: listened to by AF_PACKET, or taken from the kernel by AF_XDP.

use std::time::Duration;

use clap::{Args, ValueEnum};
use steerage_device::af_packet::{BLOCK_TIMEOUT_MAX, Direction, QUEUES_MAX};
use steerage_device::af_xdp::Take;

use super::memory;
use super::values::{duration, number};

/// How interfaces are listened to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Live")]
pub(crate) struct LiveArgs {
    /// From interfaces and files, take only what tcpdump would
    /// show: an expression, numbers or @FILE; see docs/filters.md
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

    /// What is received is sent on by outputs that take super-frames.
    #[arg(skip)]
    pub(crate) offloads: bool,

    /// The command needs neither both directions of a flow on one CPU, nor the flows inside of tunnels.
    #[arg(skip)]
    pub(crate) outer_flows: bool,
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

fn block_timeout(text: &str) -> Result<Duration, String> {
    let within = |time: &Duration| (Duration::from_millis(1)..=BLOCK_TIMEOUT_MAX).contains(time);
    duration(text).ok().filter(within).ok_or_else(|| "write a time from 1ms to 10s".to_owned())
}
