//! The options for steering: the flow hash, the length of queues, and memory.

use clap::{Args, ValueEnum};
use steerage::flow::Layers;
use steerage::{flow::HashKey, limits::BACKLOG_MAX};

use super::MemoryArgs;
use super::values::number;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct SteeringArgs {
    #[command(flatten)]
    pub(crate) hash: HashArgs,

    /// Most packets waiting for a CPU: netdev_max_backlog
    #[arg(long, value_name = "N", default_value_t = steerage::limits::BACKLOG_DEFAULT, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, BACKLOG_MAX))]
    pub(crate) backlog: usize,

    /// Most packets polled, and handed over, at a time: dev_weight
    #[arg(long, value_name = "N", default_value_t = steerage::limits::POLL_BUDGET, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, steerage::limits::POLL_BUDGET))]
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

    /// The hash's key in 80 hex digits [default: random; for toeplitz
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
    pub(crate) fn has_random_key(&self) -> bool {
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
