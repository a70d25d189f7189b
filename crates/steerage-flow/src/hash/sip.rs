//! SipHash as a kernel for flow hashes.

use super::siphash::siphash;
use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;

/// Computes SipHash-1-3 of the key's words, and keeps the low half of the result. A short key is
/// hashed as a message of 16 bytes. A long key is hashed as a message of 47 bytes: five words and
/// the seven bytes of the tag.
///
/// One round per word and three rounds at the end are enough, because an attacker who chooses the
/// input never sees the output. Rust's hash maps use the same numbers of rounds against the same
/// attack.
#[derive(Clone)]
pub(super) struct Sip {
    key: [u64; 2],
}

/// The first label that SipHash passes to [`HashKey::derive`].
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
