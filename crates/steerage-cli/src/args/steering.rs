//! The options for steering: the flow hash, the length of queues, and memory.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use steerage::flow::limits::VXLAN_PORTS_MAX;
use steerage::flow::{HashKey, HashKind, Layers};
use steerage::limits::BACKLOG_MAX;
use steerage_device::DeviceHash;

use super::MemoryArgs;
use super::values::number;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct SteeringArgs {
    #[command(flatten)]
    pub(crate) hash: HashArgs,

    /// Most packets that wait for a CPU (netdev_max_backlog)
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = steerage::limits::BACKLOG_DEFAULT, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, BACKLOG_MAX))]
    pub(crate) backlog: usize,

    /// Most packets that are polled or handed over at a time (dev_weight)
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = steerage::limits::POLL_BUDGET, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, steerage::limits::POLL_BUDGET))]
    pub(crate) dev_weight: usize,

    #[command(flatten)]
    pub(crate) memory: MemoryArgs,

    /// Check that the packets of each flow are handled in the order of arrival
    #[arg(hide_short_help = true, long)]
    pub(crate) check_order: bool,
}

/// A list of UDP ports.
#[derive(Clone, Debug)]
pub(crate) struct Ports(pub(crate) Vec<u16>);

fn ports(text: &str) -> Result<Ports, String> {
    let ports = text.split(',').map(|port| port.parse().ok().filter(|port| *port > 0)).collect::<Option<Vec<u16>>>();
    let ports = ports.ok_or("a port is a number from 1 to 65535")?;
    let most = VXLAN_PORTS_MAX;
    if ports.len() <= most { Ok(Ports(ports)) } else { Err(format!("there can be at most {most} ports")) }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Steering")]
pub(crate) struct HashArgs {
    /// Flow hash
    #[arg(hide_short_help = true, long, value_name = "HASH", default_value = "auto", hide_possible_values = true,
        value_parser = HashChoice::parser(), help = HASH_HELP)]
    pub(crate) hash: HashChoice,

    /// Key of the hash, in 80 hex digits [default: random; for toeplitz Microsoft's, as in most network cards]
    #[arg(hide_short_help = true, long, value_name = "HEX")]
    pub(crate) hash_key: Option<HashKey>,

    /// Use the outermost IP header, so that a tunnel stays on one CPU
    #[arg(hide_short_help = true, long)]
    pub(crate) outer: bool,

    /// Read VXLAN on UDP port PORT too, besides 4789 and 8472: up to 4 ports, with commas between them
    #[arg(hide_short_help = true, long, value_name = "PORT", value_parser = ports)]
    pub(crate) vxlan_port: Option<Ports>,
}

impl HashArgs {
    pub(crate) fn layers(&self) -> Layers {
        if self.outer { Layers::Outer } else { Layers::Inner }
    }

    /// A device's hash must still keep packets together that must stay on one CPU.
    pub(crate) fn allows_device(&self) -> bool {
        matches!(self.hash, HashChoice::Auto | HashChoice::Device)
    }

    /// `outer_flows` says that the command needs neither both directions of a flow together nor the
    /// flows inside of tunnels, so an interface's hash may be used.
    pub(crate) fn of_interfaces(&self, outer_flows: bool) -> DeviceHash {
        match self.hash {
            HashChoice::Device => DeviceHash::Always,
            HashChoice::Auto if outer_flows && self.hash_key.is_none() => DeviceHash::IfSafe,
            _ => DeviceHash::Never,
        }
    }

    pub(crate) fn has_random_key(&self) -> bool {
        self.hash_key.is_none() && self.kind().is_keyed()
    }

    /// The hash that steerage computes without a device's hash.
    pub(crate) fn kind(&self) -> HashKind {
        match self.hash {
            HashChoice::Auto | HashChoice::Device => HashKind::Keyed,
            HashChoice::Ours(kind) => kind,
        }
    }
}

const HASH_HELP: &str = "\
Flow hash: auto (the interface's hash if that is safe, else aes or siphash), device (always the interface's hash), aes, siphash, \
toeplitz, toeplitz-table, toeplitz-gfni";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashChoice {
    /// The device's own hash if its key is random and the command needs outer flows only, else AES,
    /// or SipHash if the CPU has no AES.
    Auto,
    /// The kernel's hash for live interfaces, which keeps fewer packets together than steerage's.
    Device,
    Ours(HashKind),
}

impl HashChoice {
    /// Parses one of the two choices or the name of a hash. `auto` includes what the library calls `keyed`.
    fn parser() -> impl TypedValueParser<Value = Self> {
        let ours = HashKind::ALL.into_iter().filter(|kind| *kind != HashKind::Keyed).map(HashKind::name);
        PossibleValuesParser::new(["auto", "device"].into_iter().chain(ours)).try_map(|name| match name.as_str() {
            "auto" => Ok(Self::Auto),
            "device" => Ok(Self::Device),
            name => name.parse().map(Self::Ours),
        })
    }
}
