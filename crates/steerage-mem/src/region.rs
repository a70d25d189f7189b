//! [`Region`] is page memory, mapped once and divided into pages of the same size. The number of a
//! page is unique in the process.

mod generations;
mod parts;
mod view;

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
// The atomics of `std` even under loom: no code that loom checks depends on page numbers.
use std::sync::atomic::{AtomicU64 as NumberCounter, Ordering as NumberOrdering};

use crate::links::{Link, links};
use crate::mapping::{Backing, HUGE_BYTES, RegionError, map_anonymous, unmap};
use crate::page::{BLANK, Completion, FRAME_BYTES_MAX, Page, offset_of};
use crate::sync::AtomicU32;
use generations::Generations;
use parts::bind;

pub(crate) use generations::Generation;
pub use parts::{Part, part_ends};

pub(crate) use view::View;

/// Only debug and fuzz builds detect the use of released pages.
const CHECKS_USE: bool = cfg!(any(debug_assertions, fuzzing));

pub(crate) struct Owner(#[expect(dead_code, reason = "held for its Drop")] Box<dyn Any + Send + Sync>);

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}

impl Owner {
    pub(crate) fn new(owner: impl Any + Send + Sync) -> Self {
        Self(Box::new(owner))
    }
}

/// Page memory. The memory is unmapped when the last reference to the region is dropped.
///
/// ```
/// use steerage_mem::{Completion, Region};
///
/// let (region, mut pages) = Region::map(4, 2048)?;
/// println!("4 pages of {} bytes, in {:?}", region.page_bytes(), region.backing());
///
/// let mut page = pages.pop().unwrap();
/// region.page_mut(&mut page)[64..67].copy_from_slice(b"abc");
/// // The three bytes from offset 64 on are a frame.
/// let frame = Completion::new(page, 64, 3);
/// assert!(region.has_frame(&frame));
/// # Ok::<(), steerage_mem::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    page_bytes: usize,
    /// 2^64 divided by the page size, rounded up. The high 64 bits of an address times `reciprocal`
    /// are the page's index, which is exact for addresses below 2^64 / page size, as in every
    /// region.
    reciprocal: u64,
    first: u32,
    count: u32,
    backing: Backing,
    ends: Box<[u32]>,
    unbound: Option<io::Error>,
    /// The number of bytes to unmap on drop, or 0 if the caller mapped the memory.
    mapped: usize,
    _owner: Option<Owner>,
    /// For each page, the next page in the stack of a [`KeptPages`](crate::KeptPages).
    pub(crate) below: Box<[AtomicU32]>,
    pub(crate) generations: Generations,
    /// Links the pages of a frame, with one entry per page. Regions of blocks have none.
    pub(crate) links: Box<[Link]>,
}

// SAFETY: a region is an address range. The bytes of the region are reached only through page
// tokens, and each token has one holder.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` alone gives access to no byte.
unsafe impl Sync for Region {}

/// The next unused page number: 64 bits, so that the counter does not wrap around after 2^32
/// numbers.
static NEXT_NUMBER: NumberCounter = NumberCounter::new(0);

fn take_numbers(count: usize) -> Result<u32, RegionError> {
    let count = u64::try_from(count).map_err(|_| RegionError::OutOfNumbers)?;
    // Relaxed: no memory is published through the counter.
    NEXT_NUMBER
        .fetch_update(NumberOrdering::Relaxed, NumberOrdering::Relaxed, |next| {
            next.checked_add(count).filter(|end| *end <= u64::from(BLANK))
        })
        .map(|first| first as u32)
        .map_err(|_| RegionError::OutOfNumbers)
}

fn reciprocal(page_bytes: usize) -> u64 {
    (u64::MAX / page_bytes as u64).saturating_add(1)
}

impl Region {
    /// Maps `pages` zeroed pages of `page_bytes` bytes, and returns the token of each page.
    ///
    /// # Errors
    /// [`RegionError`] if the size is zero or too large, or the kernel has too little memory.
    pub fn map(pages: usize, page_bytes: usize) -> Result<(Arc<Self>, Vec<Page>), RegionError> {
        Self::map_parts(&[Part { pages, node: None }], page_bytes)
    }

