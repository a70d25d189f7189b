//! The time stamps of a card (`ethtool -T`).

use std::io;

use super::Ethtool;
use super::features::bit_names;
use crate::attributes::find;

const ETHTOOL_MSG_TSINFO_GET: u8 = 25;
const ETHTOOL_A_TSINFO_RX_FILTERS: u16 = 4;

/// The kernel's name for the filter that stamps no frames.
const NONE: &str = "none";

impl Ethtool {
    /// Returns the names of the received frames that the card of this interface can stamp. The
    /// names are those of the kernel, such as `all` or `ptpv2-event`. The list is empty if the card
    /// stamps no frames.
    ///
    /// # Errors
    /// Fails if no interface has this name, or the kernel does not reply. Linux supports this
    /// request since 5.8.
    pub fn stamped_frames(&mut self, interface: &str) -> io::Result<Vec<String>> {
        let reply = self.get(ETHTOOL_MSG_TSINFO_GET, interface)?;
        let mut filters = find(&reply, ETHTOOL_A_TSINFO_RX_FILTERS).map(bit_names).unwrap_or_default();
        filters.retain(|name| name != NONE);
        Ok(filters)
    }
}
