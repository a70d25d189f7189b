//! The time stamps that a network card can add to frames (`ethtool -T`).

use std::io;

use super::Ethtool;
use super::features::bit_names;
use crate::attributes::find;

const ETHTOOL_MSG_TSINFO_GET: u8 = 25;
const ETHTOOL_A_TSINFO_RX_FILTERS: u16 = 4;

const NONE: &str = "none";

impl Ethtool {
    /// Returns the kinds of received frames that the card can stamp, in the kernel's words, such as
    /// `all` or `ptpv2-event`. The list is empty if the card stamps no frames.
    ///
    /// # Errors
    /// Fails if no interface has this name, the kernel does not reply, or the kernel is older than
    /// 5.8.
    pub fn stamped_frames(&mut self, interface: &str) -> io::Result<Vec<String>> {
        let reply = self.get(ETHTOOL_MSG_TSINFO_GET, interface)?;
        let mut filters = find(&reply, ETHTOOL_A_TSINFO_RX_FILTERS).map(bit_names).unwrap_or_default();
        filters.retain(|name| name != NONE);
        Ok(filters)
    }
}
