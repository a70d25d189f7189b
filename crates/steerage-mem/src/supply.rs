//! [`Supply`] is the packet memory of an instance. Address space is mapped for the longest possible
//! backlog, and takes memory when pages are handed out for the current backlog.

mod budget;
mod excess;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mapping::{RegionError, huge_pages_free};
use crate::page::Page;
use crate::region::{Part, Region};
use crate::shared_pool::{SharedPool, shuffle};

pub use budget::{
    BACKLOG_LEAST, Budget, LOT_SLOTS, LPC_MEMORY_PART, LPC_PAGES_LEAST, LPC_PAGES_MAX, LPC_PAGES_PER_CPU, LpcMemory,
    Needs, QueueNeeds,
};
pub use excess::{Excess, ExcessCause};

/// The packet memory of an instance.
#[derive(Debug)]
pub struct Supply {
    region: Arc<Region>,
    pools: Vec<Arc<SharedPool>>,
    cap: u64,
    /// True if the kernel pins the pages, which then take memory from the start.
    pinned: bool,
    backlog_asked: usize,
    backlog_max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    needs: Needs,
    budget: Budget,
    spare: Vec<Page>,
}

impl Supply {
    /// Maps the memory for the requested backlog, or for the longest backlog that fits into `cap`
    /// bytes. Also maps address space for a longer backlog, unless the kernel pins pages. `parts`
    /// divides the pages among NUMA nodes.
    ///
    /// # Errors
    /// [`RegionError`] if the kernel has too little memory.
    pub fn map(
        needs: Needs,
        cap: u64,
        pinned: bool,
        parts: impl Fn(&Budget) -> Vec<Part>,
    ) -> Result<Self, RegionError> {
        let budget = needs.within(cap, needs.backlog);
        // Reserved huge pages take memory as soon as they are mapped.
        let grows = !pinned && budget.bytes <= cap && huge_pages_free() < budget.bytes;
        let most = if grows { needs.with_room_for_more(cap) } else { budget.clone() };
        let (region, pages) = Region::map_parts(&parts(&most), needs.page_bytes)?;
        // Each node's part may have more pages than requested.
        let used = if grows { parts(&budget) } else { parts(&most) };
        let given = |page: &Page| {
            let part = region.part_of(page);
            !grows || ((page.number() - region.numbers(part).start) as usize) < used[part].pages
        };
        let (given, mut spare): (Vec<Page>, Vec<Page>) = pages.into_iter().partition(given);
        shuffle(&mut spare);
        let pools = SharedPool::by_node(&region, given);
        let (backlog_asked, backlog_max) = (needs.backlog, most.backlog);
        let state = Mutex::new(State { needs, budget, spare });
        Ok(Self { region, pools, cap, pinned, backlog_asked, backlog_max, state })
    }

    /// Accounts for `bytes` bytes of memory that devices provide, before any page is used. To stay
    /// within the cap, the backlog becomes shorter, unless the kernel has pinned the pool's pages.
    pub fn lend(&mut self, bytes: u64) {
        let left = self.cap.saturating_sub(bytes);
        let State { needs, budget, spare } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.pinned || needs.with_room_for_more(self.cap).bytes <= left {
            return;
        }
        *needs = needs.clone().fit_caches(left);
        *budget = needs.within(left, self.backlog_asked);
        self.backlog_max = needs.with_room_for_more(left).backlog;
        let given = self.region.pages() - spare.len();
        let unused = given.saturating_sub(budget.pages);
        for pool in &self.pools {
            let numbers = self.region.numbers(pool.node());
            let part = (numbers.end - numbers.start) as usize;
            pool.take(spare, unused * part / self.region.pages());
        }
        let missing = unused.saturating_sub(given - (self.region.pages() - spare.len()));
        self.pools[0].take(spare, missing);
    }

