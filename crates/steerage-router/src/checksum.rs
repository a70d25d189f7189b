//! The Internet checksum (RFC 1071), and its update when a word changes (RFC 1624).

/// Adds the 16-bit words of `bytes` to `sum`. A single last byte counts as if a zero byte followed.
pub fn sum(bytes: &[u8], sum: u64) -> u64 {
    let (pairs, last) = bytes.split_at(bytes.len() & !1);
    let words = pairs.chunks_exact(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    sum + words.sum::<u64>() + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The checksum for `sum`.
pub fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The checksum after a covered word changed from `old` to `new`: RFC 1624, equation 3.
pub fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Builds a header with its checksum at word 5, as in IPv4. The updated checksum must equal
        /// a checksum over the whole header.
        #[test]
        fn a_changed_word_is_as_summed_anew(mut header in prop::collection::vec(any::<u8>(), 20..=60), ttl in 1_u8..) {
            header[0] = 0x45;
            header[8] = ttl;
            header[10..12].fill(0);
            let before = finish(sum(&header, 0));
            let old = u16::from_be_bytes([header[8], header[9]]);
            header[8] -= 1;
            let anew = finish(sum(&header, 0));
            // In one's complement, all ones and all zeros are the same number, and no header sums
            // to zero (RFC 1624, section 3).
            prop_assert_eq!(adjusted(before, old, old - 0x100), anew);
        }
    }

    #[test]
    fn the_example_of_rfc_1624() {
        assert_eq!(adjusted(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn an_odd_byte_is_the_high_one() {
        assert_eq!(finish(sum(&[0x12, 0x34, 0x56], 0)), !(0x1234 + 0x5600));
    }
}
