//! The sizes of the local page caches of receive queues. The name is that of Amazon's ENA driver
//! (LPC). ENA counts the size in units of 1024 pages. Here the unit is one page.

/// The default number of pages in the local caches of all queues that a CPU polls: ENA's default
/// for one queue.
///
/// A queue uses all pages of its cache in turn, because it takes pages back only when its cache is
/// too small for a poll. So these pages should fit the CPU's own caches and its TLB. With frames of
/// 1,500 bytes, this number costs no more than no cache. Twice as many pages made a run 1.7 times
/// as long (docs/lab/pages.md, "Many queues, frames, and the size of the cache").
pub const LPC_PAGES_PER_CPU: usize = 2048;

/// The maximum size of a local page cache, in pages: ENA's maximum. Miri, which takes seconds for a
/// thousand pages, has a smaller one.
pub const LPC_PAGES_MAX: usize = if cfg!(miri) { 512 } else { 32 * 1024 };

/// The smallest default size of a local page cache: the pages of one poll. Default sizes are
/// multiples of it.
pub const LPC_PAGES_LEAST: usize = 64;

/// By default, all local caches together take at most this fraction of the memory (the limit, or
/// the machine's memory if that is less). An eighth does no harm.
pub const LPC_MEMORY_PART: u64 = 8;

/// The maximum memory of local page caches: queues x pages x page size. It can be computed before a
/// run.
///
/// ```
/// use steerage_mem::page_cache::LpcMemory;
///
/// let caches = LpcMemory { queues: 4, lpc_pages: 2048, page_bytes: 2112 };
/// assert_eq!((caches.pages(), caches.bytes()), (8192, 17_301_504));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpcMemory {
    /// The number of receive queues with a cache.
    pub queues: usize,
    /// The size of each cache, in pages.
    pub lpc_pages: usize,
    /// The size of a page, in bytes.
    pub page_bytes: usize,
}

impl LpcMemory {
    /// The pages of all queues together.
    pub fn pages(&self) -> u64 {
        self.queues as u64 * self.lpc_pages as u64
    }

    /// The bytes of all queues together.
    pub fn bytes(&self) -> u64 {
        self.pages().saturating_mul(self.page_bytes as u64)
    }

    /// The default size of each cache, in pages. The queues of a CPU share [`LPC_PAGES_PER_CPU`],
    /// with at least [`LPC_PAGES_LEAST`] each, and all caches together take at most one
    /// [`LPC_MEMORY_PART`]th of `memory_bytes`. `per_cpu` is the highest number of queues that one
    /// CPU polls. 0 if there is too little memory for a cache.
    ///
    /// ```
    /// use steerage_mem::page_cache::LpcMemory;
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

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
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
