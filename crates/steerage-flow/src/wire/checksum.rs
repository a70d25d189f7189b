//! Computes the Internet checksum (RFC 1071), and updates it when a 16-bit word changes (RFC 1624).

use super::{ipv4, ipv6};

const BLOCK: usize = 32;

/// Adds the 16-bit words of `bytes` to `sum`. If the length is odd, a zero byte is added, so only
/// the last part of a packet may have an odd length.
///
/// ```
/// use steerage_flow::wire::checksum::{finish, fold, sum};
///
/// // The example of RFC 1071, section 3.
/// let sum = sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0);
/// assert_eq!((fold(sum), finish(sum)), (0xddf2, 0x220d));
/// ```
#[inline]
pub fn sum(bytes: &[u8], sum: u64) -> u64 {
    let (rest, sum) = if bytes.len() < BLOCK { (bytes, sum) } else { sum_blocks(bytes, sum) };
    let (pairs, last) = rest.split_at(rest.len() & !1);
    let words = pairs.chunks_exact(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    sum + words.sum::<u64>() + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

fn sum_blocks(bytes: &[u8], sum: u64) -> (&[u8], u64) {
    // The loop adds four-byte words in the machine's byte order. Modulo 0xffff, the sum of
    // four-byte words equals the sum of two-byte words, and the wrong byte order only swaps the two
    // bytes of the sum.
    let mut blocks = bytes.chunks_exact(BLOCK);
    let mut lanes = [0_u64; BLOCK / 4];
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    (blocks.remainder(), sum + u64::from(u16::from_be(fold(lanes.iter().sum()))))
}

/// Folds a sum of 16-bit or 32-bit words to 16 bits, because 2^16 equals 1 modulo 0xffff.
#[inline]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Returns the Internet checksum of data whose words have the sum `sum`.
#[inline]
pub const fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// Returns the TCP or UDP checksum of data whose words have the sum `sum`. In UDP, zero means "no
/// checksum" (RFC 768), so 0xffff is returned instead of zero. In TCP, 0xffff and zero mean the
/// same.
///
/// ```
/// use steerage_flow::wire::checksum::{finish, finish_transport};
///
/// assert_eq!((finish(0xffff), finish_transport(0xffff)), (0, 0xffff));
/// ```
#[inline]
pub const fn finish_transport(sum: u64) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Completes a TCP or UDP checksum over the packet's bytes from `start` on. The field at the offset
/// `at` must contain the sum of the pseudo-header. Returns false and changes nothing if the field
/// is outside of the packet.
///
/// ```
/// use steerage_flow::wire::checksum::complete;
///
/// // The example of RFC 1071, section 3, with two bytes in front of it and the field after it.
/// let mut packet = [9, 9, 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7, 0, 0];
/// assert!(complete(&mut packet, 2, 10) && packet[10..] == [0x22, 0x0d]);
/// assert!(!complete(&mut packet, 2, 11));
/// ```
#[inline]
#[must_use]
pub fn complete(packet: &mut [u8], start: usize, at: usize) -> bool {
    let Some(checksum) = packet.get(start..).map(|summed| finish_transport(sum(summed, 0))) else { return false };
    let Some(field) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return false };
    *field = checksum.to_be_bytes();
    true
}

/// Returns the checksum after a 16-bit word changed from `old` to `new` (RFC 1624, equation 3).
///
/// ```
/// use steerage_flow::wire::checksum::adjusted;
///
/// // The example of RFC 1624, section 4.
/// assert_eq!(adjusted(0xdd2f, 0x5555, 0x3285), 0x0000);
/// ```
#[inline]
pub const fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    finish(!checksum as u64 + !old as u64 + new as u64)
}

/// Returns the sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1). `header` is the IP header,
/// and `bytes` is the length of the transport header and the payload.
#[inline]
pub fn pseudo_sum(header: &[u8], is_v4: bool, protocol: u8, bytes: usize) -> u64 {
    sum(&header[if is_v4 { ipv4::ADDRESSES } else { ipv6::ADDRESSES }], bytes as u64 + u64::from(protocol))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_changed_word_is_as_summed_anew(mut header in prop::collection::vec(any::<u8>(), 20..=60), ttl in 1_u8..) {
            header[0] = ipv4::PLAIN;
            header[8] = ttl;
            header[10..12].fill(0);
            let before = finish(sum(&header, 0));
            let old = u16::from_be_bytes([header[8], header[9]]);
            header[8] -= 1;
            let anew = finish(sum(&header, 0));
            // In one's complement, all ones and all zeros are the same number. No header has the
            // sum zero (RFC 1624, 3).
            prop_assert_eq!(adjusted(before, old, old - 0x100), anew);
        }

        /// The definition of RFC 1071: add the 16-bit words, then the carries.
        #[test]
        fn blocks_and_folds_follow_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..1600), start in any::<u32>()) {
            let mut slow = u64::from(start);
            for pair in bytes.chunks(2) {
                slow += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
            }
            while slow > 0xffff {
                slow = (slow & 0xffff) + (slow >> 16);
            }
            prop_assert_eq!(u64::from(fold(sum(&bytes, start.into()))), slow);
        }
    }

    #[test]
    fn the_largest_sums_fold_to_all_ones() {
        assert_eq!(
            [0, 1, 0xffff, 0x1_0000, 0xffff_0000, 0xffff_ffff, u64::MAX].map(fold),
            [0, 1, 0xffff, 1, 0xffff, 0xffff, 0xffff]
        );
    }

    #[test]
    fn an_odd_byte_is_the_high_one() {
        assert_eq!(finish(sum(&[0x12, 0x34, 0x56], 0)), !(0x1234 + 0x5600));
    }
}
