//! Computes how much packet memory an instance needs, and which limits are reduced if it exceeds
//! the cap. There is a page for every frame that can be in flight, so that a stalled CPU delays or
//! loses only its own packets:
//!
//! | for | pages |
//! |---|---|
//! | the backlogs of live queues | CPUs x backlog, or twice that (see below) |
//! | the backlogs of each queue that can wait | CPUs x backlog |
//! | frames in parking lots, and packets that handlers keep | as many as allowed, for each queue |
//! | local page caches, if several queues receive into pages | their size, if the cap allows it |
//! | memory that does not depend on the backlog | as the caller says |
//!
//! All live queues (queues that cannot wait) share the pages for a CPU's backlog. If several live
//! queues receive into pages, the pages for the backlogs are doubled, because a queue's owner (the
//! CPU that polls it) may stall before it reclaims the pages of finished frames. A queue that can
//! wait until there is room, such as a file, fills its rings completely, so it has pages of its
//! own. If there is only one queue, its local page cache uses the pages of the queue's backlogs. If
//! the memory would exceed the cap, each CPU gets an equal share of the pages as its backlog, and
//! the limits for parking lots and kept packets are reduced too.

/// The shortest backlog, in frames: the frames of one poll.
pub const BACKLOG_LEAST: usize = 64;

/// The number of slots of a parking lot if there is enough memory.
pub const LOT_SLOTS: usize = 1024;

/// The maximum factor by which the backlog can grow after the start.
const GROWTH: usize = 16;

const LOT_LEAST: usize = 128;

/// The needs of one queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueNeeds {
    /// The number of pages that the longest frame of the queue takes.
    pub segments: usize,
    /// True if the device provides memory blocks, so that only kept frames need pages.
    pub lends: bool,
    /// True if the queue can wait, as a file can, until there is room for its frames.
    pub waits: bool,
    /// True if the queue has a local page cache.
    pub caches: bool,
    /// The number of pages that the queue needs, whatever the backlog is.
    pub fixed: usize,
}

impl QueueNeeds {
    /// Returns true if the cache needs pages in addition to the pages for backlogs. `live` is the
    /// number of live queues.
    fn cache_needs_pages(&self, live: usize) -> bool {
        self.caches && (self.lends || !self.waits && live > 1)
    }
}

/// What an instance needs memory for.
///
/// ```
/// use steerage_mem::supply::{LOT_SLOTS, Needs, QueueNeeds};
///
/// let queue = QueueNeeds { segments: 1, lends: false, waits: false, caches: true, fixed: 192 };
/// let needs = Needs {
///     cpus: 128,
///     queues: vec![queue; 64],
///     backlog: 1000,
///     lot_slots: LOT_SLOTS,
///     kept_max: 1024,
///     cache_pages: 2048,
///     page_bytes: 2112,
///     slot_bytes: 16,
///     other_pages: 0,
///     other_bytes: 0,
/// };
/// let gib = needs.clone().fit_caches(1 << 30).within(1 << 30, 1000);
/// assert_eq!((gib.backlog, gib.cache_pages), (1000, 703), "the caches are smaller");
/// assert_eq!(needs.fit_caches(512 << 20).within(512 << 20, 1000).backlog, 512, "and then each CPU's share");
/// ```
#[derive(Clone, Debug)]
pub struct Needs {
    /// The number of CPUs.
    pub cpus: usize,
    /// The receive queues.
    pub queues: Vec<QueueNeeds>,
    /// The backlog: how many frames may wait for a CPU.
    pub backlog: usize,
    /// The number of slots that each queue's parking lot has.
    pub lot_slots: usize,
    /// The number of packets of each queue that handlers may keep.
    pub kept_max: usize,
    /// The size of each queue's local page cache, in pages: see [`fit_caches`](Self::fit_caches).
    pub cache_pages: usize,
    /// The size of a page, in bytes.
    pub page_bytes: usize,
    /// The size of a slot, in bytes.
    pub slot_bytes: usize,
    /// The number of pages that the instance needs for other purposes than receive queues.
    pub other_pages: usize,
    /// The size of the memory that is neither pages nor rings, in bytes.
    pub other_bytes: usize,
}

/// How an instance's packet memory is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The backlog: how many frames may wait for a CPU.
    pub backlog: usize,
    /// The number of slots that each queue's parking lot has.
    pub lot_slots: usize,
    /// The number of packets of each queue that handlers may keep.
    pub kept_max: usize,
    /// The maximum size of each queue's local page cache, in pages, or `usize::MAX`.
    pub cache_pages: usize,
    /// The pages of each queue.
    pub of_queues: Vec<usize>,
    /// The number of pages for frames that wait for CPUs.
    pub backlog_pages: usize,
    /// The number of pages for frames in parking lots.
    pub parked_pages: usize,
    /// The number of pages for packets that handlers keep.
    pub kept_pages: usize,
    /// The number of pages for local page caches.
    pub cached_pages: usize,
    /// The total number of pages.
    pub pages: usize,
    /// The memory of rings and parking lots if all of their slots are in use, in bytes.
    pub ring_bytes: u64,
    /// The size of all packet memory, in bytes.
    pub bytes: u64,
}

