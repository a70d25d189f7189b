//! Bonds. The XDP program is attached to the bond, and the kernel runs it in the drivers of the
//! bond's ports, also of ports that leave the bond and return. The sockets are those of the ports'
//! queues. A port that the bond does not use, such as a backup, receives nothing.

use std::io;

use steerage_netlink::{Link, Rtnetlink};

use super::interface;
use super::program::Ports;

/// The kind of interface, as rtnetlink(7) names it.
const KIND: &str = "bond";

/// The ports of a bond at the start. Empty if the interface is no bond.
#[derive(Debug, Default)]
pub(super) struct Bond {
    pub(super) ports: Vec<Port>,
    /// A note for the user.
    pub(super) note: Option<String>,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) link: Link,
    /// How many receive queues the port has.
    pub(super) queues: u32,
}

impl Bond {
    pub(super) fn of(interface: &Link) -> io::Result<Self> {
        if interface.kind.as_deref() != Some(KIND) {
            return Ok(Self::default());
        }
        let links = Rtnetlink::open()?.ports(interface.index)?;
        if links.is_empty() {
            return Err(io::Error::other("it has none"));
        }
        let port = |link: Link| {
            let queues = interface::queues(link.name.as_deref().unwrap_or_default()).receiving();
            Port { link, queues }
        };
        let name = interface.name.as_deref().unwrap_or_default();
        let note = (interface.down_delay == Some(0)).then(|| {
            format!(
                "{name}: its downdelay is 0, so the bond drops a port at once whose driver restarts for an XDP program: \
                 ip link set {name} type bond miimon 100 downdelay 1000"
            )
        });
        Ok(Self { ports: links.into_iter().map(port).collect(), note })
    }

    /// The ports for the program.
    pub(super) fn for_program(&self) -> Ports {
        let interfaces = self.ports.iter().map(|port| port.link.index).collect();
        Ports { interfaces, queues: self.ports.iter().map(|port| port.queues).max().unwrap_or(0) }
    }
}

/// Whether the bond uses this port to receive.
pub(super) fn uses(bond: u32, port: &Link) -> bool {
    port.controller == Some(bond) && !port.is_backup
}
