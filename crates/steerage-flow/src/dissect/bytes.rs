//! Reads integers at an offset known at compile time, from an array whose length is known too, so that no bounds
//! check is left.

#[inline(always)]
pub(super) fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(super) fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(super) fn be128<const N: usize>(bytes: &[u8; N], at: usize) -> u128 {
    u128::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}
