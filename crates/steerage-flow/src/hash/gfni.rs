//! The Toeplitz hash of receive side scaling, computed by multiplications with bit matrices (the
//! instruction set GFNI).
//!
//! The contribution of input byte `i` to hash byte `j` is linear in the bits of the input byte.
//! Therefore the contribution of an input byte is its product with a matrix of 8 by 8 bits. Row `r`
//! of the matrix contains eight bits of the hash key, beginning with bit `8 * (i + j) + r`.
//! Therefore the matrix for an input byte `i` and a hash byte `j` depends only on `m = i + j`.
//! Because the matrix depends only on `i + j`, forty matrices are enough for all inputs. Matrix `m`
//! is multiplied with the four input bytes `m - 3` to `m`. The four products of a matrix contribute
//! to the hash bytes 3 to 0.
//!
//! The instruction `gf2p8affineqb` multiplies the eight bytes of each 64-bit lane (part of the
//! register) by a matrix for this lane. Therefore each matrix `m` has its own lane (64 bits of a
//! register). The lane of matrix `m` contains the four input bytes for this matrix. One shuffle
//! instruction fills the four 64-bit lanes of a 256-bit register. One multiplication and one XOR
//! then process all four lanes of the register. (DPDK's `rte_thash_gfni` uses the same method, with
//! 512-bit registers.) The matrices and shuffles take 576 bytes and stay in the L1 cache.
//!
//! As in the module `aes`, functions that must be inlined cannot have the attribute
//! `target_feature` (here for AVX2).

use super::toeplitz::Input;
use super::{HashKey, Hashing, Kernel};
use crate::flow_key::FlowKey;
use core::arch::{asm, x86_64::*};
use std::sync::Arc;

/// The number of 64-bit lanes (parts) of a vector register. Each lane has one matrix.
const LANES: usize = 4;
/// The number of registers that hold the matrices for a whole block of 16 bytes. The last byte of a
/// block (number 15) is multiplied by the matrices 15 to 15 + 3, so 19 matrices are needed.
const STEPS_BLOCK: usize = 19_usize.div_ceil(LANES);
/// The number of registers that hold the matrices for the 12 input bytes of an IPv4 flow.
const STEPS_V4: usize = 15_usize.div_ceil(LANES);
/// The number of registers that hold the matrices for the last 4 input bytes of an IPv6 flow.
const STEPS_TAIL: usize = 7_usize.div_ceil(LANES);

/// The matrices for one register, one matrix for each 64-bit lane.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Lanes([u64; LANES]);

type Matrices = [Lanes; HashKey::LEN / LANES];

/// The shuffle indices for both 128-bit halves of a register.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Shuffle([u8; 8 * LANES]);

type Shuffles = [Shuffle; STEPS_BLOCK];

/// A value of the type `Gfni` proves that this CPU has GFNI and AVX2, because [`Gfni::new`] checks
/// for them.
#[derive(Clone)]
pub(super) struct Gfni(Arc<Matrices>);

impl Gfni {
    pub(super) fn new(key: &HashKey) -> Option<Gfni> {
        if !(std::is_x86_feature_detected!("gfni") && std::is_x86_feature_detected!("avx2")) {
            return None;
        }
        Some(Gfni(Arc::new(std::array::from_fn(|i| Lanes(std::array::from_fn(|lane| matrix(key, LANES * i + lane)))))))
    }

    /// # Safety
    ///
    /// The CPU has GFNI and AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn hash_batch_here<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        self.hash_each(batch, hashing);
    }
}

impl Kernel for Gfni {
    const NAME: &'static str = "toeplitz-gfni";

    #[inline(always)]
    fn hash(&self, key: &FlowKey) -> u32 {
        let matrices = &*self.0;
        // SAFETY: `self` exists, so `new` has found that the CPU has GFNI and AVX2.
        unsafe {
            let sum = match Input::of(key) {
                Input::V4(a, b) => product::<0, STEPS_V4>(a, b, &SHUFFLE_V4, matrices),
                Input::Bytes([a, b, c, d, e]) => {
                    let sum = product::<0, STEPS_BLOCK>(a, b, &SHUFFLE, matrices);
                    let sum = _mm256_xor_si256(sum, product::<16, STEPS_BLOCK>(c, d, &SHUFFLE, matrices));
                    let last = e & !0xffff_ffff;
                    _mm256_xor_si256(sum, product::<32, STEPS_TAIL>(last, 0, &SHUFFLE, matrices))
                }
            };
            let sum = _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
            let sum = _mm_xor_si128(sum, _mm_unpackhi_epi64(sum, sum));
            _mm_cvtsi128_si32(sum) as u32
        }
    }

