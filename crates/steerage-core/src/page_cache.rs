//! The page pool: each receive queue has a local page cache in front of a shared pool.
//!
//! The local page cache is modelled on the local page cache (LPC) of Amazon's ENA driver, proposed
//! in March 2021 for Linux 5.12: a receive queue reuses its own pages and rarely needs the shared
//! allocator. The ENA driver checks its pages one after another, and stops at the first page in
//! use. steerage does not search for free pages: a page returns when the finished index of a ring
//! has passed its packet, and the pages of kept packets return through a stack. When an instance
//! has ended and no packet is kept any more, the shared pool has all pages again.
//!
//! Three techniques reduce the cost of pages, as benchmarks confirm:
//!
//! - While the queue's owner steers the frames of a poll, it prefetches the pages of its next poll
//!   for writing, one page per frame ([`PagePool::prefetch`]). Prefetching all pages together would
//!   fill the CPU's line fill buffers.
//! - The length of a page is never a multiple of 1024 bytes
//!   ([`PAGE_BYTES_MIN`](crate::limits::PAGE_BYTES_MIN)). If each page had 2048 bytes, the first
//!   cache lines of all frames would compete for a few sets of the CPU's cache.
//! - Pages are handed out in random order, because the shared pool is shuffled when it is created.
//!   If pages were handed out in the order of addresses, the stride prefetcher of the handling CPU
//!   would fetch the next frames while the receiving CPU still writes them, and double the
//!   receiving CPU's time for a packet.
//!
//! Each CPU's pages are on the CPU's own NUMA node. The pages of all nodes are parts of one memory
//! region, because all AF_XDP sockets of an interface share one region. The number of a page shows
//! to which NUMA node the page belongs. A queue takes pages of another NUMA node when its own node
//! has no free page. When a page of another NUMA node returns, it goes to the shared pool instead
//! of the local cache, so that a page of the queue's own node replaces it, as in the ENA driver.
//! Checking the node of a page takes two comparisons.
//!
//! In debug and fuzz builds, `steerage-mem` detects use after release and double release of a page.

#[cfg(test)]
pub(crate) mod fault;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use crate::limits::{HEADROOM, POOL_BULK};
use steerage_ledger::PoolCounters;
use steerage_mem::fit::PAGE_ALIGN;
use steerage_mem::ring::Finished;
use steerage_mem::{Blocks, Completion, KeptPages, Memory, Page, Region, SEGMENTS_MAX, SharedPool};

/// The page pool of one receive queue.
#[derive(Debug)]
pub struct PagePool {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    kept_pages: Arc<KeptPages>,
    /// Last in, first out: the pages that returned last are most likely still in the CPU's caches.
    cache: Vec<Page>,
    cache_max: usize,
    own: Range<u32>,
    /// The number of pages that the queue currently has from the shared pool, and the maximum of
    /// this number since the cache size changed.
    has: usize,
    has_had: usize,
    spill: Vec<Page>,
    /// The number of pages of other NUMA nodes in `spill`, which will return to the shared pool.
    foreign: u64,
    served: u64,
    from_shared: u64,
    came_home: u64,
    copied_out: u64,
    pub(crate) counters: Arc<PoolCounters>,
}

impl PagePool {
    /// Creates a pool with up to `cache_max` pages in the local cache, or without a cache if 0.
    pub fn new(region: Arc<Region>, shared: Arc<SharedPool>, kept_pages: Arc<KeptPages>, cache_max: usize) -> Self {
        Self {
            own: region.numbers(shared.node()),
            has: 0,
            has_had: 0,
            region,
            shared,
            kept_pages,
            cache: Vec::with_capacity(cache_max.max(POOL_BULK) + POOL_BULK),
            cache_max,
            spill: Vec::with_capacity(cache_max.max(POOL_BULK)),
            foreign: 0,
            served: 0,
            from_shared: 0,
            came_home: 0,
            copied_out: 0,
            counters: Arc::default(),
        }
    }

