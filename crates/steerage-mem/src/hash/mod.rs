//! Flow hashes: what decides which bucket, and so which CPU, a packet goes to.
//!
//! A [`FlowKey`] says what is hashed, a [`FlowHasher`] how, and a [`FlowHash`] is the 32 bits that come out. Two kinds
//! of hash serve two ends:
//!
//! * **Keyed** ([`FlowHasher::keyed`]): AES rounds, or SipHash-1-3 where the CPU has no AES. Whoever does not know the
//!   [`HashKey`] cannot aim packets at one CPU. This is the one to steer by.
//! * **Toeplitz** ([`FlowHasher::toeplitz`]): what network cards compute for receive side scaling (RSS). It is linear,
//!   so one observed collision gives as many more as one likes; it is here for agreement with hardware.
//!
//! Packets are hashed a batch at a time ([`FlowHasher::hash_batch_with`]): a function compiled for a CPU feature cannot
//! be inlined into one that is not, so a call per packet would cost more than the AES rounds themselves.

#[cfg(not(target_arch = "x86_64"))]
mod absent;
#[cfg(target_arch = "x86_64")]
mod aes;
mod flow_key;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod hash_key;
mod parse;
mod sip;
#[cfg(test)]
mod tests;
mod toeplitz;

#[cfg(not(target_arch = "x86_64"))]
use absent::{Aes, Gfni};
#[cfg(target_arch = "x86_64")]
use aes::Aes;
pub use flow_key::{FlowKey, FlowParts, protocol};
#[cfg(target_arch = "x86_64")]
use gfni::Gfni;
pub use hash_key::{HashKey, ParseHashKeyError};
pub use parse::ParseFlowKeyError;
use sip::Sip;
use std::fmt;
use toeplitz::Table;

/// The hash of a flow: 32 bits, of which any are as good as any others when the hasher is a keyed one.
///
/// Shown as eight hexadecimal digits, most significant first, as the RSS verification suite prints them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FlowHash(pub u32);

impl fmt::Display for FlowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Where a batch's keys come from and where its hashes go.
///
/// Mark both functions `#[inline(always)]`, and what they call on the usual path: they are compiled into each kernel's
/// loop, and only a method can be told to be (a closure cannot, nor a function passed as one).
///
/// ```
/// use steerage_mem::hash::{FlowHash, FlowHasher, FlowKey, Hashing, HashKey};
///
/// struct Slot { key: FlowKey, cpu: u8 }
/// struct Steering<'a> { cpus: &'a [u8; 4096] }
///
/// impl Hashing<Slot> for Steering<'_> {
///     #[inline(always)]
///     fn key(&self, slot: &Slot) -> FlowKey {
///         slot.key.both_directions()
///     }
///
///     #[inline(always)]
///     fn store(&self, slot: &mut Slot, FlowHash(hash): FlowHash) {
///         slot.cpu = self.cpus[hash as usize >> 20];
///     }
/// }
///
/// let mut batch = [Slot { key: FlowKey::v4((1, 2), (3, 4), 6), cpu: 0 }];
/// FlowHasher::keyed(&HashKey::MICROSOFT).hash_batch_with(&mut batch, &Steering { cpus: &[7; 4096] });
/// assert_eq!(batch[0].cpu, 7);
/// ```
pub trait Hashing<T> {
    /// The key of an item.
    fn key(&self, item: &T) -> FlowKey;

    /// Takes the hash of that key.
    fn store(&self, item: &mut T, hash: FlowHash);
}

/// One way to hash. An implementation that needs a CPU feature can only be constructed where the feature is: holding
/// one is the proof that its instructions may run.
trait Kernel {
    /// What [`FlowHasher::name`] says.
    const NAME: &'static str;

    /// Always inlined: into a function compiled for the CPU feature that it needs, if it needs one. (Elsewhere it is
    /// right too, but each of its instructions is a call.)
    fn hash(&self, key: &FlowKey) -> u32;

    #[inline(always)]
    fn hash_each<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        for item in batch {
            let hash = self.hash(&hashing.key(item));
            hashing.store(item, FlowHash(hash));
        }
    }

    /// A kernel that needs a CPU feature overrides this, to call [`hash_each`](Kernel::hash_each) from such a function.
    #[inline(always)]
    fn hash_batch<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        self.hash_each(batch, hashing);
    }
}

/// Hashes flow keys, in the way chosen when it was made.
///
/// Two hashers of one [`name`](FlowHasher::name), made from equal keys, give equal hashes; so do the two forms of
/// Toeplitz. AES and SipHash do not agree with each other.
///
/// ```
/// use steerage_mem::hash::{FlowHasher, FlowKey, HashKey, protocol};
///
/// let hasher = FlowHasher::toeplitz(&HashKey::MICROSOFT);
/// let key = FlowKey::v4((0x420995bb, 2794), (0xa18e6450, 1766), protocol::TCP);
/// assert_eq!(key.to_string(), "tcp 66.9.149.187:2794 > 161.142.100.80:1766");
/// assert_eq!(hasher.hash(&key).to_string(), "51ccc178");
/// ```
#[derive(Clone)]
pub struct FlowHasher(Kind);

#[derive(Clone)]
enum Kind {
    Aes(Aes),
    Sip(Sip),
    Table(Table),
    Gfni(Gfni),
}

