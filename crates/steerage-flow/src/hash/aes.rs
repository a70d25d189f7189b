//! A hash of 16-byte blocks with a secret key: four rounds of AES per block.
//!
//! With four rounds and independent round keys, a chosen difference between two inputs leads to a
//! chosen difference between their AES states with a probability of at most 2^-113 (Keliher and
//! Sui, "Exact maximum expected differential and linear probability for two-round AES", IET
//! Information Security 1(2), 2007). With two rounds, this probability is at most 2^-28, and the
//! hash is hardly faster, because the CPU hashes one packet while it reads the next packet. The
//! bounds on probabilities are for AES states, and not for collisions of the 32-bit hash, which is
//! only a part of the state.
//!
//! The three blocks of a long key are hashed by CBC-MAC with the four rounds as the cipher. An
//! attacker who does not know the round keys cannot choose two blocks whose differences cancel each
//! other (Daemen and Rijmen, "A new MAC construction ALRED and a special instance ALPHA-MAC",
//! 2005). CBC-MAC is safe only for inputs of equal length, so short keys have their own round keys.
//!
//! The inner functions are inlined into a function with `target_feature`. The inner functions
//! cannot have `target_feature` themselves, because it excludes `inline(always)`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use super::{HashKey, Hashing, Kernel};
use crate::flow_key::FlowKey;

#[cfg(target_arch = "aarch64")]
use aarch64 as instructions;
use instructions::{Block, block, low, round, xor, zero};
#[cfg(target_arch = "x86_64")]
use x86_64 as instructions;

const ROUNDS: usize = 4;

/// The key that is added before the first round, and then the key of each round.
pub(super) type RoundKeys = [Block; 1 + ROUNDS];

/// A value of this type proves that this CPU has AES instructions.
#[derive(Clone)]
pub(super) struct Aes {
    pub(super) short: RoundKeys,
    pub(super) long: RoundKeys,
    #[cfg(target_arch = "x86_64")]
    pub(super) reads_frames: bool,
}

impl Aes {
    pub(super) fn new(key: &HashKey) -> Option<Aes> {
        if !instructions::is_there() {
            return None;
        }
        let [short, long] = schedule(key).map(|keys| keys.map(|[low, high]| block(low, high)));
        Some(Aes {
            short,
            long,
            #[cfg(target_arch = "x86_64")]
            reads_frames: instructions::read_frames(),
        })
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
        // SAFETY: `self` exists, so `new` has found that the CPU has AES.
        unsafe {
            let state = if key.is_short() {
                absorb(zero(), [a, b], &self.short)
            } else {
                let state = absorb(zero(), [a, b], &self.long);
                let state = absorb(state, [c, d], &self.long);
                absorb(state, [e, key.tag()], &self.long)
            };
            low(state)
        }
    }

    #[inline(always)]
    fn hash_batch<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        // SAFETY: `self` exists, so `new` has found that the CPU has AES.
        unsafe { self.hash_batch_here(batch, hashing) }
    }
}

/// # Safety
///
/// The CPU has AES.
#[inline(always)]
unsafe fn absorb(state: Block, [low, high]: [u64; 2], keys: &RoundKeys) -> Block {
    // SAFETY: the caller promises AES.
    unsafe { absorb_block(state, block(low, high), keys) }
}

/// # Safety
///
/// The CPU has AES.
#[inline(always)]
pub(super) unsafe fn absorb_block(state: Block, block: Block, keys: &RoundKeys) -> Block {
    let [whiten, rounds @ ..] = keys;
    let mut state = xor(state, xor(block, *whiten));
    for key in rounds {
        // SAFETY: the caller promises AES.
        state = unsafe { round(state, *key) };
    }
    state
}

/// Returns the round keys for short and for long flow keys, as pairs of 64-bit words (low, high).
/// Each word of a round key depends on all bytes of `key`. The words are independent of each other,
/// as the bound of 2^-113 requires.
pub(super) fn schedule(key: &HashKey) -> [[[u64; 2]; 1 + ROUNDS]; 2] {
    std::array::from_fn(|form| {
        std::array::from_fn(|round| {
            std::array::from_fn(|half| key.derive(((form * (1 + ROUNDS) + round) * 2 + half) as u64))
        })
    })
}