    pub(crate) fn set_cache_max(&mut self, cache_max: usize) {
        if cache_max == self.cache_max {
            return;
        }
        self.cache_max = cache_max;
        let beyond = self.cache.len().saturating_sub(cache_max);
        self.spill.extend(self.cache.drain(..beyond));
        self.give_spilt();
        self.has_had = self.has;
        let room = cache_max.max(POOL_BULK) + POOL_BULK;
        self.cache.reserve(room.saturating_sub(self.cache.len()));
        self.spill.reserve(room);
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns how many pages are in the local cache.
    #[inline(always)]
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Returns how many pages came from the local cache, and how many from the shared pool.
    pub fn served(&self) -> (u64, u64) {
        (self.counters.alloc_fast.get(), self.counters.alloc_slow.get())
    }

    /// Returns how many pages are free in the local cache and in the shared pool.
    pub fn free(&self) -> usize {
        self.cache.len() + self.shared.free()
    }

    /// Takes a page for writing. Returns `None` if no page is free.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Page> {
        #[cfg(test)]
        if fault::is_due() {
            return None;
        }
        if self.cache.is_empty() {
            self.refill(1);
        }
        let mut page = self.cache.pop()?;
        self.served += 1;
        self.region.take(&mut page);
        Some(page)
    }

    /// Takes up to `most` pages at once. Also returns the region that contains the pages.
    #[inline(always)]
    pub fn take_many(&mut self, most: usize) -> (&Region, impl ExactSizeIterator<Item = Page> + '_) {
        #[cfg(test)]
        let most = if fault::is_due() { 0 } else { most };
        if self.cache.len() < most {
            self.refill(most);
        }
        let rest = self.cache.len().saturating_sub(most);
        self.served += (self.cache.len() - rest) as u64;
        let region = &*self.region;
        let taken = self.cache.drain(rest..).rev().map(|mut page| {
            region.take(&mut page);
            page
        });
        (region, taken)
    }

    pub(crate) fn put_back(&mut self, mut page: Page) {
        self.region.release(&mut page);
        self.served -= 1;
        self.cache.push(page);
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self, least: usize) {
        self.collect_kept();
        if let Some(missing) = least.checked_sub(self.cache.len()) {
            let most = missing.max(POOL_BULK);
            #[cfg(test)]
            let most = if fault::is_due() { 0 } else { most };
            let taken = self.shared.take(&mut self.cache, most);
            self.counters.alloc_slow.add(taken as u64);
            self.from_shared += taken as u64;
            self.has += taken;
            if self.cache_max == 0 {
                self.counters.lpc_passed_by.add(taken as u64);
            } else {
                let new = self.has.saturating_sub(self.has_had);
                self.has_had += new;
                self.counters.lpc_warm_up.add(new as u64);
                self.counters.lpc_full.add((taken - new) as u64);
            }
        }
        if self.cache.len() < least {
            self.counters.alloc_empty.add(1);
        }
    }

    /// Copies a frame that begins at `offset` of its page to a new page, with the same alignment.
    /// `copy` writes to the page and returns the length. Returns `None` if no page is free, or if
    /// `copy` fails.
    #[inline]
    pub(crate) fn copy_out(
        &mut self,
        offset: usize,
        copy: impl FnOnce(&Region, &mut [u8]) -> Option<usize>,
    ) -> Option<Completion> {
        let mut page = self.take()?;
        let at = HEADROOM + offset % PAGE_ALIGN;
        let Some(len) = copy(&self.region, &mut self.region.page_mut(&mut page)[at..]) else {
            self.put_back(page);
            return None;
        };
        self.copied_out += 1;
        Some(Completion::new(page, at, len))
    }

    /// Takes a page back. Ignores a page of another region, which a device may return by mistake.
    #[inline(always)]
    pub fn recycle(&mut self, mut page: Page) {
        self.region.release(&mut page);
        if self.cache.len() < self.cache_max && self.own.contains(&page.number()) {
            self.came_home += 1;
            self.cache.push(page);
        } else if self.region.holds(&page) {
            // The list `spill` must not grow, because that would allocate memory.
            if self.spill.len() == self.spill.capacity() {
                self.recycled();
            }
            self.came_home += 1;
            self.foreign += u64::from(!self.own.contains(&page.number()));
            self.spill.push(page);
        }
    }