/// Evaluates `$body` with `$kernel` bound to the kernel in `$hasher`, compiled for each of them.
macro_rules! with_kernel {
    ($hasher:expr, $kernel:ident => $body:expr) => {
        match &$hasher.0 {
            Kind::Aes($kernel) => $body,
            Kind::Sip($kernel) => $body,
            Kind::Table($kernel) => $body,
            Kind::Gfni($kernel) => $body,
        }
    };
}

impl FlowHasher {
    /// The hash to steer by: unpredictable to whoever does not know `key`. AES where this CPU has it, else SipHash.
    ///
    /// ```
    /// # use steerage_mem::hash::{FlowHasher, HashKey};
    /// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    /// assert!(["aes", "siphash-1-3"].contains(&hasher.name()));
    /// ```
    #[must_use]
    pub fn keyed(key: &HashKey) -> FlowHasher {
        FlowHasher::aes(key).unwrap_or_else(|| FlowHasher::sip(key))
    }

    /// Four AES rounds a block, with round keys derived from `key`. `None` where this CPU has no AES instructions.
    #[must_use]
    pub fn aes(key: &HashKey) -> Option<FlowHasher> {
        Aes::new(key).map(|kernel| FlowHasher(Kind::Aes(kernel)))
    }

    /// SipHash-1-3, its 128-bit key derived from `key`. On every CPU; about three times the work of AES.
    #[must_use]
    pub fn sip(key: &HashKey) -> FlowHasher {
        FlowHasher(Kind::Sip(Sip::new(key)))
    }

    /// The hash that RSS hardware with this `key` computes, by the fastest means this CPU has.
    ///
    /// The input is what the RSS specification says, in the order of the flow key: source address, destination
    /// address and, if the protocol is TCP, UDP or SCTP, source and destination port. A link or custom key is hashed
    /// as its first 36 bytes, which are all that a 40-byte key covers; neither its length nor its kind takes part.
    #[must_use]
    pub fn toeplitz(key: &HashKey) -> FlowHasher {
        FlowHasher::toeplitz_gfni(key).unwrap_or_else(|| FlowHasher::toeplitz_table(key))
    }

    /// [`toeplitz`](FlowHasher::toeplitz) by a 36 KiB table, on every CPU: one look-up a byte.
    #[must_use]
    pub fn toeplitz_table(key: &HashKey) -> FlowHasher {
        FlowHasher(Kind::Table(Table::new(key)))
    }

    /// [`toeplitz`](FlowHasher::toeplitz) by bit-matrix products. `None` where this CPU lacks GFNI or AVX2.
    #[must_use]
    pub fn toeplitz_gfni(key: &HashKey) -> Option<FlowHasher> {
        Gfni::new(key).map(|kernel| FlowHasher(Kind::Gfni(kernel)))
    }

    /// What this hasher is: `aes`, `siphash-1-3`, `toeplitz-table` or `toeplitz-gfni`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        fn of<K: Kernel>(_: &K) -> &'static str {
            K::NAME
        }
        with_kernel!(self, kernel => of(kernel))
    }

    /// Hashes one key. On the packet path use [`hash_batch_with`](FlowHasher::hash_batch_with).
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> FlowHash {
        let mut batch = [(*key, FlowHash(0))];
        self.hash_batch(&mut batch, |item| item.0, |item, hash| item.1 = hash);
        batch[0].1
    }

    /// Hashes a batch: for each item of `batch`, in order, stores the hash of its key, as `hashing` says. The kind of
    /// hash is looked at once a batch, and nothing is called per item: see [`Hashing`].
    #[inline]
    pub fn hash_batch_with<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        with_kernel!(self, kernel => kernel.hash_batch(batch, hashing));
    }

    /// [`hash_batch_with`](FlowHasher::hash_batch_with) for closures: `store(item, hash of key(item))` for each item.
    ///
    /// Good where the key is at hand. A closure that reads packet headers is more than the compiler inlines into four
    /// kernels of its own accord, and then costs more than the hash (35 ticks instead of 13); there, write a
    /// [`Hashing`].
    ///
    /// ```
    /// # use steerage_mem::hash::{FlowHash, FlowHasher, FlowKey, HashKey};
    /// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    /// let mut batch = [("one", FlowHash(0)), ("two", FlowHash(0))];
    /// hasher.hash_batch(&mut batch, |item| FlowKey::from_bytes(item.0.as_bytes()), |item, hash| item.1 = hash);
    /// assert_eq!(batch[1].1, hasher.hash(&FlowKey::from_bytes(b"two")));
    /// ```
    #[inline]
    pub fn hash_batch<T>(&self, batch: &mut [T], key: impl Fn(&T) -> FlowKey, store: impl Fn(&mut T, FlowHash)) {
        self.hash_batch_with(batch, &Closures { key, store });
    }
}

struct Closures<K, S> {
    key: K,
    store: S,
}

impl<T, K: Fn(&T) -> FlowKey, S: Fn(&mut T, FlowHash)> Hashing<T> for Closures<K, S> {
    #[inline(always)]
    fn key(&self, item: &T) -> FlowKey {
        (self.key)(item)
    }

    #[inline(always)]
    fn store(&self, item: &mut T, hash: FlowHash) {
        (self.store)(item, hash);
    }
}

/// The name only: the keys inside are the run's secret.
impl fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowHasher({})", self.name())
    }
}
