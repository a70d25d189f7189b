//! Counters that every thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only one thread writes. Because there is only one writer, an addition is a plain
/// load and store, without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count. Only the thread that writes this count may call `add`.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // The release store pairs with the acquire load in `get`. Therefore a thread that reads
        // this count also sees everything that the same writer counted earlier. For example, a
        // reader that sees a packet counted as delivered also sees it counted as received. A
        // release store costs nothing on x86.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    /// Sets the count to `n` if `n` is greater than the count. Only the thread that writes this
    /// count may call `raise_to`.
    #[inline(always)]
    pub fn raise_to(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Release);
        }
    }

    /// Sets the count to `n`. Use `set` for counts that can also decrease. Only the thread that
    /// writes this count may call `set`.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }

    /// Returns the count.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // The acquire load pairs with the release store in `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// A count that many threads write. Use a `SharedCounter` only for rare and slow events, such as
/// waking a CPU.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// Adds to the count.
    pub fn add(&self, n: u64) {
        // The memory ordering is relaxed, because no other memory depends on this count.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the count to `n` if `n` is greater than the count.
    pub fn raise_to(&self, n: u64) {
        // The memory ordering is relaxed, because no other memory depends on this count. Most calls
        // of `raise_to` do not change the count, and a load is cheaper than `fetch_max`.
        if n > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(n, Ordering::Relaxed);
        }
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
