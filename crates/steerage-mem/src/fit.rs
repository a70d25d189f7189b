//! The position of a frame in its page, by the rules that Linux's `build_skb` has for drivers.

/// The number of free bytes before a frame, for headers of a packet function, such as a tunnel over
/// IPv6. The headroom is twice the kernel's `NET_SKB_PAD`, and half of the 256 bytes that XDP
/// guarantees.
pub const HEADROOM: usize = 128;

/// The number of free bytes after a frame, for data that a packet function appends: at most 50
/// bytes in ESP, MACsec and WireGuard. Linux uses the bytes after a frame for `skb_shared_info`.
pub const TAILROOM: usize = 64;

/// Every page begins at a multiple of this number of bytes.
pub const PAGE_ALIGN: usize = 64;

/// The minimum length of a page, in bytes: room for a frame of 1514 bytes, two VLAN tags, the
/// headroom and the tailroom, and an odd number of cache lines. With pages of 2048 bytes, the first
/// cache lines of all frames would share few cache sets, and each packet would cost four times as
/// much.
pub const PAGE_BYTES_MIN: usize = 2112;

/// The length of a page for frames of up to a given length, which begin at [`HEADROOM`].
///
/// ```
/// use steerage_mem::fit::{Fit, HEADROOM, PAGE_BYTES_MIN, TAILROOM};
///
/// assert_eq!(Fit::new(1514).page_bytes(), PAGE_BYTES_MIN);
/// assert_eq!(Fit::new(3000).page_bytes(), HEADROOM + 3000 + TAILROOM + 8); // whole cache lines
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    bytes: usize,
}

impl Fit {
    /// For frames of up to `bytes` bytes.
    pub const fn new(bytes: usize) -> Self {
        Self { bytes }
    }

    /// Makes the page long enough for frames of at least `bytes` bytes.
    #[must_use]
    pub const fn or_longer(self, bytes: usize) -> Self {
        if bytes > self.bytes { Self { bytes } } else { self }
    }

    /// The length of the longest frame, in bytes.
    pub const fn bytes(self) -> usize {
        self.bytes
    }

    /// The length of a page, in bytes: whole cache lines, but no multiple of 1024 bytes, which
    /// would put the first cache lines of all frames into few cache sets.
    pub const fn page_bytes(self) -> usize {
        let needed = (HEADROOM + self.bytes + TAILROOM).next_multiple_of(PAGE_ALIGN);
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
        fn every_page_keeps_the_promise(bytes in 1..10_000_usize) {
            let fit = Fit::new(bytes);
            let (region, pages) = Region::map(3, fit.page_bytes()).unwrap();
            prop_assert_ne!(fit.page_bytes() % 1024, 0);
            prop_assert!(region.page_bytes() >= HEADROOM + bytes + TAILROOM);
            prop_assert_eq!(region.base().as_ptr() as usize % PAGE_ALIGN, 0);
            for page in pages {
                prop_assert_eq!(region.address(&page).unwrap() as usize % PAGE_ALIGN, 0);
            }
        }
    }
}