    /// Takes the pages of finished frames back, to the local cache, or to the shared pool if the
    /// local cache is full.
    #[inline(always)]
    pub fn recycle_many(&mut self, frames: Finished<'_>) {
        let room = self.cache_max.saturating_sub(self.cache.len());
        let (cached, spilt) = frames.split_at(room);
        let returned = cached.pages_to(&mut self.cache, (&self.region, &self.own));
        self.count_home(returned);
        if spilt.len() > 0 {
            if self.spill.capacity() - self.spill.len() < spilt.len() {
                self.recycled();
            }
            let returned = spilt.pages_to(&mut self.spill, (&self.region, &self.own));
            self.count_home(returned);
        }
    }

    #[inline(always)]
    fn count_home(&mut self, returned: Result<usize, Finished<'_>>) {
        match returned {
            Ok(pages) => self.came_home += pages as u64,
            Err(frames) => frames.for_each(|frame| self.recycle_frame(frame)),
        }
    }

    /// Takes the pages of a frame back. A lent frame has no page. A lent frame in blocks of another
    /// queue is not counted here.
    #[inline(always)]
    pub(crate) fn recycle_frame(&mut self, frame: Completion) {
        match frame.into_page() {
            Ok(page) => self.recycle(page),
            Err(chained) if !chained.is_lent() => self.recycle_chain(chained),
            Err(_) => {}
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn recycle_chain(&mut self, frame: Completion) {
        let (mut pages, mut count) = ([const { None }; SEGMENTS_MAX], 0);
        self.region.take_apart(frame, |page, _, _| {
            pages[count] = Some(page);
            count += 1;
        });
        pages.into_iter().flatten().for_each(|page| self.recycle(page));
    }

    /// Updates the counters, and returns pages that do not fit into the cache to the shared pool,
    /// in bulk. Call `recycled` after one or more calls of [`recycle`](Self::recycle).
    pub fn recycled(&mut self) {
        let served = std::mem::take(&mut self.served);
        let slow = served.min(self.from_shared);
        self.from_shared -= slow;
        self.counters.alloc_fast.add(served - slow);
        self.counters.rx_copybreak.add(std::mem::take(&mut self.copied_out));
        let spilt = self.spill.len() as u64;
        self.counters.recycle_cached.add(std::mem::take(&mut self.came_home) - spilt);
        if spilt > 0 {
            let foreign = std::mem::take(&mut self.foreign);
            self.counters.lpc_wrong_numa.add(foreign);
            self.counters.recycle_cache_full.add(spilt - foreign);
            self.give_spilt();
            self.has_had = self.has_had.saturating_sub(foreign as usize);
        }
    }

    fn give_spilt(&mut self) {
        // `has` does not include the pages that other CPUs took for copies of the queue's lent
        // frames, so the subtraction saturates.
        self.has = self.has.saturating_sub(self.spill.len());
        self.shared.give(&mut self.spill);
    }

    pub(crate) fn collect_kept(&mut self) {
        if !self.kept_pages.waiting() {
            return;
        }
        let kept_pages = Arc::clone(&self.kept_pages);
        let mut pages = 0;
        kept_pages.collect(|page| {
            self.recycle(page);
            pages += 1;
        });
        self.counters.recycle_kept.add(pages);
        self.recycled();
    }

    /// Returns all pages to the shared pool when the queue ends.
    pub fn close(&mut self) {
        self.collect_kept();
        self.recycled();
        self.shared.give(&mut self.cache);
    }

    /// Prefetches, for writing, the first cache line of the page that `take` returns after `nth`
    /// other pages.
    #[inline(always)]
    pub fn prefetch(&self, nth: usize) {
        if let Some(page) = self.cache.len().checked_sub(nth + 1).and_then(|at| self.cache.get(at)) {
            self.region.prefetch_write(page, HEADROOM);
        }
    }
}

/// The memory of one receive queue: its page pool and the blocks of its device.
#[derive(Debug)]
pub struct QueuePages {
    /// The pages.
    pub pool: PagePool,
    /// The blocks of packet memory that the device lends. `None` if the device lends no memory.
    pub blocks: Option<Blocks>,
    /// The memory that contains the bytes of frames: pages and blocks.
    pub memory: Memory,
}

impl QueuePages {
    /// Takes the memory of one frame back: its pages, or its part of a memory block.
    pub fn take_home(&mut self, frame: Completion) {
        let lent = match &mut self.blocks {
            Some(blocks) => blocks.recycle(frame),
            None => Err(frame),
        };
        lent.unwrap_or_else(|frame| self.pool.recycle_frame(frame));
        self.pool.recycled();
    }
}
