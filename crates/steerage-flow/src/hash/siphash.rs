//! SipHash (Aumasson and Bernstein, 2012, <https://www.aumasson.jp/siphash/siphash.pdf>), for
//! messages of whole 64-bit words.

/// Computes SipHash-`C`-`D` of little-endian 64-bit words. The caller supplies the last word: its
/// top byte is the message's length in bytes, modulo 256, and its other bytes are the rest of the
/// message.
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