    /// Maps a region of several parts, each on a NUMA node of its own, as [`part_ends`] divides it.
    /// [`unbound`](Self::unbound) returns the error if the kernel does not place the memory on
    /// these nodes.
    ///
    /// # Errors
    /// Returns the errors of [`map`](Self::map).
    pub fn map_parts(parts: &[Part], page_bytes: usize) -> Result<(Arc<Self>, Vec<Page>), RegionError> {
        let ends = part_ends(parts, page_bytes)?;
        let pages = ends.last().copied().unwrap_or(0);
        let wrong = RegionError::Size { pages, page_bytes };
        let bytes = match pages.checked_mul(page_bytes).and_then(|b| b.checked_next_multiple_of(HUGE_BYTES)) {
            Some(b) if b > 0 && b <= isize::MAX as usize && u32::try_from(page_bytes).is_ok() => b,
            _ => return Err(wrong),
        };
        let first = take_numbers(pages)?;
        let (base, backing, mapped) = map_anonymous(bytes)?;
        let unbound = bind(base, parts, &ends, page_bytes).err();
        let region = Self {
            base,
            page_bytes,
            reciprocal: reciprocal(page_bytes),
            first,
            count: pages as u32,
            backing,
            ends: ends.into_iter().map(|end| end as u32).collect(),
            unbound,
            mapped,
            _owner: None,
            below: (0..pages).map(|_| AtomicU32::new(BLANK)).collect(),
            generations: Generations::new(pages),
            links: links(pages),
        };
        let tokens = (first..first + pages as u32).map(Page::new).collect();
        Ok((Arc::new(region), tokens))
    }

    /// The caller must keep the promises that callers make to
    /// [`Blocks::foreign`](crate::Blocks::foreign).
    pub(crate) fn foreign(
        base: NonNull<u8>,
        blocks: usize,
        block_bytes: usize,
        owner: Owner,
    ) -> Result<Arc<Self>, RegionError> {
        if blocks == 0 || block_bytes == 0 || u32::try_from(block_bytes).is_err() {
            return Err(RegionError::Size { pages: blocks, page_bytes: block_bytes });
        }
        let first = take_numbers(blocks)?;
        let backing = Backing::Foreign;
        let (below, links, ends, unbound) = (Box::new([]), links(0), Box::new([blocks as u32]), None);
        let (page_bytes, count, _owner) = (block_bytes, blocks as u32, Some(owner));
        let reciprocal = reciprocal(page_bytes);
        Ok(Arc::new(Self {
            base,
            page_bytes,
            reciprocal,
            first,
            count,
            backing,
            ends,
            unbound,
            mapped: 0,
            _owner,
            below,
            generations: Generations::new(0),
            links,
        }))
    }

