//! The options of `steerage forward`.

use clap::Args;

use super::RunArgs;
use steerage_router::kernel::Route;

pub(super) const FORWARD_HELP: &str = "\
DEVICE is an interface of the router: IFACE listens to it, and af_xdp:IFACE with --take takes its packets from the kernel. A packet \
that arrives on one interface leaves by the interface of its route. Routes, addresses and neighbours are the kernel's, and changes \
take effect at once. The kernel still handles ARP, neighbour discovery and packets for this machine.

The kernel must not forward the same packets: set net.ipv4.conf.IFACE.forwarding=0 and net.ipv6.conf.all.forwarding=0 with sysctl. \
While the command runs, an IPv6 rule keeps the kernel from answering packets for which it has no route. \
The report says what was dropped and why (steerage help forward).

ROUTE is written as for `ip route`: '10.0.0.0/8 via 192.0.2.1 [dev IFACE]', 'default via fe80::1 dev eth1', '10.1.0.0/16 dev eth1' \\
or 'blackhole 10.9.0.0/16'. Several routes for one prefix share its flows.

If every DEVICE is tun:NAME,offload=on, packets stay on the CPU that receives them unless --rps-cpus says otherwise.

Examples:
  steerage forward eth1 eth2                     by the kernel's routes
  steerage forward eth1 eth2 --seconds 60 --json for a minute
  steerage forward eth1 eth2 --route '10.1.0.0/24 dev eth1' \\
      --route 'default via 10.2.0.1 dev eth2'
  steerage forward af_xdp:eth1 af_xdp:eth2 --take 'all not port 22'";

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Route to use instead of the kernel's routes; can be repeated
    #[arg(long, value_name = "ROUTE", action = clap::ArgAction::Append)]
    pub(crate) route: Vec<Route>,

    /// Merge consecutive segments of a TCP or UDP flow before they are routed, for bulk transfers
    #[arg(hide_short_help = true, long)]
    pub(crate) gro: bool,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SilenceKernelArgs {
    /// Interfaces whose packets forward forwards
    #[arg(value_name = "IFACE", required = true)]
    pub(crate) interfaces: Vec<String>,
}
