//! Receive side scaling (`ethtool -x`, `ethtool -X`): the indirection table and the key of the
//! hash.

use std::io;

use super::Ethtool;
use crate::attributes::{attribute, find};

const ETHTOOL_MSG_RSS_GET: u8 = 38;
const ETHTOOL_MSG_RSS_SET: u8 = 48;
const ETHTOOL_A_RSS_INDIR: u16 = 4;
const ETHTOOL_A_RSS_HKEY: u16 = 5;

/// How a network card spreads packets over its receive queues. Unknown settings are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// The receive queue for each entry of the indirection table.
    pub table: Vec<u32>,
    /// The key of the hash.
    pub key: Vec<u8>,
}

impl Ethtool {
    /// Returns how the network card spreads packets over its receive queues.
    ///
    /// # Errors
    /// Fails if no interface has this name, if its driver has no indirection table, or if the
    /// kernel is older than 6.3.
    pub fn rss(&mut self, interface: &str) -> io::Result<Rss> {
        let reply = self.get(ETHTOOL_MSG_RSS_GET, interface)?;
        let table = find(&reply, ETHTOOL_A_RSS_INDIR).unwrap_or_default();
        let queue = |entry: &[u8]| entry.try_into().map(u32::from_ne_bytes).unwrap_or_default();
        Ok(Rss {
            table: table.chunks_exact(4).map(queue).collect(),
            key: find(&reply, ETHTOOL_A_RSS_HKEY).unwrap_or_default().to_vec(),
        })
    }

    /// Changes the indirection table.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, if the driver refuses the table, or if the kernel is older
    /// than 6.17.
    pub fn set_rss_table(&mut self, interface: &str, table: &[u32]) -> io::Result<()> {
        let bytes: Vec<u8> = table.iter().flat_map(|queue| queue.to_ne_bytes()).collect();
        self.set(ETHTOOL_MSG_RSS_SET, interface, vec![attribute(ETHTOOL_A_RSS_INDIR, bytes)])
    }

    /// Changes the key of the hash.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, if the driver refuses the key, or if the kernel is older than
    /// 6.17.
    pub fn set_rss_key(&mut self, interface: &str, key: &[u8]) -> io::Result<()> {
        self.set(ETHTOOL_MSG_RSS_SET, interface, vec![attribute(ETHTOOL_A_RSS_HKEY, key)])
    }
}