impl Needs {
    /// Returns true if several queues have one common limit on the frames that wait for a CPU.
    pub fn shares_backlog(&self) -> bool {
        self.queues.iter().filter(|queue| !queue.waits).count() > 1
    }

    /// Returns the memory for this backlog. A shorter backlog than requested reduces the limits for
    /// parking lots and kept packets in proportion.
    pub fn with_backlog(&self, backlog: usize) -> Budget {
        let scaled =
            |full: usize| (full as u128 * backlog.min(self.backlog) as u128 / self.backlog.max(1) as u128) as usize;
        let lot_slots = scaled(self.lot_slots).max(LOT_LEAST).min(self.lot_slots);
        let kept_max = scaled(self.kept_max);
        let in_pages = |queue: &&QueueNeeds| !queue.waits && !queue.lends;
        let live = self.queues.iter().filter(in_pages).count();
        let longest = self.queues.iter().filter(in_pages).map(|queue| queue.segments).max().unwrap_or(0);
        let waiting = self.cpus.saturating_mul(backlog);
        let of_live = waiting.saturating_mul(longest).saturating_mul(if live > 1 { 2 } else { 1 });
        let (mut backlog_pages, mut parked_pages, mut kept_pages, mut cached_pages) =
            (0_usize, 0_usize, 0_usize, 0_usize);
        let of_queues: Vec<usize> = self
            .queues
            .iter()
            .map(|queue| {
                let (in_rings, parked) = match queue {
                    QueueNeeds { lends: true, .. } => (0, 0),
                    QueueNeeds { waits: true, segments, .. } => {
                        (waiting.saturating_mul(*segments), lot_slots * segments)
                    }
                    QueueNeeds { segments, .. } => (of_live.div_ceil(live), lot_slots * segments),
                };
                let cached = if queue.cache_needs_pages(live) { self.cache_pages } else { 0 };
                let kept = kept_max.saturating_mul(queue.segments);
                backlog_pages = backlog_pages.saturating_add(in_rings);
                parked_pages = parked_pages.saturating_add(parked);
                kept_pages = kept_pages.saturating_add(kept);
                cached_pages = cached_pages.saturating_add(cached);
                in_rings.saturating_add(parked).saturating_add(kept).saturating_add(cached).saturating_add(queue.fixed)
            })
            .collect();
        let pages = of_queues.iter().fold(self.other_pages, |sum, pages| sum.saturating_add(*pages));
        let rings =
            (self.cpus as u64).saturating_mul(backlog.next_power_of_two() as u64).saturating_add(lot_slots as u64);
        let ring_bytes = rings.saturating_mul((self.queues.len() * self.slot_bytes) as u64);
        let bytes = (pages as u64).saturating_mul(self.page_bytes as u64);
        let bytes = bytes.saturating_add(ring_bytes).saturating_add(self.other_bytes as u64);
        let bounded = self.queues.iter().any(|queue| queue.cache_needs_pages(live));
        let cache_pages = if bounded { self.cache_pages } else { usize::MAX };
        Budget {
            backlog,
            lot_slots,
            kept_max,
            cache_pages,
            of_queues,
            backlog_pages,
            parked_pages,
            kept_pages,
            cached_pages,
            pages,
            ring_bytes,
            bytes,
        }
    }

    /// Reduces the local page caches, so that the caches and the backlogs together fit under the
    /// cap.
    #[must_use]
    pub fn fit_caches(self, cap: u64) -> Self {
        let wanted = self.cache_pages;
        let without = Self { cache_pages: 0, ..self };
        let left = cap.saturating_sub(without.within(cap, without.backlog).bytes) / (without.page_bytes as u64).max(1);
        let each = left as usize / without.queues.len().max(1);
        Self { cache_pages: wanted.min(each), ..without }
    }

    /// Returns the memory for up to [`GROWTH`] times the backlog, and then for larger local page
    /// caches, within the cap.
    pub(crate) fn with_room_for_more(&self, cap: u64) -> Budget {
        let backlog = self.within(cap, self.backlog).backlog;
        let longer = self.within(cap, backlog.saturating_mul(GROWTH));
        let left = cap.saturating_sub(longer.bytes) / (self.page_bytes as u64).max(1);
        let each = left as usize / self.queues.len().max(1);
        let cache_pages = (self.cache_pages + each).min(LPC_PAGES_MAX).max(self.cache_pages);
        let queues = self.queues.iter().map(|queue| QueueNeeds { caches: true, ..*queue }).collect();
        Self { cache_pages, queues, ..self.clone() }.with_backlog(longer.backlog)
    }

