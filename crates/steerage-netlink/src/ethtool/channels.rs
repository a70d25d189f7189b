//! The queues of an interface, which ethtool calls channels (`ethtool -l`, `ethtool -L`).

use std::io;

use super::Ethtool;
use crate::attributes::{number, numbers};

const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;
const ETHTOOL_A_CHANNELS_RX_MAX: u16 = 2;
const ETHTOOL_A_CHANNELS_COMBINED_MAX: u16 = 5;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_TX_COUNT: u16 = 7;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;

/// The numbers of an interface's queues, or 0 for a kind of queue that the driver lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// The number of queues that only receive.
    pub rx: u32,
    /// The largest possible number of queues that only receive.
    pub rx_max: u32,
    /// The number of queues that only send.
    pub tx: u32,
    /// The number of queues that receive and send.
    pub combined: u32,
    /// The largest possible number of queues that receive and send.
    pub combined_max: u32,
}

impl Channels {
    /// Returns the number of queues that receive.
    pub fn receiving(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }

    /// Returns the number of queues that send.
    pub fn sending(&self) -> u32 {
        self.tx.saturating_add(self.combined)
    }
}

impl Ethtool {
    /// Returns the numbers of an interface's queues.
    ///
    /// # Errors
    /// Fails if no interface has this name, its driver does not report queues, or the kernel does
    /// not reply.
    pub fn channels(&mut self, interface: &str) -> io::Result<Channels> {
        let reply = self.get(ETHTOOL_MSG_CHANNELS_GET, interface)?;
        let count = |kind| number(&reply, kind);
        Ok(Channels {
            rx: count(ETHTOOL_A_CHANNELS_RX_COUNT),
            rx_max: count(ETHTOOL_A_CHANNELS_RX_MAX),
            tx: count(ETHTOOL_A_CHANNELS_TX_COUNT),
            combined: count(ETHTOOL_A_CHANNELS_COMBINED_COUNT),
            combined_max: count(ETHTOOL_A_CHANNELS_COMBINED_MAX),
        })
    }

    /// Changes the numbers of an interface's queues. `None` keeps a number. Many drivers take the
    /// link down for a moment.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or if the driver refuses a number.
    pub fn set_channels(
        &mut self,
        interface: &str,
        rx: Option<u32>,
        tx: Option<u32>,
        combined: Option<u32>,
    ) -> io::Result<()> {
        let counts = [
            (ETHTOOL_A_CHANNELS_RX_COUNT, rx),
            (ETHTOOL_A_CHANNELS_TX_COUNT, tx),
            (ETHTOOL_A_CHANNELS_COMBINED_COUNT, combined),
        ];
        self.set(ETHTOOL_MSG_CHANNELS_SET, interface, numbers(&counts))
    }
}
