//! The features of an interface, which are mostly offloads (`ethtool -k`).

use std::io;

use super::Ethtool;
use crate::attributes::{each, find, text};

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// The features of an interface, with the kernel's names: `rx-gro`, `rx-lro`, `rx-hashing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The features that are on.
    pub on: Vec<String>,
    /// The features that cannot be changed.
    pub fixed: Vec<String>,
}

impl Features {
    /// Returns true if the feature with this name is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.on.iter().any(|other| other == name)
    }
}

impl Ethtool {
    /// Returns the features of the interface with this name.
    ///
    /// # Errors
    /// Fails if no interface has this name, or the kernel does not reply.
    pub fn features(&mut self, interface: &str) -> io::Result<Features> {
        let reply = self.get(ETHTOOL_MSG_FEATURES_GET, interface)?;
        let names = |set| find(&reply, set).map(bit_names).unwrap_or_default();
        Ok(Features { on: names(ETHTOOL_A_FEATURES_ACTIVE), fixed: names(ETHTOOL_A_FEATURES_NOCHANGE) })
    }
}

/// Returns the names of the bits in a bitset that lists only set bits.
fn bit_names(bitset: &[u8]) -> Vec<String> {
    let bits = each(find(bitset, ETHTOOL_A_BITSET_BITS).unwrap_or_default());
    let bits = bits.filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS_BIT);
    bits.filter_map(|(_, bit)| find(bit, ETHTOOL_A_BITSET_BIT_NAME).map(text)).collect()
}
