//! The page pool: a cache of pages local to each receive queue, over one pool that all share.
//!
//! The local cache is that of Amazon's ENA driver (LPC, Linux 6.6-era patches of 2021): a queue recycles its own pages and
//! leaves the shared allocator alone. ENA walks its pages in order and stops at the first that is still held; here pages
//! come back by the finished index or by the kept pages' stack, whichever is free first, so nothing waits at a head. As
//! ENA's, it keeps no page of another NUMA node than its queue's.

#[cfg(test)]
mod fault;
mod shared;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use steerage_mem::{Completion, Home, Page, Region, SEGMENTS_MAX};

use crate::counter::Counter;
use crate::limits::{HEADROOM, POOL_BULK};
pub(crate) use shared::SharedPool;

/// A pool's counters, under the names that ENA's driver (`lpc_*`) and the kernel's page_pool (`alloc_*`, `recycle_*`)
/// give them. In pages. In lines of their own: their owner writes them once a poll.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PoolCounters {
    /// Served from the local cache.
    pub(crate) alloc_fast: Counter,
    /// Taken from the shared pool, in bulk.
    pub(crate) alloc_slow: Counter,
    /// Times that a page was wanted and none was to be had.
    pub(crate) alloc_empty: Counter,
    /// Came home to the local cache.
    pub(crate) recycle_cached: Counter,
    /// Came home to a full local cache and went to the shared pool.
    pub(crate) recycle_cache_full: Counter,
    /// Of those that came home: by the kept pages' stack.
    pub(crate) recycle_kept: Counter,
    /// Frames copied out of a device's page, which stayed in its ring.
    pub(crate) rx_copybreak: Counter,
    /// Of those taken from the shared pool: by which the queue came to have more than ever.
    pub(crate) lpc_warm_up: Counter,
    /// And those that were taken while the cache was switched off.
    pub(crate) lpc_passed_by: Counter,
    /// Came home from another node, and went to the shared pool.
    pub(crate) lpc_wrong_numa: Counter,
}

/// One receive queue's pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    region: Arc<Region>,
    shared: Arc<SharedPool>,
    home: Arc<Home>,
    /// Last in, first out: what came home last is what the caches still hold.
    cache: Vec<Page>,
    cache_max: usize,
    /// The numbers of its node's pages.
    own: Range<u32>,
    /// Pages that it has of the shared pool, here and under way; and the most that it ever had.
    has: usize,
    has_had: usize,
    /// Pages on their way to the shared pool.
    spill: Vec<Page>,
    /// Served since the counters were last written.
    served: u64,
    /// Pages from the shared pool that count as such and have yet to be served.
    from_shared: u64,
    /// And come home since then.
    came_home: u64,
    /// And copied out since then.
    copied_out: u64,
    pub(crate) counters: Arc<PoolCounters>,
}

impl PagePool {
    /// `cache_max` pages are kept local; 0 switches the local cache off.
    pub(crate) fn new(region: Arc<Region>, shared: Arc<SharedPool>, home: Arc<Home>, cache_max: usize) -> Self {
        Self {
            own: region.numbers(shared.node()),
            has: 0,
            has_had: 0,
            region,
            shared,
            home,
            cache: Vec::with_capacity(cache_max.max(POOL_BULK) + POOL_BULK),
            cache_max,
            spill: Vec::with_capacity(cache_max.max(POOL_BULK)),
            served: 0,
            from_shared: 0,
            came_home: 0,
            copied_out: 0,
            counters: Arc::default(),
        }
    }