    /// Returns the budget for the longest backlog up to `backlog` that fits into `cap` bytes, or
    /// for [`BACKLOG_LEAST`].
    pub fn within(&self, cap: u64, backlog: usize) -> Budget {
        self.largest(backlog, |budget| budget.bytes <= cap)
    }

    pub(crate) fn largest(&self, backlog: usize, is_fit: impl Fn(&Budget) -> bool) -> Budget {
        let (mut fits, mut most) = (backlog.min(BACKLOG_LEAST), backlog);
        while fits < most {
            let middle = fits + (most - fits).div_ceil(2);
            if is_fit(&self.with_backlog(middle)) {
                fits = middle;
            } else {
                most = middle - 1;
            }
        }
        self.with_backlog(fits)
    }
}

/// The default number of pages in the local page caches (LPC) of all queues of one CPU, as in
/// Amazon's ENA driver for one queue.
///
/// A queue uses all pages of its cache in turn, because it takes finished pages back only when the
/// cache has too few pages for a poll. The pages of these caches should fit in the CPU's hardware
/// caches and in its TLB. With frames of 1,500 bytes, a local page cache of 2048 pages cost no more
/// time than no local page cache. With 4096 pages, a run took 1.7 times as long
/// (lab/notes/pages.md, "Many queues, frames, and the size of the cache").
pub const LPC_PAGES_PER_CPU: usize = 2048;

/// The maximum size of a local page cache, in pages, as in Amazon's ENA driver. Under Miri, which
/// is slow with many pages, the size is smaller.
pub const LPC_PAGES_MAX: usize = if cfg!(miri) { 512 } else { 32 * 1024 };

/// The smallest default size of a local page cache, in pages. Default sizes are multiples of this
/// number.
pub const LPC_PAGES_LEAST: usize = 64;

/// By default, all local page caches together take at most one eighth of the memory limit, or of
/// the machine's memory if that is smaller.
pub const LPC_MEMORY_PART: u64 = 8;

/// The maximum memory of all local page caches, in bytes: queues x pages x page size.
///
/// ```
/// use steerage_mem::supply::LpcMemory;
///
/// let caches = LpcMemory { queues: 4, lpc_pages: 2048, page_bytes: 2112 };
/// assert_eq!((caches.pages(), caches.bytes()), (8192, 17_301_504));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpcMemory {
    /// The number of receive queues that have a local page cache.
    pub queues: usize,
    /// The size of each local page cache, in pages.
    pub lpc_pages: usize,
    /// The size of a page, in bytes.
    pub page_bytes: usize,
}

impl LpcMemory {
    /// The number of pages in the local page caches of all queues together.
    pub fn pages(&self) -> u64 {
        self.queues as u64 * self.lpc_pages as u64
    }

