//! The options of `steerage tune`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use steerage::CpuMask;
use steerage_device::rules::Flow;
use steerage_tune::measure::WINDOW_MIN;
use steerage_tune::purpose::Purpose;

use super::values::{duration, named};
use super::{MetricsArgs, SandboxArgs};

#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Interface to tune; --undo takes several, and without one undoes all interfaces
    #[arg(value_name = "IFACE", required_unless_present = "undo")]
    pub(crate) interfaces: Vec<String>,

    /// Measure, keep what helps, and write an undo file
    #[arg(long, group = "mode")]
    pub(crate) apply: bool,

    /// Restore what tune has changed
    #[arg(long, group = "mode")]
    pub(crate) undo: bool,

    /// Exit with 0 if all is as tune left it; else print the differences and exit with 3
    #[arg(long, group = "mode")]
    pub(crate) check: bool,

    /// Keep the setting: set it again when links, queues or CPUs change
    #[arg(long, group = "mode")]
    pub(crate) watch: bool,

    /// Leave the setting in force when --watch ends
    #[arg(long, requires = "watch")]
    pub(crate) keep: bool,

    /// Also change settings of the whole machine, such as netdev_budget
    #[arg(long)]
    pub(crate) global: bool,

    /// Also change the CPUs of the interface's interrupts
    #[arg(long)]
    pub(crate) irq: bool,

    /// Also change rings, queues and the card's hash, which may take the link down for a moment
    #[arg(long)]
    pub(crate) allow_reset: bool,

    /// Allow --allow-reset on the interface through which this machine is reached
    #[arg(long, requires = "allow_reset")]
    pub(crate) yes: bool,

    /// Write the setting to a file that outlives a restart: link (a .link file of systemd)
    #[arg(long, value_name = "FORMAT")]
    pub(crate) write: Option<WriteArg>,

    /// Prepare the interface for a capture (listen) or a program with AF_XDP, without measuring
    #[arg(long = "for", value_name = "PURPOSE", conflicts_with_all = ["undo", "check", "watch"],
        value_parser = named([("af_xdp", Purpose::AfXdp), ("listen", Purpose::Listen)]))]
    pub(crate) purpose: Option<Purpose>,

    /// Lead this traffic to --queues by rules of the card, as for ethtool -N: 'tcp4 dst-port 443'; can be repeated
    #[arg(long = "flow", value_name = "FLOW", requires = "purpose", requires = "queues")]
    pub(crate) flows: Vec<Flow>,

    /// Receive queues that share the traffic of each --flow, such as 2-3
    #[arg(long, value_name = "LIST", requires = "flows", value_parser = queues)]
    pub(crate) queues: Option<Queues>,

    /// Length of each measured window, at least 5 s [default: 5s]
    #[arg(hide_short_help = true, long, value_name = "DURATION", value_parser = window)]
    pub(crate) window: Option<Duration>,

    /// Length of each measured window, for tests of the program
    #[arg(long, hide = true, value_name = "DURATION", value_parser = duration, conflicts_with = "window")]
    pub(crate) test_window: Option<Duration>,

    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// Numbers of receive queues, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Queues(pub(crate) Vec<u32>);

/// The most receive queues of an interface: the numbers in a list of CPUs end here.
const QUEUES_MAX: usize = 1024;

fn queues(text: &str) -> Result<Queues, &'static str> {
    // Lists of queues and lists of CPUs have the same syntax.
    let list = CpuMask::parse_list(text, QUEUES_MAX).ok().filter(|list| !list.is_empty());
    let list = list.ok_or("write numbers of queues, such as 2 or 0,2-3")?;
    Ok(Queues(list.iter().map(|queue| u32::from(queue.0)).collect()))
}

fn window(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let least = WINDOW_MIN.as_secs();
    if time < WINDOW_MIN {
        Err(format!("write {least}s or more: each change may reorder live traffic"))
    } else {
        Ok(time)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteArg {
    Link,
}
