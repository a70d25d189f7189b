//! Reads the state of an interface, and follows its changes.

use std::io;

use steerage_netlink::ethtool::Ethtool;
use steerage_netlink::{Change, Changes, Entry, Link, Rtnetlink};

/// The type of interfaces with Ethernet headers: linux/if_arp.h.
pub(super) const ETHERNET: u16 = 1;

/// The interface with this name.
pub(super) fn look(name: &str) -> io::Result<Link> {
    Rtnetlink::open()?.link(name)
}

/// The state of an interface after its changes.
#[derive(Debug)]
pub(super) enum Changed {
    No,
    Now(Link),
    Deleted,
}

/// The state of the interface after the changes that have arrived. It never waits. `Err` means that changes may have been
/// missed; the next change brings the whole state.
pub(super) fn changed(changes: &mut Changes) -> io::Result<Changed> {
    let mut last = Changed::No;
    let is_complete = changes.read(&mut |change| match (&last, change) {
        (Changed::Deleted, _) => {}
        (_, Change::Now(Entry::Link(link))) => last = Changed::Now(link),
        (_, Change::Deleted(Entry::Link(_))) => last = Changed::Deleted,
        _ => {}
    });
    match last {
        Changed::No if !is_complete => Err(io::Error::other("too many changes at a time")),
        last => Ok(last),
    }
}

/// The number of queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) receive: u32,
    pub(super) send: u32,
}

/// The number of queues of the interface. If the driver or the kernel does not report it, it is 1 of each kind.
pub(super) fn queues(name: &str) -> Queues {
    let channels = Ethtool::open().and_then(|mut ethtool| ethtool.channels(name)).unwrap_or_default();
    let [receive, send] = [channels.rx, channels.tx].map(|count| count.saturating_add(channels.combined));
    if receive > 0 && send > 0 { Queues { receive, send } } else { Queues { receive: 1, send: 1 } }
}
