//! The sizes of the local page caches of receive queues. Names and units are those of Amazon's ENA driver (LPC).

/// The number of pages in a unit of `lpc_size`, the size of a receive queue's local page cache. The value is ENA's (the README
/// of its Linux driver, "Local Page Cache").
pub const LPC_UNIT_PAGES: usize = 1024;

/// The default size of a local page cache, in units: ENA's default.
pub const LPC_SIZE_DEFAULT: usize = 2;

/// The maximum size of a local page cache, in units: ENA's maximum.
pub const LPC_SIZE_MAX: usize = 32;

/// Local caches are off by default if all of them together would take more than this part of the memory (the limit, or the
/// machine's memory if that is less). An eighth does not hurt, and is enough for 31 queues with default settings.
pub const LPC_MEMORY_PART: u64 = 8;

/// The maximum memory of local page caches: queues x pages x page size. It is known before anything runs.
///
/// ```
/// use steerage_mem::page_cache::{LPC_SIZE_DEFAULT, LpcMemory};
///
/// let caches = LpcMemory { queues: 4, lpc_size: LPC_SIZE_DEFAULT, page_bytes: 2112 };
/// assert_eq!((caches.pages(), caches.bytes()), (8192, 17_301_504));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpcMemory {
    /// The number of receive queues with a cache.
    pub queues: usize,
    /// The size of each, in units of [`LPC_UNIT_PAGES`] pages.
    pub lpc_size: usize,
    /// The size of a page, in bytes.
    pub page_bytes: usize,
}

impl LpcMemory {
    /// The pages of all queues together.
    pub fn pages(&self) -> u64 {
        self.queues as u64 * (self.lpc_size * LPC_UNIT_PAGES) as u64
    }

    /// The bytes of all queues together.
    pub fn bytes(&self) -> u64 {
        self.pages().saturating_mul(self.page_bytes as u64)
    }

    /// The default size of each cache: [`LPC_SIZE_DEFAULT`], or 0 if the caches of all queues together would take more than one
    /// [`LPC_MEMORY_PART`]th of `memory_bytes`.
    pub fn default_size(queues: usize, page_bytes: usize, memory_bytes: u64) -> usize {
        let caches = Self { queues, lpc_size: LPC_SIZE_DEFAULT, page_bytes };
        if caches.bytes() > memory_bytes / LPC_MEMORY_PART { 0 } else { LPC_SIZE_DEFAULT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_off_where_memory_is_small() {
        const GIB: u64 = 1 << 30;
        const PAGE_BYTES_MIN: usize = 2112;
        let size = |queues, memory| LpcMemory::default_size(queues, PAGE_BYTES_MIN, memory);
        let of_one = LpcMemory { queues: 1, lpc_size: LPC_SIZE_DEFAULT, page_bytes: PAGE_BYTES_MIN }.bytes();
        assert_eq!(size(1, of_one * LPC_MEMORY_PART), LPC_SIZE_DEFAULT);
        assert_eq!(size(1, of_one * LPC_MEMORY_PART - 1), 0);
        assert_eq!(size(2, of_one * LPC_MEMORY_PART), 0);
        assert_eq!(size(31, GIB), LPC_SIZE_DEFAULT);
        assert_eq!(size(32, GIB), 0);
    }
}
