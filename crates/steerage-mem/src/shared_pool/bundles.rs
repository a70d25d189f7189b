//! A lock-free stack of free pages. One call takes or gives many pages.
//!
//! The pages of the stack lie in *bundles*, each with the number of the bundle below it. All
//! bundles below the top bundle are full. The [head](Head), one 64-bit value, contains the number
//! of the top bundle and how many of its pages are left:
//!
//! ```text
//!   head: gives, len 3, top ──► bundle of page 7: 7 2 9          (3 left, the others were taken)
//!                                  └► bundle of page 4: 4 8 ...  (full)
//!                                        └► ...
//! ```
//!
//! [`take`](BundleStack::take) reads pages from the top and then exchanges the head.
//! [`give`](BundleStack::give) writes new bundles, with the pages of a top bundle that is not full,
//! and then exchanges the head. Each call moves up to [`BULK_MAX`] pages with one atomic exchange.
//!
//! The table of bundles has an entry for each page. A bundle is stored in the entry of its *first*
//! page, which `take` takes last. Only the holder of a bundle's first page writes the bundle's
//! entry, and never while the stack uses the entry.
//!
//! A thread that has read an old head may read arbitrary values from a bundle that the page's
//! holder writes, but this thread's exchange of the head then fails. The exchange fails because the
//! head contains the number of calls of `give`, and pages are only taken between two calls of
//! `give`.

use crossbeam_utils::CachePadded;

use crate::page::BLANK;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub(crate) const BULK_MAX: usize = 64;

/// The number of pages in a bundle, which fill a cache line together with `below` and
/// `pages_below`. Under loom, which needs small models, a bundle has two pages.
pub(crate) const BUNDLE_PAGES: usize = if cfg!(loom) { 2 } else { 14 };

/// A bundle stores pages as indices in the region. All accesses to a bundle are relaxed: the
/// accesses to the head order them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Bundle {
    /// The number of the first page of the full bundle below this bundle, or `BLANK`.
    below: AtomicU32,
    pages_below: AtomicU32,
    /// Each entry has two page numbers, the earlier page in the lower half, so that one access
    /// moves both numbers.
    pairs: [AtomicU64; BUNDLE_PAGES / 2],
}

impl Bundle {
    #[inline(always)]
    fn pages(&self) -> [u32; BUNDLE_PAGES] {
        let mut pages = [0; BUNDLE_PAGES];
        for (two, pair) in pages.chunks_exact_mut(2).zip(&self.pairs) {
            let pair = pair.load(Ordering::Relaxed);
            two.copy_from_slice(&[pair as u32, (pair >> 32) as u32]);
        }
        pages
    }

