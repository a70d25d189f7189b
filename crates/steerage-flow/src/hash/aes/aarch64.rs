//! A round of AES with the cryptographic extension of 64-bit Arm. AESE adds its key before
//! SubBytes, so `round` passes a zero key and adds the round key after MixColumns, which is the
//! order of AES-NI on x86.

use core::arch::aarch64::{
    uint8x16_t, vaeseq_u8, vaesmcq_u8, vcombine_u64, vcreate_u64, vdupq_n_u8, veorq_u8, vgetq_lane_u32,
    vreinterpretq_u8_u64, vreinterpretq_u32_u8,
};

pub(super) type Block = uint8x16_t;

pub(super) fn is_there() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[inline(always)]
pub(super) fn zero() -> Block {
    // SAFETY: 64-bit Arm has NEON.
    unsafe { vdupq_n_u8(0) }
}

#[inline(always)]
pub(super) fn block(low: u64, high: u64) -> Block {
    // SAFETY: 64-bit Arm has NEON.
    unsafe { vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high))) }
}

#[inline(always)]
pub(super) fn xor(a: Block, b: Block) -> Block {
    // SAFETY: 64-bit Arm has NEON.
    unsafe { veorq_u8(a, b) }
}

#[inline(always)]
pub(super) fn low(state: Block) -> u32 {
    // SAFETY: 64-bit Arm has NEON.
    unsafe { vgetq_lane_u32::<0>(vreinterpretq_u32_u8(state)) }
}

/// Applies the AES steps SubBytes, ShiftRows and MixColumns, and adds the round key.
///
/// # Safety
///
/// The CPU has AES.
#[inline(always)]
pub(super) unsafe fn round(state: Block, key: Block) -> Block {
    // SAFETY: the caller promises AES.
    unsafe { veorq_u8(vaesmcq_u8(vaeseq_u8(state, vdupq_n_u8(0))), key) }
}
