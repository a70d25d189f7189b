//! Reads the state of an interface.

use std::io;

use steerage_netlink::ethtool::{Channels, Ethtool};
use steerage_netlink::{Link, Rtnetlink};

pub(super) fn look(name: &str) -> io::Result<Link> {
    Rtnetlink::open()?.link(name)
}

/// Returns the numbers of an interface's queues. If the driver does not report the queues, the
/// interface has one queue that both receives and sends.
pub(super) fn queues(name: &str) -> Channels {
    reported_queues(name).unwrap_or_else(|| Channels { combined: 1, ..Channels::default() })
}

pub(super) fn reported_queues(name: &str) -> Option<Channels> {
    let channels = Ethtool::open().and_then(|mut ethtool| ethtool.channels(name)).ok();
    channels.filter(|channels| channels.receiving() > 0 && channels.sending() > 0)
}
