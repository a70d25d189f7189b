//! [`Fit`] is the position of a frame in its page, with the headroom, alignment and tailroom that
//! Linux's `build_skb` requires of a driver.

/// The number of free bytes before a frame in its page, for headers that a packet function adds.
/// The headroom is twice the kernel's `NET_SKB_PAD`, and half of the 256 bytes that XDP guarantees.
/// The headers of a tunnel over IPv6 with options fit into the headroom.
pub const HEADROOM: usize = 128;

/// The number of free bytes after a frame in its page, for data that a packet function appends. In
/// ESP, MACsec and WireGuard, the padding and the integrity check value together take at most 50
/// bytes. Linux uses the bytes after a frame for its `skb_shared_info`, and not for packet data.
pub const TAILROOM: usize = 64;

/// Every page begins at a multiple of this number of bytes, which is the size of a cache line.
/// Therefore no [`Fit`] (layout of a page) can require an alignment to more bytes than a cache line
/// has.
pub const PAGE_ALIGN: usize = 64;

/// The minimum length of a page, in bytes. A page of this length has room for a frame of 1514
/// bytes, two VLAN tags, the headroom and the tailroom. The page length is an odd number of cache
/// lines. If pages were 2048 bytes long, the first cache lines of all frames would fall into the
/// same few cache sets, and each packet would cost four times as much.
pub const PAGE_BYTES_MIN: usize = 2112;

/// The layout of a page: the maximum length of its frame, and which byte of the frame is aligned.
///
/// Every page begins at a multiple of [`PAGE_ALIGN`]. Therefore all frames of the same `Fit` begin
/// at the same [`offset`](Self::offset) in their pages.
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
    /// A `Fit` for frames of up to `bytes` bytes that begin at a multiple of [`PAGE_ALIGN`],
    /// immediately after the headroom. When a device writes a frame that begins at a multiple of
    /// the cache line size, it writes whole cache lines. The beginning of a cache line is the best
    /// position for a frame, unless a header has to be aligned.
    pub const fn new(bytes: usize) -> Self {
        Self { bytes, offset: HEADROOM }
    }

    /// Aligns the frame's byte number `at` to a multiple of `align` bytes. `align` is rounded down
    /// to a power of two, at most [`PAGE_ALIGN`].
    #[must_use]
    pub const fn aligned(self, align: usize, at: usize) -> Self {
        let mut unit = 1;
        while unit < PAGE_ALIGN && unit * 2 <= align {
            unit *= 2;
        }
        Self { offset: (HEADROOM + at).next_multiple_of(unit) - at, ..self }
    }

    /// Aligns the IP header that follows an Ethernet header to a multiple of 4 bytes: Linux's
    /// `NET_IP_ALIGN` of 2. On x86 and 64-bit ARM, Linux sets `NET_IP_ALIGN` to 0, because
    /// unaligned reads are cheap on these CPUs.
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

    /// The offset at which the frame begins in its page. The offset is at least [`HEADROOM`].
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// The length of a page, in bytes. A page holds the headroom, the frame and the [`TAILROOM`].
    /// The length is a whole number of cache lines. The page length is not a multiple of 1024
    /// bytes: otherwise, the first cache lines of all frames would fall into few cache sets.
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
