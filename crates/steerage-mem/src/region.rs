//! Page memory: mapped once, divided into pages of one size, each with a number that no other page of this process
//! ever had or will have.

mod view;

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
// Not loom's: numbers are handed out once a region, far from anything that is model-checked.
use std::sync::atomic::{AtomicU64 as NumberCounter, Ordering as NumberOrdering};

use crate::chain::{Link, links};
use crate::lives::{Life, Lives};
use crate::mapping::{HUGE_BYTES, map_anonymous, unmap};
use crate::page::{BLANK, Completion, FRAME_BYTES_MAX, Page};
use crate::parts::{Part, bind, part_ends};
use crate::sync::AtomicU32;

pub(crate) use view::View;

/// Whether the lives of pages are looked after: not where speed counts.
const CHECKS_LIVES: bool = cfg!(any(debug_assertions, fuzzing));

/// What the kernel made the memory of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Reserved 2 MiB pages (`vm.nr_hugepages`).
    HugePages,
    /// 2 MiB pages where the kernel finds them (transparent huge pages).
    TransparentHugePages,
    /// 4 KiB pages only.
    SmallPages,
    /// Memory that somebody else mapped and lends.
    Foreign,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugePages => "huge pages",
            Self::TransparentHugePages => "transparent huge pages",
            Self::SmallPages => "small pages",
            Self::Foreign => "foreign memory",
        })
    }
}

/// Why there is no region.
#[derive(Debug)]
#[non_exhaustive]
pub enum RegionError {
    /// No pages, or pages of no bytes, or more than can be addressed.
    Size {
        /// How many pages were asked for.
        pages: usize,
        /// Of how many bytes each.
        page_bytes: usize,
    },
    /// The process has used up its 2^32 page numbers (they are never given out twice).
    OutOfNumbers,
    /// The kernel gave no memory.
    Map {
        /// How much was asked for, in bytes.
        bytes: usize,
        /// What the kernel said.
        error: io::Error,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { pages, page_bytes } => {
                write!(f, "cannot map {pages} pages of {page_bytes} bytes: ask for at least one of at least one byte")
            }
            Self::OutOfNumbers => {
                f.write_str("this process has mapped 2^32 pages in its life and has no numbers left: restart it")
            }
            Self::Map { bytes, error } => {
                write!(f, "cannot map {bytes} bytes of packet memory: {error}; use fewer queues, CPUs or backlog slots")
            }
        }
    }
}

impl std::error::Error for RegionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Map { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// What foreign memory is kept mapped by: it goes when the region goes.
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

/// Page memory, unmapped when the last that refers to it is gone.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    page_bytes: usize,
    /// 2^64 / page size, rounded up: times an address, shifted right by 64, it is the page's place. Exact below an address of
    /// 2^64 / page size, which no region comes near; `find` checks all the same.
    reciprocal: u64,
    first: u32,
    count: u32,
    backing: Backing,
    /// Where its parts end, in pages from the beginning.
    ends: Box<[u32]>,
    /// Why the parts are not on the nodes that were asked for.
    unbound: Option<io::Error>,
    /// Bytes to unmap at the end; 0 for memory that belongs to somebody else.
    mapped: usize,
    /// Whoever keeps memory of somebody else's mapped.
    _owner: Option<Owner>,
    /// For each page, the one below it in a [`Home`](crate::Home)'s stack. A page is in one stack at most.
    pub(crate) below: Box<[AtomicU32]>,
    pub(crate) lives: Lives,
    /// For each page, what lies behind it of a frame of several. Memory that is lent has none.
    pub(crate) links: Box<[Link]>,
}

// SAFETY: a region is an address range. Its bytes are reached through page tokens only, each of which has one holder.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` alone reaches no byte.
unsafe impl Sync for Region {}

/// The next page number that nobody had. 64 bits wide so that running out is seen, not wrapped around.
static NEXT_NUMBER: NumberCounter = NumberCounter::new(0);