    #[inline(always)]
    fn set_pages(&self, pages: &[u32; BUNDLE_PAGES]) {
        for (two, pair) in pages.chunks_exact(2).zip(&self.pairs) {
            pair.store(u64::from(two[0]) | u64::from(two[1]) << 32, Ordering::Relaxed);
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bundle>() == 64);
const _: () = assert!(BUNDLE_PAGES % 2 == 0);

pub(crate) fn bundles(pages: usize) -> Box<[Bundle]> {
    let blank = || Bundle {
        below: AtomicU32::new(BLANK),
        pages_below: AtomicU32::new(0),
        pairs: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
    };
    (0..pages).map(|_| blank()).collect()
}

const LEN_SHIFT: u32 = 32;
const GIVES_SHIFT: u32 = 36;
const LEN_MAX: u64 = (1 << (GIVES_SHIFT - LEN_SHIFT)) - 1;

const _: () = assert!(BUNDLE_PAGES as u64 <= LEN_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    top: u32,
    /// The number of pages that are left in the top bundle: 0 only if the stack is empty.
    len: usize,
    /// The number of calls of `give`, in 28 bits: a thread mistakes a new head for an old one only
    /// if 2^28 calls (several seconds) lie between its load and its exchange.
    gives: u64,
}

impl Head {
    const EMPTY: Self = Self { top: BLANK, len: 0, gives: 0 };

    fn from_word(word: u64) -> Self {
        Self { top: word as u32, len: (word >> LEN_SHIFT & LEN_MAX) as usize, gives: word >> GIVES_SHIFT }
    }

    fn to_word(self) -> u64 {
        u64::from(self.top) | (self.len as u64) << LEN_SHIFT | self.gives << GIVES_SHIFT
    }

    fn below(self, bundle: &Bundle) -> Self {
        let top = bundle.below.load(Ordering::Relaxed);
        Self { top, len: if top == BLANK { 0 } else { BUNDLE_PAGES }, gives: self.gives }
    }
}

#[derive(Debug)]
pub(crate) struct BundleStack {
    head: CachePadded<AtomicU64>,
}

impl BundleStack {
    pub(crate) fn new() -> Self {
        Self { head: CachePadded::new(AtomicU64::new(Head::EMPTY.to_word())) }
    }

    /// Writes the pages to the end of `taken`, in the order in which they were given.
    pub(crate) fn take<'a>(&self, table: &[Bundle], taken: &'a mut [u32; BULK_MAX], most: usize) -> &'a [u32] {
        let most = most.min(BULK_MAX);
        // B2, acquire: pairs with B1 of all earlier calls, because each change of the head is a
        // read-modify-write operation, which continues the release sequences of earlier changes.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let (mut head, mut begin) = (Head::from_word(word), BULK_MAX);
            while head.len > 0 && BULK_MAX - begin < most {
                let bundle = &table[head.top as usize];
                let left = head.len.saturating_sub(most - (BULK_MAX - begin));
                let pages = bundle.pages();
                let from = &pages[left..head.len];
                taken[begin - from.len()..begin].copy_from_slice(from);
                begin -= from.len();
                head = if left > 0 { Head { len: left, ..head } } else { head.below(bundle) };
            }
            if begin == BULK_MAX {
                return &[];
            }
            // B1, release: pairs with B2 of the thread that takes the first page of a bundle, so
            // that this thread reads the bundle before that thread writes it. A thread that finds
            // the stack empty sees what this thread gave to other stacks before. On failure
            // acquire: B2 of the next attempt.
            match self.head.compare_exchange_weak(word, head.to_word(), Ordering::Release, Ordering::Acquire) {
                Ok(_) => return &taken[begin..],
                Err(now) => word = now,
            }
        }
    }

    pub(crate) fn give(&self, table: &[Bundle], pages: &[u32]) {
        if pages.is_empty() {
            return;
        }
        // B2, acquire, as in `take`: this call reads the pages of the bundle that it replaces.
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = bundled(table, Head::from_word(word), pages);
            // B1, release: pairs with B2 of the thread that takes the pages. On failure acquire.
            match self.head.compare_exchange_weak(word, head.to_word(), Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    pub(crate) fn gives(&self) -> u64 {
        // Relaxed: two loads of this number are ordered by the acquire loads (B2) of a `take`
        // between them.
        Head::from_word(self.head.load(Ordering::Relaxed)).gives
    }

    /// The number of pages in the stack. The number is wrong by at most the number of pages that
    /// other threads move at the same time.
    pub(crate) fn len(&self, table: &[Bundle]) -> usize {
        // Relaxed: while other threads move pages, the number is inexact anyway. Otherwise, other
        // operations have ordered this load.
        let head = Head::from_word(self.head.load(Ordering::Relaxed));
        let below = table.get(head.top as usize).map_or(0, |bundle| bundle.pages_below.load(Ordering::Relaxed));
        head.len + below as usize
    }
}

fn bundled(table: &[Bundle], head: Head, pages: &[u32]) -> Head {
    let top = table.get(head.top as usize);
    let partial = top.filter(|_| head.len < BUNDLE_PAGES);
    let old = partial.map_or([0; BUNDLE_PAGES], Bundle::pages);
    let mut inherited = &old[..if partial.is_some() { head.len } else { 0 }];
    let base = partial.map_or(head, |bundle| head.below(bundle));
    let mut pages_below = top.map_or(0, |bundle| bundle.pages_below.load(Ordering::Relaxed));
    // If another thread writes the bundle, `pages_below` is an arbitrary number, so the addition
    // may wrap around. The exchange of the head then fails.
    if partial.is_none() {
        pages_below = pages_below.wrapping_add(head.len as u32);
    }
    let (mut below, mut rest) = (base.top, pages);
    loop {
        let first = rest[0];
        let bundle = &table[first as usize];
        bundle.below.store(below, Ordering::Relaxed);
        bundle.pages_below.store(pages_below, Ordering::Relaxed);
        let filled = rest.len().min(BUNDLE_PAGES - inherited.len());
        let len = inherited.len() + filled;
        let mut pages = [0; BUNDLE_PAGES];
        pages[0] = first;
        pages[1..=inherited.len()].copy_from_slice(inherited);
        pages[1 + inherited.len()..len].copy_from_slice(&rest[1..filled]);
        bundle.set_pages(&pages);
        rest = &rest[filled..];
        if rest.is_empty() {
            return Head { top: first, len, gives: head.gives + 1 };
        }
        (below, inherited) = (first, &[]);
        pages_below = pages_below.wrapping_add(BUNDLE_PAGES as u32);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_head_fits_its_word() {
        for len in 0..=BUNDLE_PAGES {
            let head = Head { top: BLANK - 1, len, gives: (1 << 28) - 1 };
            assert_eq!(Head::from_word(head.to_word()), head);
        }
    }

    #[test]
    fn gives_go_on_past_their_wrap() {
        let (table, stack) = (bundles(40), BundleStack::new());
        stack.head.store(Head { gives: (1 << 28) - 2, ..Head::EMPTY }.to_word(), Ordering::Relaxed);
        let pages: Vec<u32> = (0..40).collect();
        pages.chunks(10).for_each(|some| stack.give(&table, some));
        assert_eq!((stack.gives(), stack.len(&table)), (2, 40));
        let mut taken = [0; BULK_MAX];
        let mut taken = stack.take(&table, &mut taken, 40).to_vec();
        taken.sort_unstable();
        assert_eq!((taken, stack.len(&table)), (pages, 0));
    }
}
