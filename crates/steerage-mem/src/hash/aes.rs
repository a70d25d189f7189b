//! Four rounds of AES as a keyed hash of one block, and a chain of such for three blocks.
//!
//! Four rounds with independent round keys bring any chosen difference between two inputs to any chosen difference of
//! the whole state with a probability of at most 2^-113 (Keliher and Sui, "Exact maximum expected differential and
//! linear probability for two-round AES", IET Information Security 1(2), 2007). So two long keys do not meet on the
//! way; that the 32 bits kept at the end collide no more often than 32 bits must is not proved by this, but every bit
//! of them has passed through all of the state twice. For two rounds the bound is 2^-28, and they are hardly cheaper:
//! packets are independent, so the rounds of one overlap with the header reads of the next.
//!
//! A long key is three blocks, CBC-MAC with the four rounds as the cipher: each block is added only after the one
//! before has gone through all four, so a difference in one cannot be cancelled by one in the next without the round
//! keys (the construction is ALRED's: Daemen and Rijmen, "A new MAC construction ALRED and a special instance
//! ALPHA-MAC", 2005). Long keys are all of three blocks, the case in which CBC-MAC needs no further care; short ones
//! have round keys of their own.
//!
//! The functions that do the work are not compiled for AES themselves but inlined into the one that is: a function can
//! be told `target_feature` or `inline(always)`, not both, and as a hint `inline` is not always taken.

use super::{FlowKey, HashKey, Hashing, Kernel};
use core::arch::x86_64::{
    __m128i, _mm_aesenc_si128, _mm_cvtsi128_si32, _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};

/// Rounds a block.
const ROUNDS: usize = 4;

/// One key to whiten the block, then one a round.
type RoundKeys = [__m128i; 1 + ROUNDS];

/// That there is one of these means that this CPU has AES: [`Aes::new`] looked.
#[derive(Clone)]
pub(super) struct Aes {
    short: RoundKeys,
    long: RoundKeys,
}

impl Aes {
    pub(super) fn new(key: &HashKey) -> Option<Aes> {
        if !std::is_x86_feature_detected!("aes") {
            return None;
        }
        let [short, long] = schedule(key).map(|keys| {
            keys.map(|[low, high]| {
                // SAFETY: SSE2, which `_mm_set_epi64x` needs, is part of x86-64.
                unsafe { _mm_set_epi64x(high as i64, low as i64) }
            })
        });
        Some(Aes { short, long })
    }

    /// # Safety
    ///
    /// The CPU has AES.
    #[target_feature(enable = "aes")]
    unsafe fn hash_batch_here<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        self.hash_each(batch, hashing);
    }
}

impl Kernel for Aes {
    const NAME: &'static str = "aes";

    #[inline(always)]
    fn hash(&self, key: &FlowKey) -> u32 {
        let &[a, b, c, d, e] = key.words();
        // SAFETY: x86-64 has SSE2, and there is an `Aes`, so `new` has found that the CPU has AES.
        unsafe {
            let state = if key.is_short() {
                absorb(_mm_setzero_si128(), a, b, &self.short)
            } else {
                let state = absorb(_mm_setzero_si128(), a, b, &self.long);
                let state = absorb(state, c, d, &self.long);
                absorb(state, e, key.tag(), &self.long)
            };
            _mm_cvtsi128_si32(state) as u32
        }
    }

    #[inline(always)]
    fn hash_batch<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        // SAFETY: there is an `Aes`, so `new` has found that the CPU has AES.
        unsafe { self.hash_batch_here(batch, hashing) }
    }
}

/// The block (`low`, `high`) added to `state`, then all rounds.
///
/// # Safety
///
/// The CPU has AES.
#[inline(always)]
unsafe fn absorb(state: __m128i, low: u64, high: u64, keys: &RoundKeys) -> __m128i {
    let [whiten, rounds @ ..] = keys;
    // SAFETY: the intrinsics need AES and SSE2; the caller promises the first, x86-64 has the second.
    unsafe {
        let block = _mm_xor_si128(_mm_set_epi64x(high as i64, low as i64), *whiten);
        let mut state = _mm_xor_si128(state, block);
        for round in rounds {
            state = _mm_aesenc_si128(state, *round);
        }
        state
    }
}

/// The round keys (low word, high word) of short and of long keys: twenty words, each derived from all of `key` and
/// independent of the others, as the bound above supposes.
pub(super) fn schedule(key: &HashKey) -> [[[u64; 2]; 1 + ROUNDS]; 2] {
    std::array::from_fn(|form| {
        std::array::from_fn(|round| {
            std::array::from_fn(|half| key.derive(((form * (1 + ROUNDS) + round) * 2 + half) as u64))
        })
    })
}
