//! [`Posted`] holds the pages in a kernel ring that the device fills, such as AF_XDP's fill ring.
//!
//! The kernel's ring contains addresses instead of tokens. `post` consumes a page's token
//! ([`Page`]) and marks the page in a bitmap. `take` looks up the page at an address that the
//! device reports, clears its mark and returns the token. The device counts and ignores an address
//! without a marked page.
//!
//! The pages of the pool are the chunks of AF_XDP's UMEM, with any length (unaligned chunks). All
//! queues of an interface share one UMEM, so a queue can post a page that another queue used.
//!
//! When a queue ends, its socket is closed before its pages are taken back, because the kernel then
//! fills no more pages. The pages of a zero-copy socket are never taken back, because the driver
//! may still write to them.

use std::fmt;
use std::sync::Arc;

use crate::page::Page;
use crate::region::Region;

/// The pages that are posted in one ring. Addresses are in bytes from the start of the region.
///
/// ```
/// use steerage_mem::{Posted, Region};
///
/// let (region, mut pages) = Region::map(4, 2048)?;
/// let mut posted = Posted::new(region);
/// let page = pages.pop().unwrap();
/// let number = page.number();
/// let address = posted.post(page).unwrap();
///
/// // The kernel says that it wrote a frame 64 bytes behind the beginning of the page.
/// let (page, offset) = posted.take(address + 64).unwrap();
/// assert_eq!((page.number(), offset), (number, 64));
/// // An address that is not posted gives no page, whatever the kernel says.
/// assert!(posted.take(address).is_none());
/// # Ok::<(), steerage_mem::RegionError>(())
/// ```
pub struct Posted {
    region: Arc<Region>,
    bits: Box<[u64]>,
    out: usize,
}

impl Posted {
    /// Creates a set for the pages of `region`. No page is posted.
    pub fn new(region: Arc<Region>) -> Self {
        let bits = vec![0; region.pages().div_ceil(64)].into();
        Self { region, bits, out: 0 }
    }

    /// The region of the pages.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The number of posted pages.
    #[inline(always)]
    pub fn out(&self) -> usize {
        self.out
    }

    /// Posts a page and returns its address. `Err` returns a page of another region.
    #[inline]
    pub fn post(&mut self, page: Page) -> Result<u64, Page> {
        let Some(index) = self.region.index_of(page.number()) else { return Err(page) };
        self.bits[index as usize / 64] |= 1 << (index % 64);
        self.out += 1;
        Ok(self.region.address_of(index))
    }

    /// Returns the posted page in which `address` lies, and the offset of `address` in this page.
    #[inline]
    pub fn take(&mut self, address: u64) -> Option<(Page, u32)> {
        let (index, offset) = self.region.find(address)?;
        let (word, bit) = (self.bits.get_mut(index as usize / 64)?, 1 << (index % 64));
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        self.out -= 1;
        Some((Page::new(self.region.number_of(index)), offset))
    }

    /// Takes all posted pages back. The device must no longer write to posted pages.
    pub fn take_all(&mut self) -> impl Iterator<Item = Page> + '_ {
        let Self { region, bits, out } = self;
        let mut at = 0;
        std::iter::from_fn(move || {
            at += bits[at..].iter().position(|word| *word != 0)?;
            let bit = bits[at].ilog2();
            bits[at] &= !(1 << bit);
            *out -= 1;
            Some(Page::new(region.number_of(at as u32 * 64 + bit)))
        })
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} pages posted", self.out, self.region.pages())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGES: usize = 131;
    const PAGE_BYTES: usize = 2112;

    #[test]
    fn a_page_comes_back_by_any_address_in_it_and_once() {
        let (region, pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
        let mut posted = Posted::new(region);
        let numbers: Vec<u32> = pages.iter().map(Page::number).collect();
        let addresses: Vec<u64> = pages.into_iter().map(|page| posted.post(page).unwrap()).collect();
        assert_eq!(posted.out(), PAGES);
        for (nth, (address, number)) in addresses.iter().zip(numbers).enumerate() {
            assert_eq!(*address, (nth * PAGE_BYTES) as u64);
            let within = nth * 17 % PAGE_BYTES;
            let (page, offset) = posted.take(address + within as u64).unwrap();
            assert_eq!((page.number(), offset as usize), (number, within));
            assert!(posted.take(*address).is_none(), "page {nth} came back twice");
        }
        assert_eq!(posted.out(), 0);
    }

    #[test]
    fn the_edges_of_a_page_are_its_own() {
        let (region, pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
        let mut posted = Posted::new(region);
        for page in pages {
            let number = page.number();
            let address = posted.post(page).unwrap();
            assert!(posted.take(address.wrapping_sub(1)).is_none() && posted.take(address + 2112).is_none());
            let (page, offset) = posted.take(address + 2111).unwrap();
            assert_eq!((page.number(), offset), (number, 2111));
        }
    }

    #[test]
    fn what_was_not_posted_is_no_page() {
        let (region, mut pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
        let (_other, mut others) = Region::map(1, PAGE_BYTES).unwrap();
        let mut posted = Posted::new(region);
        assert!(posted.post(others.pop().unwrap()).is_err());
        let address = posted.post(pages.pop().unwrap()).unwrap();
        for wrong in [0, address - 1, address + PAGE_BYTES as u64, 1 << 32, 1 << 48, u64::MAX] {
            assert!(posted.take(wrong).is_none(), "{wrong:#x}");
        }
        assert_eq!(posted.out(), 1);
    }

    #[test]
    fn what_was_not_taken_back_is_still_posted() {
        let (region, pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
        let mut posted = Posted::new(region);
        let addresses: Vec<u64> = pages.into_iter().map(|page| posted.post(page).unwrap()).collect();
        let mut back: Vec<u32> = posted.take_all().take(40).map(|page| page.number()).collect();
        assert_eq!(posted.out(), PAGES - 40);
        let by_address = addresses.iter().filter_map(|address| posted.take(*address)).take(40);
        back.extend(by_address.map(|(page, _)| page.number()));
        assert_eq!((back.len(), posted.out()), (80, PAGES - 80));
        back.extend(posted.take_all().map(|page| page.number()));
        back.sort_unstable();
        back.dedup();
        assert_eq!((back.len(), posted.out()), (PAGES, 0));
    }

    #[test]
    fn all_come_back_at_the_end() {
        let (region, pages) = Region::map(PAGES, PAGE_BYTES).unwrap();
        let mut posted = Posted::new(region);
        let mut numbers: Vec<u32> = pages.iter().map(Page::number).filter(|number| number % 3 != 0).collect();
        for page in pages.into_iter().filter(|page| page.number() % 3 != 0) {
            posted.post(page).unwrap();
        }
        let mut back: Vec<u32> = posted.take_all().map(|page| page.number()).collect();
        back.sort_unstable();
        numbers.sort_unstable();
        assert_eq!(back, numbers);
        assert_eq!((posted.out(), posted.take_all().count()), (0, 0));
    }
}
