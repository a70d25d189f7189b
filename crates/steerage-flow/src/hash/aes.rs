//! A hash of one block of 16 bytes with a secret key, computed by four rounds of AES. Three of
//! these hashes in a chain hash three blocks.
//!
//! If two inputs differ by a chosen value, the two AES states also differ by a chosen value with a
//! probability of at most 2^-113. The bound of 2^-113 on this probability requires four AES rounds
//! and independent round keys. See Keliher and Sui, "Exact maximum expected differential and linear
//! probability for two-round AES", IET Information Security 1(2),
//! 2007. Therefore it is very unlikely that the AES states of two different long keys are equal
//! after a block. The bound on differences between AES states is no bound on collisions of the
//! 32-bit hash, because the hash is only a part of the final state. After two AES rounds, each bit
//! of the state depends on all bits of the state before these rounds. Four AES rounds mix all bits
//! in this way twice. With only two AES rounds, the bound on differences is 2^-28. Two AES rounds
//! are hardly faster than four. The hashes of packets are independent, so the CPU executes the AES
//! rounds for one packet while it reads the headers of the next packet.
//!
//! A long key has three blocks. The three blocks of a long key are hashed by CBC-MAC, with the four
//! AES rounds as the cipher. Each block of the flow key is added to the state only after all four
//! rounds for the previous block. Without knowledge of the round keys, an attacker cannot choose a
//! difference in one block that cancels a difference in the next block. (This is the construction
//! ALRED: Daemen and Rijmen, "A new MAC construction ALRED and a special instance ALPHA-MAC",
//! 2005.) CBC-MAC is safe for inputs of equal length, and all long keys have three blocks. Short
//! flow keys are hashed with separate round keys.
//!
//! The inner functions of this file have no attribute `target_feature` for AES. Instead, the inner
//! functions are inlined into a function with the attribute `target_feature` for AES. A function
//! can be marked `target_feature` or `inline(always)`, but not both. The attribute `inline` alone
//! is only a hint, which the compiler may ignore.

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

/// The number of AES rounds per block.
const ROUNDS: usize = 4;

/// The round keys. The first round key is added to the block before the first round. Each AES round
/// then uses one more round key.
pub(super) type RoundKeys = [Block; 1 + ROUNDS];

/// A value of the type `Aes` proves that this CPU has AES instructions, because [`Aes::new`] checks
/// for them.
#[derive(Clone)]
pub(super) struct Aes {
    pub(super) short: RoundKeys,
    pub(super) long: RoundKeys,
    /// True if this CPU also has the instructions that are needed to hash plain frames directly
    /// from their bytes.
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

/// Adds a block to `state`, and then applies all AES rounds. The block consists of the 64-bit words
/// `low` and `high`.
///
/// # Safety
///
/// The CPU has AES.
#[inline(always)]
unsafe fn absorb(state: Block, [low, high]: [u64; 2], keys: &RoundKeys) -> Block {
    // SAFETY: the caller promises AES.
    unsafe { absorb_block(state, block(low, high), keys) }
}

/// Adds `block` to `state`, and then applies all AES rounds.
///
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

/// The AES round keys for short flow keys (two 64-bit words) and for long flow keys (five words).
/// Each round key is a pair of 64-bit words (low, high). There are twenty words. Each 64-bit word
/// of a round key depends on all bytes of `key` and is independent of the other words. The security
/// bound of the AES rounds requires this.
pub(super) fn schedule(key: &HashKey) -> [[[u64; 2]; 1 + ROUNDS]; 2] {
    std::array::from_fn(|form| {
        std::array::from_fn(|round| {
            std::array::from_fn(|half| key.derive(((form * (1 + ROUNDS) + round) * 2 + half) as u64))
        })
    })
}