    #[inline(always)]
    fn hash_batch<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        // SAFETY: `self` exists, so `new` has found that the CPU has GFNI and AVX2.
        unsafe { self.hash_batch_here(batch, hashing) }
    }
}

/// Adds up (by XOR) the products of all bytes of one block. Each 64-bit lane of the returned
/// register contains a separate sum. The block begins at byte `AT` of the hash input. `STEPS`
/// registers process the bytes of the block.
///
/// # Safety
///
/// The CPU has GFNI and AVX2.
#[inline(always)]
unsafe fn product<const AT: usize, const STEPS: usize>(
    low: u64,
    high: u64,
    shuffles: &Shuffles,
    matrices: &Matrices,
) -> __m256i {
    let matrices = &matrices[AT / LANES..AT / LANES + STEPS];
    // SAFETY: the intrinsics need AVX2, which the caller promises. Each load reads the 32 bytes of
    // a `Shuffle` or a `Lanes`, which have 32 bytes and are aligned to 32.
    unsafe {
        let block = _mm256_broadcastsi128_si256(_mm_set_epi64x(high as i64, low as i64));
        let mut sum = _mm256_setzero_si256();
        for (shuffle, matrices) in shuffles.iter().zip(matrices) {
            let bytes = _mm256_shuffle_epi8(block, _mm256_load_si256(shuffle.0.as_ptr().cast()));
            sum = _mm256_xor_si256(sum, affine(bytes, _mm256_load_si256(matrices.0.as_ptr().cast())));
        }
        sum
    }
}

/// Multiplies each byte of `bytes` by a matrix: the matrix in the same 64-bit lane (part of the
/// register) of `matrices`. (The standard library's intrinsic for this instruction is stable only
/// from Rust 1.89 on.)
///
/// # Safety
///
/// The CPU has GFNI and AVX.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn affine(bytes: __m256i, matrices: __m256i) -> __m256i {
    let product;
    // SAFETY: the instruction reads and writes these three registers and nothing else. The caller
    // promises that the CPU has GFNI and AVX.
    unsafe {
        asm!("vgf2p8affineqb {}, {}, {}, 0", lateout(ymm_reg) product, in(ymm_reg) bytes, in(ymm_reg) matrices,
            options(pure, nomem, nostack, preserves_flags));
    }
    product
}

/// Returns matrix `m` of the hash key `key` in the format that `gf2p8affineqb` expects. Row `r` of
/// the matrix computes bit `r` of the product, counted from the top. Row `r` is stored as byte `r`
/// of the returned matrix. The instruction multiplies the top bit of a matrix row by the top bit of
/// an input byte. Therefore row `r` consists of eight bits of the hash key, beginning with bit `8 *
/// m + r`. Matrix 39 would need bits after the end of the key, but it is multiplied only with bytes
/// after the end of the input.
fn matrix(key: &HashKey, m: usize) -> u64 {
    let next = key.as_bytes().get(m + 1).copied().unwrap_or(0);
    let bits = u16::from_be_bytes([key.as_bytes()[m], next]);
    u64::from_le_bytes(std::array::from_fn(|r| (bits >> (8 - r)) as u8))
}

/// Entry `i` of this list is the position of input byte `i` in a block of two big-endian 64-bit
/// words.
const SHUFFLE: Shuffles = shuffles([7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8]);

/// The shuffles for an IPv4 key. The hash input is in the order source address, destination
/// address, source port and destination port.
const SHUFFLE_V4: Shuffles = shuffles([5, 4, 3, 2, 13, 12, 11, 10, 1, 0, 9, 8, ZERO, ZERO, ZERO, ZERO]);

/// An index with the top bit set in the operand of the shuffle instruction. For an index with the
/// top bit set, the shuffle instruction writes a zero byte.
const ZERO: u8 = 0x80;

/// The shuffle indices for the 64-bit lanes of a block: for each `m`, the input bytes `m - 3` to
/// `m` move to the low half of lane `m`. Therefore the most significant byte of the hash is byte 3
/// of the 64-bit lane (a part of the register), as in a little-endian number.
const fn shuffles(place: [u8; 16]) -> Shuffles {
    let mut shuffles = [Shuffle([ZERO; 8 * LANES]); STEPS_BLOCK];
    let mut m = 0;
    while m < 16 + 3 {
        let mut byte = 0;
        while byte < 4 {
            if m + byte >= 3 && m + byte - 3 < 16 {
                shuffles[m / LANES].0[m % LANES * 8 + byte] = place[m + byte - 3];
            }
            byte += 1;
        }
        m += 1;
    }
    shuffles
}
