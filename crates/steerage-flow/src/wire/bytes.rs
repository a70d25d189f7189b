//! Reads and writes integers in network byte order. If the compiler knows the offset and the
//! slice's length, there is no bounds check.

/// Returns the 16-bit number at the offset `at` in `bytes`.
///
/// # Panics
/// All functions of this module panic if the number is not completely within the slice.
#[inline(always)]
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the 32-bit number at the offset `at`.
#[inline(always)]
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the 64-bit number at the offset `at`.
#[inline(always)]
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(number)
}

/// Returns the 128-bit number at the offset `at`.
#[inline(always)]
pub fn be128(bytes: &[u8], at: usize) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[at..at + 16]);
    u128::from_be_bytes(number)
}

/// Writes bytes at offset `at`, for example the bytes of a number in network byte order.
///
/// ```
/// use steerage_flow::wire::{be16, ethernet, ethertype, put};
///
/// let mut frame = [0; 60];
/// put(&mut frame, ethernet::TYPE_AT, ethertype::IPV4.to_be_bytes());
/// assert_eq!(be16(&frame, ethernet::TYPE_AT), ethertype::IPV4);
/// ```
#[inline(always)]
pub fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}
