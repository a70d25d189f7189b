//! Counters that any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer, so that adding is a plain load and store without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count. Only one thread may call this function.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Release pairs with the acquire in `get`: a reader of a count also sees all earlier counts of the writer, so a packet
        // that shows as delivered also shows as received. It costs nothing on x86.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    /// Sets the count to `n`, if `n` is more. Only one thread may call this function.
    #[inline(always)]
    pub fn raise_to(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Release);
        }
    }

    /// The count.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // Acquire pairs with the release in `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// A count with many writers, for rare and slow events, such as waking a CPU.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// Adds to the count.
    pub fn add(&self, n: u64) {
        // Relaxed: a count of its own, by which nothing is handed over.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the count to `n`, if that is more.
    pub fn raise_to(&self, n: u64) {
        // Relaxed: as in `add`. Most counts have not changed, and reading one is cheaper.
        if n > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(n, Ordering::Relaxed);
        }
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
