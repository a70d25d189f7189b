//! The queues of an interface, which ethtool calls channels: `ethtool -l`.

use std::io;

use netlink_packet_core::parse_u32;

use super::Ethtool;
use crate::attributes::find;

const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_TX_COUNT: u16 = 7;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;

/// How many queues of an interface are in use. The kernel leaves out kinds that the driver does not have; those are 0 here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Queues that only receive.
    pub rx: u32,
    /// Queues that only send.
    pub tx: u32,
    /// Queues that do both.
    pub combined: u32,
}

impl Channels {
    /// How many queues receive.
    pub fn receiving(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }

    /// How many queues send.
    pub fn sending(&self) -> u32 {
        self.tx.saturating_add(self.combined)
    }
}

impl Ethtool {
    /// The queues of the interface of this name.
    ///
    /// # Errors
    /// If there is no such interface, its driver does not report them, or the kernel does not reply.
    pub fn channels(&mut self, interface: &str) -> io::Result<Channels> {
        let reply = self.get(ETHTOOL_MSG_CHANNELS_GET, interface)?;
        let count = |kind| find(&reply, kind).and_then(|count| parse_u32(count).ok()).unwrap_or(0);
        Ok(Channels {
            rx: count(ETHTOOL_A_CHANNELS_RX_COUNT),
            tx: count(ETHTOOL_A_CHANNELS_TX_COUNT),
            combined: count(ETHTOOL_A_CHANNELS_COMBINED_COUNT),
        })
    }
}