    /// The size of the local page caches of all queues together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.pages().saturating_mul(self.page_bytes as u64)
    }

    /// The default size of each local page cache, in pages, or 0 if there is too little memory. The
    /// queues of one CPU, at most `per_cpu`, share [`LPC_PAGES_PER_CPU`] pages, and each gets at
    /// least [`LPC_PAGES_LEAST`]. The caches of all queues together take at most `memory_bytes`
    /// divided by [`LPC_MEMORY_PART`].
    ///
    /// ```
    /// use steerage_mem::supply::LpcMemory;
    ///
    /// let gib = 1 << 30;
    /// assert_eq!(LpcMemory::default_pages(4, 1, 2112, gib), 2048);
    /// assert_eq!(LpcMemory::default_pages(64, 16, 2112, gib), 128);
    /// ```
    pub fn default_pages(queues: usize, per_cpu: usize, page_bytes: usize, memory_bytes: u64) -> usize {
        let share = (LPC_PAGES_PER_CPU / per_cpu.max(1)).max(LPC_PAGES_LEAST);
        let one = Self { queues: queues.max(1), lpc_pages: 1, page_bytes }.bytes().max(1);
        let affordable = (memory_bytes / LPC_MEMORY_PART / one) as usize;
        share.min(affordable) / LPC_PAGES_LEAST * LPC_PAGES_LEAST
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn needs(queues: usize, cpus: usize) -> Needs {
        Needs {
            cpus,
            queues: vec![QueueNeeds { segments: 1, lends: false, waits: false, caches: true, fixed: 192 }; queues],
            backlog: 1000,
            lot_slots: 1024,
            kept_max: 1024,
            cache_pages: 0,
            page_bytes: 2112,
            slot_bytes: 16,
            other_pages: 0,
            other_bytes: 0,
        }
    }

    #[test]
    fn caches_take_what_backlogs_leave() {
        let with_caches = |queues, cap| {
            let needs = Needs { cache_pages: 2048, ..needs(queues, 4) }.fit_caches(cap);
            let budget = needs.within(cap, 1000);
            assert!(budget.bytes <= cap);
            (budget.backlog, needs.cache_pages)
        };
        let without = needs(2, 4).with_backlog(1000);
        assert_eq!(with_caches(2, GIB), (1000, 2048));
        assert_eq!(with_caches(2, without.bytes + 2 * 300 * 2112), (1000, 300));
        assert_eq!(with_caches(2, without.bytes), (1000, 0));
        assert!(with_caches(2, without.bytes - 1).0 < 1000);
        let one = Needs { cache_pages: 2048, ..needs(1, 4) };
        assert_eq!(one.with_backlog(1000).pages, needs(1, 4).with_backlog(1000).pages);
        assert_eq!(one.with_backlog(1000).cache_pages, usize::MAX);
    }

    #[test]
    fn one_queue_has_its_backlogs_once_and_several_share_two() {
        let pages = |queues| needs(queues, 4).within(GIB, 1000).backlog_pages;
        assert_eq!([1, 2, 3, 16].map(pages), [4000, 8000, 8001, 8000]);
    }

    #[test]
    fn ordinary_servers_fit_with_full_backlogs() {
        for (queues, cpus) in [(32, 32), (16, 128), (64, 64)] {
            let budget = needs(queues, cpus).within(GIB, 1000);
            assert_eq!((budget.backlog, budget.lot_slots, budget.kept_max), (1000, 1024, 1024), "{queues} x {cpus}");
            assert!(budget.bytes <= GIB);
        }
    }

    #[test]
    fn beyond_the_cap_every_share_shrinks_and_the_next_larger_backlog_would_not_fit() {
        let big = needs(256, 1024);
        let budget = big.within(GIB, 1000);
        assert!((BACKLOG_LEAST..1000).contains(&budget.backlog) && budget.bytes <= GIB, "{budget:?}");
        assert!(budget.lot_slots < 1024 && budget.kept_max < 1024);
        assert!(big.with_backlog(budget.backlog + 1).bytes > GIB);
        assert_eq!(big.within(1 << 20, 1000).backlog, BACKLOG_LEAST, "too little for anything");
        assert_eq!(big.within(GIB, 10).backlog, 10, "no more than was asked for");
    }

    #[test]
    fn a_queue_that_waits_has_backlogs_of_its_own_and_a_lent_one_needs_none() {
        let mut needs = needs(3, 8);
        needs.queues[0].waits = true;
        (needs.queues[1].lends, needs.queues[1].caches) = (true, false);
        needs.queues[2].segments = 2;
        let budget = needs.within(GIB, 1000);
        assert!(needs.shares_backlog(), "with the queue whose device lends");
        let fixed = 192;
        assert_eq!(budget.of_queues, [8000 + 2 * 1024 + fixed, 1024 + fixed, 2 * (8000 + 2 * 1024) + fixed]);
        assert_eq!(budget.pages, budget.backlog_pages + budget.parked_pages + budget.kept_pages + 3 * fixed);
        needs.queues[2].waits = true;
        assert!(!needs.shares_backlog());
    }

    #[test]
    fn nothing_overflows() {
        let huge = Needs { kept_max: usize::MAX, backlog: 1 << 40, ..needs(1024, 1024) };
        assert!(huge.within(GIB, huge.backlog).backlog < 1000);
        assert_eq!(huge.with_backlog(1 << 40).bytes, u64::MAX);
    }

    const PAGE_BYTES: usize = 2112;

    #[test]
    fn the_queues_of_a_cpu_share_one_default() {
        let pages = |queues, per_cpu| LpcMemory::default_pages(queues, per_cpu, PAGE_BYTES, 64 * GIB);
        assert_eq!(
            [(1, 1), (8, 1), (8, 4), (32, 16), (64, 32), (64, 64)].map(|(q, c)| pages(q, c)),
            [2048, 2048, 512, 128, 64, 64]
        );
        assert_eq!(pages(3, 3), 640, "a multiple of a poll");
    }

    #[test]
    fn caches_shrink_with_the_memory_until_there_are_none() {
        let pages = |queues, memory| LpcMemory::default_pages(queues, 1, PAGE_BYTES, memory);
        assert_eq!([31, 32, 128].map(|queues| pages(queues, GIB)), [2048, 1984, 448]);
        let smallest = (LPC_PAGES_LEAST * PAGE_BYTES) as u64 * LPC_MEMORY_PART;
        assert_eq!((pages(1, smallest), pages(1, smallest - 1), pages(2, smallest)), (LPC_PAGES_LEAST, 0, 0));
    }
}
