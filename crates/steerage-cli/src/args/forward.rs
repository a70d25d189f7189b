//! The options of `steerage forward`.

use clap::Args;

use super::{RouteArg, RunArgs};

pub(super) const FORWARD_HELP: &str = "\
DEVICE is an interface that takes part: IFACE, which is listened to; af_xdp:IFACE with --take, whose
packets are taken from the kernel. What comes by one goes on by that which the route
to its destination says. Routes, addresses and neighbours are the kernel's and are followed as they
change; ARP, neighbour discovery and packets to this machine stay with the kernel.

The kernel must not forward the same packets itself: sysctl -w net.ipv4.conf.IFACE.forwarding=0
and net.ipv6.conf.all.forwarding=0. What is dropped and why is in the report; see docs/forward.md.

ROUTE is as `ip route` has it: '10.0.0.0/8 via 192.0.2.1 [dev IFACE]', 'default via fe80::1 dev a',
'10.1.0.0/16 dev a', 'blackhole 10.9.0.0/16'. Given more than once for a prefix, flows are spread.

Examples:
  steerage forward eth1 eth2                                  what the kernel's routes say
  steerage forward eth1 eth2 --seconds 60 --json              for a minute, and a report for scripts
  steerage forward eth1 eth2 --route '10.1.0.0/24 dev eth1' --route 'default via 10.2.0.1 dev eth2'
  steerage forward af_xdp:eth1 af_xdp:eth2 --take 'all not port 22'";

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// A route, in the place of all of the kernel's
    #[arg(long, value_name = "ROUTE", action = clap::ArgAction::Append)]
    pub(crate) route: Vec<RouteArg>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
