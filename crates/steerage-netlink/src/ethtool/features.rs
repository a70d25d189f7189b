//! The features of an interface, which are mostly offloads (`ethtool -k`, `ethtool -K`).

use std::io;

use super::Ethtool;
use crate::attributes::{attribute, each, find, nested, text, text_attribute};

const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

/// The features of an interface, in the kernel's words, such as `rx-gro` or `rx-hashing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The features that are on.
    pub on: Vec<String>,
    /// The features that can be turned on and off.
    pub changeable: Vec<String>,
}

impl Features {
    /// Returns true if the feature with this name is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.on.iter().any(|other| other == name)
    }
}

impl Ethtool {
    /// Returns the features of the interface with the given name.
    ///
    /// # Errors
    /// Fails if no interface has this name, or the kernel does not reply.
    pub fn features(&mut self, interface: &str) -> io::Result<Features> {
        let reply = self.get(ETHTOOL_MSG_FEATURES_GET, interface)?;
        let names = |set| find(&reply, set).map(bit_names).unwrap_or_default();
        let never = names(ETHTOOL_A_FEATURES_NOCHANGE);
        let mut changeable = names(ETHTOOL_A_FEATURES_HW);
        changeable.retain(|name| !never.contains(name));
        Ok(Features { on: names(ETHTOOL_A_FEATURES_ACTIVE), changeable })
    }

    /// Turns a feature on or off. The kernel may also change features that depend on this feature.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or if the feature cannot be changed.
    pub fn set_feature(&mut self, interface: &str, name: &str, on: bool) -> io::Result<()> {
        let mut bit = vec![text_attribute(ETHTOOL_A_BITSET_BIT_NAME, name)];
        if on {
            bit.push(attribute(ETHTOOL_A_BITSET_BIT_VALUE, []));
        }
        let bits = nested(ETHTOOL_A_BITSET_BITS, &[nested(ETHTOOL_A_BITSET_BITS_BIT, &bit)]);
        self.set(ETHTOOL_MSG_FEATURES_SET, interface, vec![nested(ETHTOOL_A_FEATURES_WANTED, &[bits])])?;
        // The kernel reports success even if it did not change the feature.
        match self.features(interface)?.is_on(name) == on {
            true => Ok(()),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// A bitset without a mask lists only the set bits. A bitset with a mask lists all bits of the
/// mask.
pub(super) fn bit_names(bitset: &[u8]) -> Vec<String> {
    let bits = each(find(bitset, ETHTOOL_A_BITSET_BITS).unwrap_or_default());
    let lists_only_set = find(bitset, ETHTOOL_A_BITSET_NOMASK).is_some();
    let is_set = |bit| lists_only_set || find(bit, ETHTOOL_A_BITSET_BIT_VALUE).is_some();
    let bits = bits.filter(|(kind, bit)| *kind == ETHTOOL_A_BITSET_BITS_BIT && is_set(bit));
    bits.filter_map(|(_, bit)| find(bit, ETHTOOL_A_BITSET_BIT_NAME).map(text)).collect()
}
