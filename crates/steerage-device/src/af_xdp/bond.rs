//! Receiving from bonds (bonding interfaces). The kernel runs the XDP program of a bond in the
//! drivers of the bond's ports, including new and returning ports. The AF_XDP sockets of a bond are
//! bound to the queues of the bond's ports. A port that the bond does not use, such as a backup,
//! receives nothing.

mod places;
mod table;
#[cfg(test)]
mod tests;
mod watcher;

use std::io;

use steerage::DeviceError;
use steerage_netlink::{Link, Rtnetlink};

use super::AfXdpOptions;
use super::interface;
use super::program::Ports;
pub(super) use places::{Places, View};

/// The maximum number of new ports during a run. Each new port uses sockets that were created at
/// the start.
const NEW_PORTS_MAX: usize = 4;

const KIND: &str = "bond";

/// The ports of a bond at the start. Empty if the interface is not a bond.
#[derive(Debug, Default)]
pub(super) struct Bond {
    pub(super) ports: Vec<Port>,
    pub(super) note: Option<String>,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) link: Link,
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

    pub(super) fn for_program(&self, options: &AfXdpOptions) -> Result<Ports, DeviceError> {
        let count = self.ports.len() as u32;
        if count == 0 && options.ports.is_some() {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "it is no bond");
            return Err(options.error("have room for its ports", cause).advise("leave out the option `ports`"));
        }
        Ok(Ports {
            interfaces: self.ports.iter().map(|port| port.link.index).collect(),
            places: if count == 0 { 0 } else { options.ports.unwrap_or(count + 1).max(count) },
            queues: self.ports.iter().map(|port| port.queues).max().unwrap_or(0),
        })
    }
}

pub(super) fn uses(bond: u32, port: &Link) -> bool {
    port.controller == Some(bond) && !port.is_backup
}
