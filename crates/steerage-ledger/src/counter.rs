//! Counters that every thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer, so that an addition is a plain load and store without a locked
/// instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count. Only one thread may call this function.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Release pairs with the acquire in `get`: a reader of this count also sees all earlier
        // counts of the writer. Therefore a packet that is counted as delivered is also counted as
        // received. Release costs nothing on x86.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    /// Sets the count to `n`, if `n` is greater. Only one thread may call this function.
    #[inline(always)]
    pub fn raise_to(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Release);
        }
    }

    /// Sets the count to `n`, for a counter that can also fall. Only one thread may call this
    /// function.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }

    /// Returns the count.
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
        // Relaxed: the count publishes no other memory.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the count to `n`, if `n` is greater.
    pub fn raise_to(&self, n: u64) {
        // Relaxed: the count publishes no other memory. Most counts have not changed, and a load is
        // cheaper than `fetch_max`.
        if n > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(n, Ordering::Relaxed);
        }
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
