//! The settings of network cards: the family `ethtool` of generic netlink
//! (Documentation/networking/ethtool-netlink.rst of the kernel). Each kind of setting has its own
//! file below `ethtool/`. Any user may read the settings. A change requires `CAP_NET_ADMIN`.
//!
//! The family `ethtool` exists since Linux 5.6, and the settings in this module since Linux 5.7. A
//! kernel can be built without the family.

mod channels;
mod features;
mod rings;
mod rss;
mod time_stamps;

use std::io;

use netlink_packet_core::DefaultNla;

use crate::attributes::{nested, text_attribute};
use crate::generic::Family;

pub use channels::Channels;
pub use features::Features;
pub use rings::Rings;
pub use rss::Rss;

const HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;

/// A socket for requests about the settings of network interfaces.
///
/// ```
/// use steerage_netlink::ethtool::Ethtool;
///
/// if let Ok(mut ethtool) = Ethtool::open() {
///     assert!(ethtool.features("lo")?.is_on("loopback"));
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Ethtool(Family);

impl Ethtool {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// Fails if the kernel does not create the socket, or does not support ethtool over netlink.
    pub fn open() -> io::Result<Self> {
        Family::open("ethtool").map(Self)
    }

    fn get(&mut self, command: u8, interface: &str) -> io::Result<Vec<u8>> {
        self.0.request(command, &[header(interface)])
    }

    fn set(&mut self, command: u8, interface: &str, values: Vec<DefaultNla>) -> io::Result<()> {
        let attributes: Vec<DefaultNla> = std::iter::once(header(interface)).chain(values).collect();
        self.0.request(command, &attributes).map(drop)
    }
}

fn header(interface: &str) -> DefaultNla {
    nested(HEADER, &[text_attribute(ETHTOOL_A_HEADER_DEV_NAME, interface)])
}
