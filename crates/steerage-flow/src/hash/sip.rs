//! SipHash as a hash kernel, which is a hash function for flow keys.

use super::siphash::siphash;
use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;

/// Computes SipHash-1-3 of the 64-bit words of the flow key, and returns the low half of the
/// result. A short flow key (two 64-bit words) is hashed as a message of 16 bytes. A long flow key
/// is hashed as a message of 47 bytes: its five 64-bit words and the seven bytes of its tag.
///
/// One SipHash round per 64-bit word and three rounds at the end are enough, because an attacker
/// who chooses the input never sees the hash. The hash maps of Rust's standard library also use
/// SipHash-1-3 against attackers who choose the input.
#[derive(Clone)]
pub(super) struct Sip {
    key: [u64; 2],
}

/// The first of the two labels from which [`HashKey::derive`] derives the SipHash key.
const LABEL: u64 = 1 << 32;

impl Sip {
    pub(super) fn new(key: &HashKey) -> Sip {
        Sip { key: [key.derive(LABEL), key.derive(LABEL + 1)] }
    }
}

impl Kernel for Sip {
    const NAME: &'static str = "siphash-1-3";

    #[inline(always)]
    fn hash(&self, key: &FlowKey) -> u32 {
        let [a, b, c, d, e] = *key.words();
        let hash = if key.is_short() {
            siphash::<1, 3>(self.key, &[a, b, 16 << 56])
        } else {
            siphash::<1, 3>(self.key, &[a, b, c, d, e, 47 << 56 | key.tag()])
        };
        hash as u32
    }
}
