//! The Internet checksum (RFC 1071).

/// Adds 16-bit words to `sum`. An odd last byte counts as if a zero followed, so only the last
/// piece may have an odd length.
///
/// ```
/// use steerage_flow::offload::checksum::{finish, fold, sum};
///
/// // The example of RFC 1071, section 3.
/// let sum = sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0);
/// assert_eq!((fold(sum), finish(sum)), (0xddf2, 0x220d));
/// ```
pub fn sum(bytes: &[u8], sum: u64) -> u64 {
    // The sum does not depend on the byte order, except for the order of its own two bytes. Words
    // of four bytes are added, several at a time, and their sum folds to the same value.
    let mut blocks = bytes.chunks_exact(32);
    let mut lanes = [0_u64; 8];
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    let folded = u64::from(u16::from_be(fold(lanes.iter().sum())));
    let (pairs, last) = blocks.remainder().split_at(blocks.remainder().len() & !1);
    let words = pairs.chunks_exact(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    sum + folded + words.sum::<u64>() + last.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Folds the sum to 16 bits.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum for this sum.
pub fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// The checksum of TCP or UDP for this sum. It is never zero, because zero means "no checksum" in
/// UDP (RFC 768). For TCP 0 and 0xffff are the same number.
///
/// ```
/// use steerage_flow::offload::checksum::{finish, finish_transport};
///
/// assert_eq!((finish(0xffff), finish_transport(0xffff)), (0, 0xffff));
/// ```
pub fn finish_transport(sum: u64) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}