    /// Checks that all packet memory, including `lent` bytes of devices, is within the cap.
    ///
    /// # Errors
    /// [`Excess`] if the memory exceeds the cap. The error names the largest part of the memory.
    pub fn check(&self, lent: u64) -> Result<(), Excess> {
        let state = self.state();
        state.needs.check(&state.budget, lent, self.cap)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region of all pages.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The shared pool, with one view for each NUMA node.
    pub fn pools(&self) -> &[Arc<SharedPool>] {
        &self.pools
    }

    /// Returns how many pages the local page cache of each queue may have.
    pub fn cache_pages(&self) -> usize {
        self.state().budget.cache_pages
    }

    /// Returns true if several queues have one common limit on the frames that wait for a CPU.
    pub fn shares_backlog(&self) -> bool {
        self.state().needs.shares_backlog()
    }

    /// The limit on the instance's memory, in bytes.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// The backlog that was requested at the start.
    pub fn backlog_asked(&self) -> usize {
        self.backlog_asked
    }

    /// The maximum backlog for which memory or address space is reserved.
    pub fn backlog_max(&self) -> usize {
        self.backlog_max
    }

    /// The current division of the packet memory.
    pub fn budget(&self) -> Budget {
        self.state().budget.clone()
    }

    /// Returns how many pages were handed out so far.
    pub fn pages(&self) -> usize {
        self.region.pages() - self.state().spare.len()
    }

    /// Sets the backlog. Returns the new backlog, which is shorter if there are not enough pages.
    pub fn set_backlog(&self, backlog: usize) -> usize {
        let mut state = self.state();
        let (most, backlog) = (self.region.pages(), backlog.min(self.backlog_max));
        let budget = state.needs.largest(backlog, |budget| budget.pages <= most);
        let Budget { lot_slots, kept_max, parked_pages, kept_pages, .. } = state.budget;
        state.budget = Budget { lot_slots, kept_max, parked_pages, kept_pages, ..budget };
        self.give(&mut state);
        state.budget.backlog
    }

    /// Sets the size of a queue's local page cache, or the largest size for which there are pages.
    /// The caches of all queues may then have this size. Returns the size.
    pub fn set_cache(&self, queue: usize, pages: usize) -> usize {
        let pages = pages.min(LPC_PAGES_MAX);
        let mut state = self.state();
        let State { needs, budget, .. } = &mut *state;
        if pages == 0 || needs.queues[queue].caches && pages <= budget.cache_pages {
            return pages;
        }
        let had_one = std::mem::replace(&mut needs.queues[queue].caches, true);
        let (most, backlog) = (self.region.pages(), budget.backlog);
        let with_caches = |cache_pages| Needs { cache_pages, ..needs.clone() }.with_backlog(backlog);
        let (mut fits, mut wanted) = (0, pages.max(needs.cache_pages));
        while fits < wanted {
            let middle = fits + (wanted - fits).div_ceil(2);
            if with_caches(middle).pages <= most { fits = middle } else { wanted = middle - 1 }
        }
        if fits < needs.cache_pages || fits == 0 {
            needs.queues[queue].caches = had_one;
            return if had_one { budget.cache_pages } else { 0 };
        }
        let grown = with_caches(fits);
        (budget.cache_pages, budget.pages) = (grown.cache_pages, grown.pages);
        (budget.bytes, budget.cached_pages) = (grown.bytes, grown.cached_pages);
        needs.cache_pages = fits;
        self.give(&mut state);
        pages.min(state.budget.cache_pages)
    }

    fn give(&self, state: &mut State) {
        let given = self.region.pages() - state.spare.len();
        let missing = state.budget.pages.saturating_sub(given).min(state.spare.len());
        let keep = state.spare.len() - missing;
        self.pools[0].give(&mut state.spare.split_off(keep));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::QueueNeeds;
    use super::*;

    fn needs(cpus: usize) -> Needs {
        Needs {
            cpus,
            queues: vec![QueueNeeds { segments: 1, lends: false, waits: false, caches: true, fixed: 100 }],
            backlog: 100,
            lot_slots: 128,
            kept_max: 0,
            cache_pages: 0,
            page_bytes: 2112,
            slot_bytes: 16,
            other_pages: 0,
            other_bytes: 0,
        }
    }

    fn needs_of_two() -> Needs {
        let one = needs(2);
        Needs { queues: vec![one.queues[0]; 2], ..one }
    }

    fn map(cpus: usize, cap: u64, pinned: bool) -> Supply {
        Supply::map(needs(cpus), cap, pinned, |budget| vec![Part { pages: budget.pages, node: None }]).unwrap()
    }

    #[test]
    fn a_longer_backlog_gets_its_pages_and_a_shorter_one_keeps_them() {
        let supply = map(2, 1 << 30, false);
        let pages = || (supply.pages(), supply.pools()[0].free());
        assert_eq!((pages(), supply.backlog_max()), ((428, 428), 1600));
        supply.set_backlog(1000);
        assert_eq!(pages(), (2228, 2228));
        supply.set_backlog(50);
        assert_eq!((pages(), supply.budget().backlog), ((2228, 2228), 50));
        assert_eq!(supply.set_backlog(5000), 1600);
        assert_eq!(pages(), (3428, 3428));
        let mut all = Vec::new();
        supply.pools()[0].take(&mut all, usize::MAX);
        all.sort_by_key(Page::number);
        all.dedup();
        assert_eq!(all.len(), 3428);
    }

    #[test]
    fn caches_grow_into_what_backlogs_leave() {
        let parts = |budget: &Budget| vec![Part { pages: budget.pages, node: None }];
        let supply = Supply::map(needs_of_two(), 1 << 30, false, parts).unwrap();
        let pages = supply.pages();
        assert_eq!((supply.set_cache(0, 100), supply.pages()), (100, pages + 200));
        assert_eq!((supply.set_cache(1, 50), supply.pages()), (50, pages + 200));
        let all = supply.region().pages();
        assert_eq!((supply.set_cache(0, LPC_PAGES_MAX), supply.set_backlog(usize::MAX)), (LPC_PAGES_MAX, 1600));
        assert_eq!((supply.pages(), supply.budget().pages), (all, all));
        let capped = Supply::map(needs_of_two(), needs_of_two().with_backlog(200).bytes, false, parts).unwrap();
        assert_eq!((capped.backlog_max(), capped.set_cache(0, 300)), (200, 200));
        assert_eq!(capped.set_backlog(200), 100);
        let most = LPC_PAGES_MAX.min(5000);
        assert_eq!(map(2, 1 << 30, false).set_cache(0, most), most, "a single queue caches the pages of its backlogs");
    }

    /// Without pages of its own, the local page cache would take pages that other queues need.
    #[test]
    fn the_cache_of_a_queue_that_lends_has_pages_of_its_own() {
        let parts = |budget: &Budget| vec![Part { pages: budget.pages, node: None }];
        let mut needs = needs(2);
        (needs.queues[0].lends, needs.queues[0].caches, needs.kept_max) = (true, false, 100);
        let supply = Supply::map(needs, 1 << 30, false, parts).unwrap();
        let pages = supply.pages();
        assert_eq!((supply.set_cache(0, 300), supply.pages(), supply.cache_pages()), (300, pages + 300, 300));
        assert_eq!((supply.set_cache(0, 0), supply.pages()), (0, pages + 300));
        let mut needs = needs_of_two();
        (needs.queues[0].lends, needs.queues[0].caches) = (true, false);
        let pinned = Supply::map(needs, 1 << 30, true, parts).unwrap();
        assert_eq!((pinned.set_cache(0, 300), pinned.set_cache(1, 300)), (0, 300));
    }

    #[test]
    fn what_devices_lend_comes_off_the_backlog() {
        let cap = needs(2).with_backlog(100).bytes;
        let mut supply = map(2, cap, false);
        supply.lend(0);
        assert_eq!((supply.pages(), supply.budget().backlog), (428, 100));
        let lent = cap - needs(2).with_backlog(70).bytes;
        supply.lend(lent);
        let budget = supply.budget();
        assert_eq!((budget.backlog, supply.backlog_max(), budget.bytes + lent), (70, 70, cap));
        assert_eq!((supply.pages(), supply.pools()[0].free()), (budget.pages, budget.pages));
        supply.set_backlog(60);
        assert_eq!((supply.set_backlog(100), supply.pages()), (70, budget.pages));
        supply.lend(cap);
        assert!(supply.budget().bytes + cap > cap);
        let mut supply = map(2, 1 << 30, false);
        supply.lend((1 << 30) - needs(2).with_backlog(800).bytes);
        assert_eq!((supply.pages(), supply.budget().backlog, supply.backlog_max()), (428, 100, 800));
        let mut pinned = map(2, cap, true);
        pinned.lend(lent);
        assert_eq!((pinned.budget().backlog, pinned.pages()), (100, 428));
    }

    #[test]
    fn nothing_is_reserved_of_memory_that_the_kernel_pins_or_the_cap_forbids() {
        assert_eq!(map(2, 1 << 30, true).backlog_max(), 100);
        let cap = needs(2).with_backlog(150).bytes;
        let supply = map(2, cap, false);
        assert_eq!((supply.backlog_max(), supply.budget().backlog), (150, 100));
        let supply = map(2, needs(2).with_backlog(80).bytes, false);
        assert_eq!((supply.backlog_max(), supply.budget().backlog, supply.pages()), (80, 80, 388));
    }
}
