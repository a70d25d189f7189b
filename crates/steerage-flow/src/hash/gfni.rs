//! The Toeplitz hash by multiplications with bit matrices (the instruction set GFNI).
//!
//! Byte `j` of the hash is a sum (XOR) of products: each input byte `i` is multiplied by a matrix
//! of 8 by 8 bits. Row `r` of the matrix for `i` and `j` has eight bits of the hash key, from bit
//! `8 * (i + j) + r` on. A matrix depends only on the sum `m = i + j`, so forty matrices are
//! enough. Matrix `m` is multiplied by four input bytes: from byte `m - 3` (for byte 3 of the hash)
//! to byte `m` (for byte 0 of the hash).
//!
//! The instruction `gf2p8affineqb` multiplies the eight bytes of each 64-bit lane by the lane's
//! matrix. One shuffle fills the four lanes of a 256-bit register, each with the four input bytes
//! for the lane's matrix. After the shuffle, one multiplication and one XOR process all four lanes.
//! (DPDK's `rte_thash_gfni` uses 512-bit registers.) The matrices and shuffles take 576 bytes of
//! the L1 cache.
//!
//! The module `aes` explains why the inner functions have no attribute `target_feature`.

use super::toeplitz::Input;
use super::{HashKey, Hashing, Kernel};
use crate::flow_key::FlowKey;
use core::arch::{asm, x86_64::*};
use std::sync::Arc;

const LANES: usize = 4;
/// The last byte of a 16-byte block (byte 15) is multiplied by the matrices 15 to 18, so a block
/// needs 19 matrices.
const STEPS_BLOCK: usize = 19_usize.div_ceil(LANES);
const STEPS_V4: usize = 15_usize.div_ceil(LANES);
const STEPS_TAIL: usize = 7_usize.div_ceil(LANES);

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Lanes([u64; LANES]);

type Matrices = [Lanes; HashKey::LEN / LANES];

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Shuffle([u8; 8 * LANES]);

type Shuffles = [Shuffle; STEPS_BLOCK];

/// A value of this type proves that this CPU has GFNI and AVX2.
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

/// Returns the XOR of the products of all bytes of one block, separately for each lane.
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

/// Multiplies each byte of `bytes` by the matrix in its lane. (The standard library's intrinsic is
/// stable only from Rust 1.89 on.)
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

/// Returns matrix `m` in the format of `gf2p8affineqb`: byte `r` is the row for bit `r` of the
/// product, counted from the top. The last matrix (39) lacks bits, because the hash key ends, but
/// only padding after the end of the input is multiplied by it.
fn matrix(key: &HashKey, m: usize) -> u64 {
    let next = key.as_bytes().get(m + 1).copied().unwrap_or(0);
    let bits = u16::from_be_bytes([key.as_bytes()[m], next]);
    u64::from_le_bytes(std::array::from_fn(|r| (bits >> (8 - r)) as u8))
}

/// The position of each input byte in a block of two big-endian 64-bit words.
const SHUFFLE: Shuffles = shuffles([7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8]);

/// The position of each input byte in an IPv4 key, in the order source address, destination
/// address, source port, destination port.
const SHUFFLE_V4: Shuffles = shuffles([5, 4, 3, 2, 13, 12, 11, 10, 1, 0, 9, 8, ZERO, ZERO, ZERO, ZERO]);

/// The shuffle instruction writes a zero byte for an index with the top bit set.
const ZERO: u8 = 0x80;

/// For each matrix `m`, moves the input bytes from `m - 3` to `m` into the low half of the matrix's
/// lane. Byte 3 of the product in a lane is the most significant byte of the hash, as in a
/// little-endian number.
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
