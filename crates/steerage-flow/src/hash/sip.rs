use super::siphash::siphash;
use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;

/// Hashes a flow key with SipHash-1-3. The flow hash is the low half of the result. A short flow
/// key is a message of 16 bytes. A long flow key is a message of 47 bytes: five 64-bit words, and
/// seven bytes for the kind and length of the key.
///
/// Fewer rounds than in SipHash-2-4 are enough, because an attacker never sees the hash. Rust's
/// hash maps also use SipHash-1-3 as a defence against attackers.
#[derive(Clone)]
pub(super) struct Sip {
    key: [u64; 2],
}

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
