//! SipHash (Aumasson and Bernstein, 2012, <https://www.aumasson.jp/siphash/siphash.pdf>), for messages of whole
//! words.

use super::{HashKey, Kernel};
use crate::flow_key::FlowKey;

/// SipHash-`C`-`D` of a message given as little-endian words. As the paper requires, the top byte of the last word is
/// the message's length in bytes, modulo 256, and its other bytes are the rest of the message that fills no word. The
/// caller supplies this word, because here every length is known at compile time.
#[inline(always)]
pub(super) fn siphash<const C: usize, const D: usize>([k0, k1]: [u64; 2], words: &[u64]) -> u64 {
    // "somepseudorandomlygeneratedbytes"
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for word in words {
        v[3] ^= word;
        for _ in 0..C {
            round(&mut v);
        }
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..D {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// SipHash-1-3 of the key's words, cut to its low half. A short key is a message of 16 bytes. A long key is
/// a message of 47 bytes: its five words and the seven bytes of its tag.
///
/// Rust's own hash maps also use one round per word and three at the end, against the same kind of attack: the
/// attacker who chooses the input never sees the output.
#[derive(Clone)]
pub(super) struct Sip {
    key: [u64; 2],
}

/// The labels for [`HashKey::derive`] from here on belong to SipHash.
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
