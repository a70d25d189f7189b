//! The sizes of an interface's descriptor rings (`ethtool -g`, `ethtool -G`).

use std::io;

use super::Ethtool;
use crate::attributes::{number, numbers};

const ETHTOOL_MSG_RINGS_GET: u8 = 15;
const ETHTOOL_MSG_RINGS_SET: u8 = 16;
const ETHTOOL_A_RINGS_RX_MAX: u16 = 2;
const ETHTOOL_A_RINGS_TX_MAX: u16 = 5;
const ETHTOOL_A_RINGS_RX: u16 = 6;
const ETHTOOL_A_RINGS_TX: u16 = 9;

/// The sizes of an interface's rings, in descriptors, or 0 for a kind of ring that the driver
/// lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    /// The size of each receive ring.
    pub rx: u32,
    /// The size of each transmit ring.
    pub tx: u32,
    /// The size of the largest possible receive ring.
    pub rx_max: u32,
    /// The size of the largest possible transmit ring.
    pub tx_max: u32,
}

impl Ethtool {
    /// Returns the sizes of an interface's rings.
    ///
    /// # Errors
    /// Fails if no interface has this name, its driver does not report rings, or the kernel does
    /// not reply.
    pub fn rings(&mut self, interface: &str) -> io::Result<Rings> {
        let reply = self.get(ETHTOOL_MSG_RINGS_GET, interface)?;
        let size = |kind| number(&reply, kind);
        Ok(Rings {
            rx: size(ETHTOOL_A_RINGS_RX),
            tx: size(ETHTOOL_A_RINGS_TX),
            rx_max: size(ETHTOOL_A_RINGS_RX_MAX),
            tx_max: size(ETHTOOL_A_RINGS_TX_MAX),
        })
    }

    /// Changes the sizes of an interface's rings. `None` keeps a size. Many drivers take the link
    /// down for a moment.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or if the driver refuses a size.
    pub fn set_rings(&mut self, interface: &str, rx: Option<u32>, tx: Option<u32>) -> io::Result<()> {
        let sizes = [(ETHTOOL_A_RINGS_RX, rx), (ETHTOOL_A_RINGS_TX, tx)];
        self.set(ETHTOOL_MSG_RINGS_SET, interface, numbers(&sizes))
    }
}