fn take_numbers(count: usize) -> Result<u32, RegionError> {
    let count = u64::try_from(count).map_err(|_| RegionError::OutOfNumbers)?;
    // Relaxed: the counter is all that is shared, and an atomic add gives each caller another range.
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
    /// Maps `pages` pages of `page_bytes` bytes, zeroed, and gives out the token of each.
    ///
    /// Huge pages are taken where they are to be had; [`backing`](Self::backing) says what it came to.
    ///
    /// # Errors
    /// [`RegionError`] for a size of nothing or too much, and where the kernel has no memory.
    pub fn map(pages: usize, page_bytes: usize) -> Result<(Arc<Self>, Vec<Page>), RegionError> {
        Self::map_parts(&[Part { pages, node: None }], page_bytes)
    }

    /// The same in several parts, each on its node; a part that another follows may come out longer, see [`part_ends`]. Where the
    /// kernel does not place memory, [`unbound`](Self::unbound) says why, and all else is as asked for.
    ///
    /// # Errors
    /// As [`map`](Self::map).
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
            lives: Lives::new(pages),
            links: links(pages),
        };
        let tokens = (first..first + pages as u32).map(Page::new).collect();
        Ok((Arc::new(region), tokens))
    }

    /// Memory that somebody else mapped: see [`Blocks::foreign`](crate::Blocks::foreign), which keeps the promises.
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
            lives: Lives::new(0),
            links,
        }))
    }

    /// What the memory is made of.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// A page's size in bytes.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.count as usize
    }

    /// The whole of it in bytes.
    pub fn bytes(&self) -> usize {
        self.pages() * self.page_bytes
    }

    /// How many parts it has.
    pub fn parts(&self) -> usize {
        self.ends.len()
    }

    /// The numbers of a part's pages; of no page for a part that there isn't.
    pub fn numbers(&self, part: usize) -> Range<u32> {
        let end = self.ends.get(part).copied().unwrap_or(0);
        let begin = part.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0).min(end);
        self.first + begin..self.first + end
    }

    /// The part that a page is of; 0 for a page of another region.
    pub fn part_of(&self, page: &Page) -> usize {
        let of = |index: u32| self.ends.iter().position(|end| index < *end);
        self.index_of(page.number()).and_then(of).unwrap_or(0)
    }

    /// Why the kernel did not place its parts on the nodes that were asked for, if it didn't.
    pub fn unbound(&self) -> Option<&io::Error> {
        self.unbound.as_ref()
    }

    /// Where it begins: for a device to tell the kernel, which then writes pages that are [posted](crate::Posted).
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The place of the page that an address, counted in bytes from the beginning, lies in, and how far into it.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64) -> Option<(u32, u32)> {
        let index = (u128::from(address) * u128::from(self.reciprocal)) >> 64;
        let index = u32::try_from(index).ok().filter(|index| *index < self.count)?;
        let offset = address.wrapping_sub(u64::from(index) * self.page_bytes as u64);
        (offset < self.page_bytes as u64).then_some((index, offset as u32))
    }

    /// Where a page begins, in bytes from the beginning.
    #[inline(always)]
    pub(crate) fn address_of(&self, index: u32) -> u64 {
        u64::from(index) * self.page_bytes as u64
    }

    /// Where a page of its own begins, in bytes from the beginning.
    pub fn address(&self, page: &Page) -> Option<u64> {
        self.index_of(page.number()).map(|index| self.address_of(index))
    }

    /// Whether `page` is one of its own.
    #[inline(always)]
    pub fn holds(&self, page: &Page) -> bool {
        self.index_of(page.number()).is_some()
    }

    /// A page's place among the region's own, from 0.
    #[inline(always)]
    pub(crate) fn index_of(&self, number: u32) -> Option<u32> {
        self.view().index_of(number)
    }

    pub(crate) fn number_of(&self, index: u32) -> u32 {
        self.first + index
    }

    /// The bytes of a page that its holder may fill. Empty for a page of another region.
    #[inline(always)]
    pub fn page_mut<'a>(&'a self, page: &'a mut Page) -> &'a mut [u8] {
        let Some(start) = self.start_of(page.number(), 0, self.page_bytes) else { return &mut [] };
        // SAFETY: `start_of` checked that the page lies in the mapping. The token is borrowed mutably for as long as
        // the slice lives, there is one token a page, and slots and kept pages hold no other.
        unsafe { std::slice::from_raw_parts_mut(start, self.page_bytes) }
    }

    /// Says that a page is free: for whoever pools pages. In debug and fuzz builds it is then filled with a pattern, and a second
    /// release, a write to it and a use of it are seen; else nothing is done.
    ///
    /// # Panics
    /// In those builds, if it is free already.
    #[inline(always)]
    pub fn release(&self, page: &mut Page) {
        if let (true, Some(index)) = (CHECKS_LIVES, self.index_of(page.number())) {
            self.lives.release(index, self.page_mut(page));
        }
    }

    /// Says that a page that was [released](Self::release) is in use again.
    ///
    /// # Panics
    /// In debug and fuzz builds, if it was written meanwhile.
    #[inline(always)]
    pub fn take(&self, page: &mut Page) {
        if let (true, Some(index)) = (CHECKS_LIVES, self.index_of(page.number())) {
            self.lives.take(index, self.page_mut(page));
        }
    }

    #[inline(always)]
    pub(crate) fn life_of(&self, number: u32) -> Life {
        self.lives.now(self.index_of(number).unwrap_or(u32::MAX))
    }

    /// In debug and fuzz builds: that the page is not released.
    #[inline(always)]
    pub(crate) fn check_out(&self, number: u32) {
        if let (true, Some(index)) = (CHECKS_LIVES, self.index_of(number)) {
            self.lives.check_out(index);
        }
    }

    /// And that it is in the life that it was in.
    #[inline(always)]
    pub(crate) fn check_life(&self, number: u32, life: Life) {
        if let (true, Some(index)) = (CHECKS_LIVES, self.index_of(number)) {
            self.lives.check(index, life);
        }
    }

    /// Where `len` bytes at `offset` of page `number` start, if they lie within that page and the page within this
    /// region: the one check on which every access rests.
    #[inline(always)]
    pub(crate) fn start_of(&self, number: u32, offset: u32, len: usize) -> Option<*mut u8> {
        self.view().start_of(number, offset, len)
    }

    /// Whether `len` bytes at `offset` lie within a page, one of the region's own, and are not too many for a frame.
    #[inline(always)]
    pub fn has_room(&self, page: &Page, offset: u32, len: usize) -> bool {
        len <= FRAME_BYTES_MAX && self.start_of(page.number(), offset, len).is_some()
    }

    /// Whether a frame lies where it says, in a page or block of this region: of one in several pages, its head.
    #[inline(always)]
    pub fn has_frame(&self, frame: &Completion) -> bool {
        self.start_of(frame.slot().page, frame.offset(), frame.len()).is_some()
    }

    /// Asks for the line at `offset` of a page, to be written soon: the owner's half of a cache miss is then over
    /// before the frame comes.
    #[inline(always)]
    pub fn prefetch_write(&self, page: &Page, offset: u32) {
        if let Some(start) = self.start_of(page.number(), offset, 1) {
            prefetch_write(start);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: `base` and `mapped` are what was mapped; nobody holds the region any more, and tokens that outlive
            // it find no region with their number.
            unsafe { unmap(self.base, self.mapped) };
        }
    }
}

/// Fetches a line for reading.
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

/// Fetches a line for writing, taking it out of the other CPUs' caches.
#[inline(always)]
pub(crate) fn prefetch_write(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as `prefetch_read`. Processors without PREFETCHW (before 2014 at Intel) execute it as a no-op.
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
