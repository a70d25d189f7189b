//! Flow hashes: a packet's hash selects its bucket, and the bucket selects the CPU.
//!
//! A [`FlowHasher`] hashes a [`FlowKey`] into a 32-bit [`FlowHash`]. There are two kinds of hash:
//!
//! * **Keyed** ([`FlowHasher::keyed`]), for steering: AES rounds, or SipHash-1-3 if the CPU has no
//!   AES instructions. An attacker who does not know the [`HashKey`] cannot direct packets to a
//!   chosen CPU.
//! * **Toeplitz** ([`FlowHasher::toeplitz`]), if the hash must equal a network card's RSS hash.
//!   Toeplitz is linear: from one observed collision, an attacker can construct any number of
//!   further collisions.
//!
//! Packets are hashed in batches, because code that uses a CPU feature, such as AES, cannot be
//! inlined into a caller that is compiled without the feature. A function call for each packet
//! would cost more than the AES rounds.

#[cfg(not(target_arch = "x86_64"))]
mod absent;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod aes;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod hash_key;
mod hash_kind;
#[cfg(target_arch = "x86_64")]
mod plain_frames;
mod sip;
mod siphash;
#[cfg(test)]
mod tests;
mod toeplitz;

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
use absent::Aes;
#[cfg(not(target_arch = "x86_64"))]
use absent::Gfni;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use absent::PlainFrames;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
use aes::Aes;
#[cfg(target_arch = "x86_64")]
use gfni::Gfni;
pub use hash_key::{HashKey, ParseHashKeyError};
pub use hash_kind::{HashKind, HashUnavailable, UnknownHash};
#[cfg(target_arch = "x86_64")]
pub(crate) use plain_frames::PlainFrames;
use sip::Sip;
use std::fmt;
use toeplitz::Table;

use crate::flow_key::FlowKey;

pub(crate) const TOGETHER: usize = u64::BITS as usize;

/// The ports of tunnels in network byte order: source ports first, then destination ports.
pub(crate) type PortLanes = [[u8; 2]; 16];

/// The 32-bit hash of a flow. All bits of a keyed hash are equally well distributed.
///
/// A hash is displayed as eight hexadecimal digits, the most significant first, as in the RSS
/// verification suite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FlowHash(pub u32);

impl FlowHash {
    /// Creates a hash from a number whose low bits distinguish flows, such as an index or a network
    /// card's hash. Steering uses the upper 12 bits of a hash, so small numbers as hashes would put
    /// all flows into one bucket.
    ///
    /// ```
    /// use steerage_flow::FlowHash;
    ///
    /// let buckets = |hash: fn(u32) -> FlowHash| {
    ///     let all: std::collections::BTreeSet<u32> = (0..100).map(|index| hash(index).0 >> 20).collect();
    ///     all.len()
    /// };
    /// assert_eq!((buckets(FlowHash), buckets(FlowHash::from_low_bits)), (1, 100));
    /// ```
    #[inline]
    pub const fn from_low_bits(number: u32) -> Self {
        // The factor is the golden ratio (Fibonacci hashing): its products with neighbouring
        // numbers are far apart.
        Self(number.wrapping_mul(0x9E37_79B1))
    }
}

impl fmt::Display for FlowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Supplies the flow keys of the items in a batch, and stores the hashes of these keys.
///
/// Mark `key`, `store`, and the functions that they often call with `#[inline(always)]`, because
/// they are compiled into the loop of each hash kernel. `Hashing` is a trait, because a closure
/// cannot be marked for inlining.
///
/// ```
/// use steerage_flow::{FlowHash, FlowHasher, FlowKey, Hashing, HashKey};
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
/// let mut batch = [Slot { key: FlowKey::from_bytes(b"a flow"), cpu: 0 }];
/// FlowHasher::keyed(&HashKey::MICROSOFT).hash_batch_with(&mut batch, &Steering { cpus: &[7; 4096] });
/// assert_eq!(batch[0].cpu, 7);
/// ```
pub trait Hashing<T> {
    /// Returns the flow key of an item of the batch.
    fn key(&self, item: &T) -> FlowKey;

    /// Stores the hash of the item's key.
    fn store(&self, item: &mut T, hash: FlowHash);
}

/// A hash kernel: a hash function for one instruction set. A kernel that needs a CPU feature can be
/// created only if the CPU has the feature, so the kernel's existence proves that the instructions
/// may be executed.
trait Kernel {
    const NAME: &'static str;

    /// `hash` is always inlined into a function that is compiled for the kernel's CPU feature. In a
    /// function that is compiled without this CPU feature, each instruction of the feature would
    /// become a function call.
    fn hash(&self, key: &FlowKey) -> u32;

    #[inline(always)]
    fn hash_each<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        for item in batch {
            let hash = self.hash(&hashing.key(item));
            hashing.store(item, FlowHash(hash));
        }
    }

    /// Hash kernels that need a CPU feature override this function with a function that is compiled
    /// for the feature.
    #[inline(always)]
    fn hash_batch<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        self.hash_each(batch, hashing);
    }
}

