//! [`Fit`] is the position of a frame in its page, as Linux's `build_skb` requires it of a driver.

/// The number of free bytes before a frame, for headers of a packet function, such as a tunnel over
/// IPv6. The headroom is twice the kernel's `NET_SKB_PAD`, and half of the 256 bytes that XDP
/// guarantees.
pub const HEADROOM: usize = 128;

/// The number of free bytes after a frame, for data that a packet function appends: at most 50
/// bytes in ESP, MACsec and WireGuard. Linux uses the bytes after a frame for `skb_shared_info`.
pub const TAILROOM: usize = 64;

/// Every page begins at a multiple of this number of bytes, which is the largest alignment.
pub const PAGE_ALIGN: usize = 64;

/// The minimum length of a page, in bytes: room for a frame of 1514 bytes, two VLAN tags, the
/// headroom and the tailroom, and an odd number of cache lines. With 2048 bytes, the first cache
/// lines of all frames would share few cache sets, and each packet would cost four times as much.
pub const PAGE_BYTES_MIN: usize = 2112;

/// The layout of a page: the maximum length of its frame, and which byte of the frame is aligned.
/// All frames of the same `Fit` begin at the same [`offset`](Self::offset) in their pages.
///
/// ```
/// use steerage_mem::fit::{Fit, HEADROOM};
///
/// // A frame of up to 1514 bytes, in which the byte behind the Ethernet header lies at a multiple of 4.
/// let fit = Fit::new(1514).aligned(4, 14);
/// assert_eq!(fit, Fit::new(1514).ip_aligned());
/// assert_eq!(fit.offset(), HEADROOM + 2); // Linux: NET_SKB_PAD + NET_IP_ALIGN
/// assert_eq!(Fit::new(3000).page_bytes(), 128 + 3000 + 64 + 8); // whole cache lines
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    bytes: usize,
    offset: usize,
}

impl Fit {
    /// For frames of up to `bytes` bytes that begin at a cache line, which is fastest for devices.
    pub const fn new(bytes: usize) -> Self {
        Self { bytes, offset: HEADROOM }
    }

    /// Aligns the frame's byte `at` to `align` bytes: a power of two, at most [`PAGE_ALIGN`].
    #[must_use]
    pub const fn aligned(self, align: usize, at: usize) -> Self {
        let mut unit = 1;
        while unit < PAGE_ALIGN && unit * 2 <= align {
            unit *= 2;
        }
        Self { offset: (HEADROOM + at).next_multiple_of(unit) - at, ..self }
    }

    /// Aligns the IP header after an Ethernet header to 4 bytes: Linux's `NET_IP_ALIGN` of 2. On
    /// x86 and 64-bit ARM, where unaligned reads are cheap, Linux sets it to 0.
    #[must_use]
    pub const fn ip_aligned(self) -> Self {
        self.aligned(4, 14)
    }

    /// Makes the page long enough for frames of at least `bytes` bytes.
    #[must_use]
    pub const fn or_longer(self, bytes: usize) -> Self {
        if bytes > self.bytes { Self { bytes, ..self } } else { self }
    }

    /// The length of the longest frame, in bytes.
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// The offset at which the frame begins in its page, at least [`HEADROOM`].
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// The length of a page, in bytes: whole cache lines, but no multiple of 1024 bytes, which
    /// would put the first cache lines of all frames into few cache sets.
    pub const fn page_bytes(self) -> usize {
        let needed = (self.offset + self.bytes + TAILROOM).next_multiple_of(PAGE_ALIGN);
        let bytes = if needed < PAGE_BYTES_MIN { PAGE_BYTES_MIN } else { needed };
        if bytes % 1024 == 0 { bytes + PAGE_ALIGN } else { bytes }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Region;

    proptest! {
        #[test]
        fn every_page_keeps_the_promise(bytes in 1..10_000_usize, align in 0..200_usize, at in 0..200_usize) {
            let fit = Fit::new(bytes).aligned(align, at);
            let (region, pages) = Region::map(3, fit.page_bytes()).unwrap();
            prop_assert_ne!(fit.page_bytes() % 1024, 0);
            let unit = if align < 2 { 1 } else { (1 << align.ilog2()).min(PAGE_ALIGN) };
            prop_assert!((HEADROOM..HEADROOM + unit).contains(&fit.offset()));
            prop_assert!(region.page_bytes() >= fit.offset() + bytes + TAILROOM);
            for page in pages {
                prop_assert_eq!((region.address(&page).unwrap() as usize + fit.offset() + at) % unit, 0);
                prop_assert_eq!(region.base().as_ptr() as usize % PAGE_ALIGN, 0);
            }
        }
    }
}
