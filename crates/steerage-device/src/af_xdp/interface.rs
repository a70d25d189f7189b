//! Reads the state of an interface.

use std::io;

use steerage_netlink::ethtool::{Channels, Ethtool};
use steerage_netlink::{Link, Rtnetlink};

/// The type of interfaces whose frames have Ethernet headers (linux/if_arp.h).
pub(super) const ETHERNET: u16 = 1;

/// The interface with this name.
pub(super) fn look(name: &str) -> io::Result<Link> {
    Rtnetlink::open()?.link(name)
}

/// The queues of the interface. If the driver or the kernel does not report queues, the result is
/// one queue that both receives and sends.
pub(super) fn queues(name: &str) -> Channels {
    reported_queues(name).unwrap_or_else(|| Channels { combined: 1, ..Channels::default() })
}

/// Returns the queues of the interface, or `None` if the driver does not report them.
pub(super) fn reported_queues(name: &str) -> Option<Channels> {
    let channels = Ethtool::open().and_then(|mut ethtool| ethtool.channels(name)).ok();
    channels.filter(|channels| channels.receiving() > 0 && channels.sending() > 0)
}