    /// Sets how many pages are kept local; what is beyond goes to the shared pool.
    pub(crate) fn set_cache_max(&mut self, cache_max: usize) {
        if cache_max == self.cache_max {
            return;
        }
        self.cache_max = cache_max;
        let beyond = self.cache.len().saturating_sub(cache_max);
        // Those that came home last stay.
        self.spill.extend(self.cache.drain(..beyond));
        self.give_spilt();
        let room = cache_max.max(POOL_BULK) + POOL_BULK;
        self.cache.reserve(room.saturating_sub(self.cache.len()));
        self.spill.reserve(room);
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// How many pages can be had without a look elsewhere.
    #[inline(always)]
    pub(crate) fn cached(&self) -> usize {
        self.cache.len()
    }

    /// How many pages are here or in the shared pool.
    pub(crate) fn free(&self) -> usize {
        self.cache.len() + self.shared.free()
    }

    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Page> {
        #[cfg(test)]
        if fault::is_due() {
            return None;
        }
        match self.cache.pop() {
            Some(mut page) => {
                self.served += 1;
                self.region.take(&mut page);
                Some(page)
            }
            None => self.take_slowly(),
        }
    }

    /// Up to `most` pages, with the region that they are part of: for filling many in one go.
    #[inline(always)]
    pub(crate) fn take_many(&mut self, most: usize) -> (&Region, impl ExactSizeIterator<Item = Page> + '_) {
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

    /// Takes back a page that was taken and not used: the next to be taken.
    pub(crate) fn put_back(&mut self, mut page: Page) {
        self.region.release(&mut page);
        self.served -= 1;
        self.cache.push(page);
    }

    fn take_slowly(&mut self) -> Option<Page> {
        self.refill(1);
        let mut page = self.cache.pop()?;
        self.served += 1;
        self.region.take(&mut page);
        Some(page)
    }

    /// Sees to it that `least` pages are in the cache, if they are to be had.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, least: usize) {
        self.collect_kept();
        if let Some(missing) = least.checked_sub(self.cache.len()) {
            let taken = self.shared.take(&mut self.cache, missing.max(POOL_BULK));
            self.counters.alloc_slow.add(taken as u64);
            self.from_shared += taken as u64;
            self.has += taken;
            if self.cache_max == 0 {
                self.counters.lpc_passed_by.add(taken as u64);
            } else if self.has > self.has_had {
                self.counters.lpc_warm_up.add((self.has - self.has_had) as u64);
                self.has_had = self.has;
            }
        }
        if self.cache.len() < least {
            self.counters.alloc_empty.add(1);
        }
    }

    /// Copies the first `len` bytes at `offset` of a page to another one's, and gives that out. `None` if there is none, or the
    /// bytes do not lie in the page.
    #[inline]
    pub(crate) fn copy_out(&mut self, page: &mut Page, offset: u32, len: usize) -> Option<Page> {
        let mut copy = self.take()?;
        let to = &mut self.region.page_mut(&mut copy)[HEADROOM..][..len];
        match self.region.page_mut(page).get(offset as usize..).and_then(|from| from.get(..len)) {
            Some(from) => to.copy_from_slice(from),
            None => {
                self.region.release(&mut copy);
                self.cache.push(copy);
                return None;
            }
        }
        self.copied_out += 1;
        Some(copy)
    }

    /// Takes a page home. One of other memory, which a device may give by mistake, is none of the pool's.
    #[inline(always)]
    pub(crate) fn recycle(&mut self, mut page: Page) {
        self.region.release(&mut page);
        if self.cache.len() < self.cache_max && self.own.contains(&page.number()) {
            self.came_home += 1;
            self.cache.push(page);
        } else if self.region.holds(&page) {
            self.came_home += 1;
            self.spill.push(page);
        }
    }

    /// Takes the pages of a frame of several home.
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

    /// Ends a stretch of [`recycle`](Self::recycle): what did not fit goes to the shared pool, under one lock.
    pub(crate) fn recycled(&mut self) {
        let served = std::mem::take(&mut self.served);
        let slow = served.min(self.from_shared);
        self.from_shared -= slow;
        self.counters.alloc_fast.add(served - slow);
        self.counters.rx_copybreak.add(std::mem::take(&mut self.copied_out));
        let spilt = self.spill.len() as u64;
        self.counters.recycle_cached.add(std::mem::take(&mut self.came_home) - spilt);
        if spilt > 0 {
            let foreign = self.spill.iter().filter(|page| !self.own.contains(&page.number())).count() as u64;
            self.counters.lpc_wrong_numa.add(foreign);
            self.counters.recycle_cache_full.add(spilt - foreign);
            self.give_spilt();
        }
    }

    fn give_spilt(&mut self) {
        // A queue may give back more than it took: copies of lent frames come home to it that another CPU took the pages for.
        self.has = self.has.saturating_sub(self.spill.len());
        self.shared.give(&mut self.spill);
    }

    /// Takes home what handlers kept and let go.
    pub(crate) fn collect_kept(&mut self) {
        if !self.home.waiting() {
            return;
        }
        let home = Arc::clone(&self.home);
        let mut pages = 0;
        home.collect(|page| {
            self.recycle(page);
            pages += 1;
        });
        self.counters.recycle_kept.add(pages);
        self.recycled();
    }

    /// Gives all pages back to the shared pool: at the queue's end.
    pub(crate) fn close(&mut self) {
        self.collect_kept();
        self.recycled();
        self.shared.give(&mut self.cache);
    }

    /// Fetches, for writing, the first line of the frame that the `nth` page from now will hold.
    #[inline(always)]
    pub(crate) fn prefetch(&self, nth: usize) {
        if let Some(page) = self.cache.len().checked_sub(nth + 1).and_then(|at| self.cache.get(at)) {
            self.region.prefetch_write(page, HEADROOM as u32);
        }
    }
}