/// Hashes flow keys with one kind of hash.
///
/// The [`name`](FlowHasher::name) of the hash and the hash key determine the hashes of flows. The
/// two implementations of Toeplitz have different names but return equal hashes.
///
/// ```
/// use steerage_flow::{FlowHasher, FlowKey, HashKey};
///
/// let hasher = FlowHasher::toeplitz(&HashKey::MICROSOFT);
/// let key: FlowKey = "tcp 66.9.149.187:2794 > 161.142.100.80:1766".parse()?;
/// assert_eq!(hasher.hash(&key).to_string(), "51ccc178");
/// # Ok::<(), steerage_flow::ParseFlowKeyError>(())
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
    /// Creates a hasher of this kind with this hash key.
    ///
    /// # Errors
    /// Returns [`HashUnavailable`] if this CPU lacks the instructions for this kind.
    ///
    /// ```
    /// # use steerage_flow::{FlowHasher, HashKey, HashKind};
    /// let hasher = FlowHasher::new("siphash".parse()?, &HashKey::random()?)?;
    /// assert_eq!(hasher.to_string(), "siphash-1-3");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(kind: HashKind, key: &HashKey) -> Result<FlowHasher, HashUnavailable> {
        let unavailable = |needs, instead| HashUnavailable { kind, needs, instead };
        match kind {
            HashKind::Keyed => Ok(FlowHasher::keyed(key)),
            HashKind::Aes => FlowHasher::aes(key).ok_or(unavailable("AES", HashKind::SipHash)),
            HashKind::SipHash => Ok(FlowHasher::sip(key)),
            HashKind::Toeplitz => Ok(FlowHasher::toeplitz(key)),
            HashKind::ToeplitzTable => Ok(FlowHasher::toeplitz_table(key)),
            HashKind::ToeplitzGfni => {
                FlowHasher::toeplitz_gfni(key).ok_or(unavailable("GFNI and AVX2", HashKind::ToeplitzTable))
            }
        }
    }

    /// Creates the hasher for steering, whose hashes cannot be predicted without `key`: AES if this
    /// CPU has AES instructions, and SipHash otherwise.
    ///
    /// ```
    /// # use steerage_flow::{FlowHasher, HashKey};
    /// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
    /// assert!(["aes", "siphash-1-3"].contains(&hasher.name()));
    /// ```
    #[must_use]
    pub fn keyed(key: &HashKey) -> FlowHasher {
        FlowHasher::aes(key).unwrap_or_else(|| FlowHasher::sip(key))
    }

    /// Creates a hasher with four AES rounds per block. `None` if this CPU has no AES instructions.
    #[must_use]
    pub fn aes(key: &HashKey) -> Option<FlowHasher> {
        Aes::new(key).map(|kernel| FlowHasher(Kind::Aes(kernel)))
    }

    /// Creates a hasher with SipHash-1-3, which runs on every CPU and takes about three times as
    /// long as AES.
    #[must_use]
    pub fn sip(key: &HashKey) -> FlowHasher {
        FlowHasher(Kind::Sip(Sip::new(key)))
    }

    /// Creates a hasher for the hash that RSS hardware computes with this key, with the fastest
    /// hash kernel that this CPU supports.
    ///
    /// RSS hashes source address, destination address and, for TCP, UDP and SCTP, source port and
    /// destination port. Of a link key or custom key, only the first 36 bytes are hashed, because a
    /// hash key of 40 bytes does not suffice for more. The length and the kind of the key are not
    /// hashed.
    #[must_use]
    pub fn toeplitz(key: &HashKey) -> FlowHasher {
        FlowHasher::toeplitz_gfni(key).unwrap_or_else(|| FlowHasher::toeplitz_table(key))
    }

    /// Like [`toeplitz`](FlowHasher::toeplitz), but with a table of 36 KiB, for every CPU.
    #[must_use]
    pub fn toeplitz_table(key: &HashKey) -> FlowHasher {
        FlowHasher(Kind::Table(Table::new(key)))
    }

    /// Like [`toeplitz`](FlowHasher::toeplitz), but always with bit matrices. Returns `None` if
    /// this CPU does not have both GFNI and AVX2.
    #[must_use]
    pub fn toeplitz_gfni(key: &HashKey) -> Option<FlowHasher> {
        Gfni::new(key).map(|kernel| FlowHasher(Kind::Gfni(kernel)))
    }

    /// Returns the name of the hash: `aes`, `siphash-1-3`, `toeplitz-table` or `toeplitz-gfni`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        fn of<K: Kernel>(_: &K) -> &'static str {
            K::NAME
        }
        with_kernel!(self, kernel => of(kernel))
    }

    /// Hashes one key. For many packets, use [`hash_batch_with`](FlowHasher::hash_batch_with).
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> FlowHash {
        let mut batch = [(*key, FlowHash(0))];
        self.hash_batch(&mut batch, |item| item.0, |item, hash| item.1 = hash);
        batch[0].1
    }

    /// Hashes a batch without a function call for each item: see [`Hashing`].
    #[inline]
    pub fn hash_batch_with<T>(&self, batch: &mut [T], hashing: &impl Hashing<T>) {
        with_kernel!(self, kernel => kernel.hash_batch(batch, hashing));
    }

    /// Returns the code that hashes plain frames without creating a [`FlowKey`], if this hasher and
    /// this CPU have such code. A frame with one of the ports in `tunnels` is not plain.
    #[inline]
    pub(crate) fn plain_frames(&self, tunnels: &'static PortLanes) -> Option<PlainFrames<'_>> {
        match &self.0 {
            Kind::Aes(kernel) => PlainFrames::new(kernel, tunnels),
            _ => None,
        }
    }

    /// Like [`hash_batch_with`](FlowHasher::hash_batch_with), but with closures.
    ///
    /// Use `hash_batch` if the items already contain their flow keys. If a closure reads packet
    /// headers, implement [`Hashing`] instead: the compiler does not inline such a large closure
    /// into the four hash kernels, and a packet takes 35 clock ticks instead of 13.
    ///
    /// ```
    /// # use steerage_flow::{FlowHash, FlowHasher, FlowKey, HashKey};
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

/// Prints only the [name](FlowHasher::name) of the hash, because the hash key must stay secret.
impl fmt::Display for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowHasher({})", self.name())
    }
}
