//! The settings of network cards: the family `ethtool` of generic netlink (Documentation/networking/ethtool-netlink.rst of
//! the kernel). There is a file for each kind of setting. Any user may read them.
//!
//! Kernels since 5.6 have the family, unless they are built without it, and since 5.7 the settings here.

mod channels;
mod features;

use std::io;

use crate::attributes::{nested, text_attribute};
use crate::generic::Family;

pub use channels::Channels;
pub use features::Features;

/// The attribute of each request that names the interface.
const HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;

/// A socket for requests about the settings of interfaces.
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
    /// If the kernel refuses the socket, or has no ethtool by netlink.
    pub fn open() -> io::Result<Self> {
        Family::open("ethtool").map(Self)
    }

    /// Sends a command that reads a setting of an interface. Returns the attributes of the reply.
    fn get(&mut self, command: u8, interface: &str) -> io::Result<Vec<u8>> {
        self.0.request(command, &[nested(HEADER, &[text_attribute(ETHTOOL_A_HEADER_DEV_NAME, interface)])])
    }
}
