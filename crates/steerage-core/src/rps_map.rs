//! Maps a flow hash to its bucket, and each bucket to the CPU that it has at first.

use crate::limits::{BUCKET_SHIFT, BUCKETS};
use steerage_flow::FlowHash;

/// Returns the bucket of a hash: its topmost 12 bits.
///
/// ```
/// # mod steerage { pub mod flow { pub use {steerage_core::rps_map::*, steerage_flow::*}; } }
/// use steerage::flow::{FlowHash, bucket_of, even_share};
///
/// let bucket = bucket_of(FlowHash(0xC00F_FFFF));
/// assert_eq!(bucket, 0xC00);
/// // Three quarters of all buckets are below it, so it goes to the last of four CPUs.
/// assert_eq!(even_share(bucket, 4), 3);
/// ```
#[must_use]
#[inline(always)]
pub const fn bucket_of(hash: FlowHash) -> u16 {
    (hash.0 >> BUCKET_SHIFT) as u16
}

/// Returns a hash of `bucket`, modulo [`BUCKETS`], for a device that chooses buckets.
///
/// ```
/// # mod steerage { pub mod device { pub use steerage_core::completions::*; } pub mod flow { pub use steerage_core::rps_map::*; } }
/// use steerage::device::Filled;
/// use steerage::flow::{bucket_of, hash_of_bucket};
///
/// // A frame of 60 bytes that a device puts into bucket 7.
/// let filled = Filled::whole(60).with_hash(Some(hash_of_bucket(7)));
/// assert_eq!(filled.hash.map(bucket_of), Some(7));
/// ```
#[must_use]
#[inline(always)]
pub const fn hash_of_bucket(bucket: u16) -> FlowHash {
    FlowHash((bucket as u32) << BUCKET_SHIFT)
}

/// The index (0 to `cpus` - 1) of the CPU that has `bucket` after a change of the mask, which
/// divides the buckets into equal ranges: `hash * cpus >> 32`, as in Linux. Returns 0 if `cpus` is
/// 0.
#[must_use]
pub const fn even_share(bucket: u16, cpus: usize) -> usize {
    steerage_moves::even_share(bucket as usize, cpus, BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_of_a_bucket_is_in_it() {
        assert!((0..BUCKETS as u16).all(|bucket| bucket_of(hash_of_bucket(bucket)) == bucket));
        assert_eq!(bucket_of(hash_of_bucket(BUCKETS as u16 + 5)), 5);
    }

    #[test]
    fn even_is_what_linux_selects() {
        for cpus in [1, 2, 3, 5, 16, 64] {
            for hash in [0u32, 1, 0x7fff_ffff, 0x8000_0000, 0xdead_beef, u32::MAX] {
                let linux = ((u64::from(hash & 0xfff0_0000) * cpus as u64) >> 32) as usize;
                assert_eq!(even_share(bucket_of(FlowHash(hash)), cpus), linux, "{hash:#x} of {cpus}");
            }
        }
    }
}