    /// The kind of memory pages in which the region lies.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// A page's size in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.count as usize
    }

    /// The size of the region, in bytes.
    pub fn bytes(&self) -> usize {
        self.pages() * self.page_bytes
    }

    /// The number of the region's parts, each of which lies on one NUMA node.
    pub fn parts(&self) -> usize {
        self.ends.len()
    }

    /// The page numbers of one part, or an empty range if the part does not exist.
    pub fn numbers(&self, part: usize) -> Range<u32> {
        let end = self.ends.get(part).copied().unwrap_or(0);
        let begin = part.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0).min(end);
        self.first + begin..self.first + end
    }

    /// The part to which a page belongs, or 0 for a page of another region.
    pub fn part_of(&self, page: &Page) -> usize {
        let of = |index: u32| self.ends.iter().position(|end| index < *end);
        self.index_of(page.number()).and_then(of).unwrap_or(0)
    }

    /// The kernel's error if the kernel did not place the parts on their NUMA nodes.
    pub fn unbound(&self) -> Option<&io::Error> {
        self.unbound.as_ref()
    }

    /// The address of the region, for the kernel, which writes to [posted](crate::Posted) pages.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the index of the page that contains `address`, and the offset in this page.
    /// `address` is in bytes from the start of the region.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u32)> {
        let index = (u128::from(address) * u128::from(self.reciprocal)) >> 64;
        let index = u32::try_from(index).ok().filter(|index| *index < self.count)?;
        let offset = address.wrapping_sub(u64::from(index) * self.page_bytes as u64);
        (offset < self.page_bytes as u64).then_some((index, offset as u32))
    }

    #[inline(always)]
    pub(crate) fn address_of(&self, index: u32) -> u64 {
        u64::from(index) * self.page_bytes as u64
    }

    /// The address of a page of this region, in bytes from the beginning of the region.
    pub fn address(&self, page: &Page) -> Option<u64> {
        self.index_of(page.number()).map(|index| self.address_of(index))
    }

    /// Returns true if `page` belongs to this region.
    #[inline(always)]
    pub fn holds(&self, page: &Page) -> bool {
        self.index_of(page.number()).is_some()
    }

    #[inline(always)]
    pub(crate) fn index_of(&self, number: u32) -> Option<u32> {
        self.view().index_of(number)
    }

    pub(crate) fn number_of(&self, index: u32) -> u32 {
        self.first + index
    }

    /// Returns the bytes of a page, or an empty slice for a page of another region.
    #[inline(always)]
    pub fn page_mut<'a>(&'a self, page: &'a mut Page) -> &'a mut [u8] {
        let Some(start) = self.start_of(page.number(), 0, self.page_bytes) else { return &mut [] };
        // SAFETY: `start_of` checked that the page lies in the mapping. The token is borrowed
        // mutably for as long as the slice lives. A page has only one token, and slots and kept
        // pages contain no second token.
        unsafe { std::slice::from_raw_parts_mut(start, self.page_bytes) }
    }

    /// Records that a page is free, for page pools. Debug and fuzz builds fill the page with a
    /// pattern, to detect a second release of the page, and any later write to it or use of it.
    ///
    /// # Panics
    /// Panics in debug and fuzz builds if the page is already free.
    #[inline(always)]
    pub fn release(&self, page: &mut Page) {
        if let (true, Some(index)) = (CHECKS_USE, self.index_of(page.number())) {
            self.generations.release(index, self.page_mut(page));
        }
    }

    /// Records that a page that was [released](Self::release) is in use again.
    ///
    /// # Panics
    /// Panics in debug and fuzz builds if the page was written after its release.
    #[inline(always)]
    pub fn take(&self, page: &mut Page) {
        if let (true, Some(index)) = (CHECKS_USE, self.index_of(page.number())) {
            self.generations.take(index, self.page_mut(page));
        }
    }

    #[inline(always)]
    pub(crate) fn generation_of(&self, number: u32) -> Generation {
        self.generations.current(self.index_of(number).unwrap_or(u32::MAX))
    }

    #[inline(always)]
    pub(crate) fn check_in_use(&self, number: u32) {
        if let (true, Some(index)) = (CHECKS_USE, self.index_of(number)) {
            self.generations.check_in_use(index);
        }
    }

    #[inline(always)]
    pub(crate) fn check_generation(&self, number: u32, generation: Generation) {
        if let (true, Some(index)) = (CHECKS_USE, self.index_of(number)) {
            self.generations.check(index, generation);
        }
    }

    /// Returns the address of bytes if the page belongs to this region and the bytes lie within the
    /// page. Every access to a page is checked here.
    #[inline(always)]
    pub(crate) fn start_of(&self, number: u32, offset: u32, len: usize) -> Option<*mut u8> {
        self.view().start_of(number, offset, len)
    }

    /// Returns true if `len` bytes at `offset` of the page can be a frame of this region.
    #[inline(always)]
    pub fn has_room(&self, page: &Page, offset: usize, len: usize) -> bool {
        len <= FRAME_BYTES_MAX && self.start_of(page.number(), offset_of(offset), len).is_some()
    }

    /// Returns true if the frame (its first part) lies within a page or block of this region.
    #[inline(always)]
    pub fn has_frame(&self, frame: &Completion) -> bool {
        self.start_of(frame.slot().page, frame.slot().offset, frame.len()).is_some()
    }

    /// Prefetches the cache line at `offset` of a page for writing.
    #[inline(always)]
    pub fn prefetch_write(&self, page: &Page, offset: usize) {
        if let Some(start) = self.start_of(page.number(), offset_of(offset), 1) {
            prefetch_write(start);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: `base` and `mapped` are the address and the length of the mapping. No
            // reference to the region exists any more. No other region ever has the page numbers of
            // tokens that still exist.
            unsafe { unmap(self.base, self.mapped) };
        }
    }
}

#[inline(always)]
pub(crate) fn prefetch_read(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program can see and faults on no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// Prefetches a cache line for writing, which removes the line from the caches of other CPUs.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as `prefetch_read`. Processors without the instruction PREFETCHW (before 2014 at
    // Intel) execute it as a no-op.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pages_are_distinct_and_zeroed() {
        let (region, mut pages) = Region::map(9, 2112).unwrap();
        assert_eq!(pages.len(), 9);
        for (i, page) in pages.iter_mut().enumerate() {
            let bytes = region.page_mut(page);
            assert_eq!(bytes.len(), 2112);
            assert!(bytes.iter().all(|b| *b == 0), "page {i} was written through another");
            bytes.fill(i as u8 + 1);
        }
    }

    #[test]
    fn a_page_of_another_region_reads_empty() {
        let (a, _) = Region::map(4, 64).unwrap();
        let (_, mut pages) = Region::map(4, 64).unwrap();
        assert!(a.page_mut(&mut pages[0]).is_empty());
    }

    #[test]
    fn sizes_of_nothing_and_too_much_are_refused() {
        for (pages, bytes) in [(0, 64), (4, 0), (usize::MAX, 64), (2, usize::MAX)] {
            assert!(matches!(Region::map(pages, bytes), Err(RegionError::Size { .. })), "{pages} x {bytes}");
        }
    }

    #[test]
    fn spans_are_checked_against_their_page() {
        let (region, pages) = Region::map(2, 128).unwrap();
        let number = pages[1].number();
        assert!(region.start_of(number, 0, 128).is_some());
        assert!(region.start_of(number, 1, 128).is_none());
        assert!(region.start_of(number, u32::MAX, usize::from(u8::MAX)).is_none());
        assert!(region.start_of(number.wrapping_add(1), 0, 1).is_none());
    }
}
