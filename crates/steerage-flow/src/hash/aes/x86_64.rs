use core::arch::x86_64::{
    __m128i, _mm_aesenc_si128, _mm_cvtsi128_si32, _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};

pub(super) type Block = __m128i;

pub(super) fn is_there() -> bool {
    std::is_x86_feature_detected!("aes")
}

pub(super) fn read_frames() -> bool {
    std::is_x86_feature_detected!("sse4.2")
        && std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("bmi1")
        && std::is_x86_feature_detected!("bmi2")
}

#[inline(always)]
pub(super) fn zero() -> Block {
    // SAFETY: x86-64 has SSE2.
    unsafe { _mm_setzero_si128() }
}

#[inline(always)]
pub(super) fn block(low: u64, high: u64) -> Block {
    // SAFETY: x86-64 has SSE2.
    unsafe { _mm_set_epi64x(high as i64, low as i64) }
}

#[inline(always)]
pub(super) fn xor(a: Block, b: Block) -> Block {
    // SAFETY: x86-64 has SSE2.
    unsafe { _mm_xor_si128(a, b) }
}

#[inline(always)]
pub(super) fn low(state: Block) -> u32 {
    // SAFETY: x86-64 has SSE2.
    unsafe { _mm_cvtsi128_si32(state) as u32 }
}

/// Applies the AES steps SubBytes, ShiftRows and MixColumns, and adds the round key.
///
/// # Safety
///
/// The CPU has AES.
#[inline(always)]
pub(super) unsafe fn round(state: Block, key: Block) -> Block {
    // SAFETY: the caller promises AES.
    unsafe { _mm_aesenc_si128(state, key) }
}
