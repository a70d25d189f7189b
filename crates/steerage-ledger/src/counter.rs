use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer: an addition is a plain load and store, without a lock.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count. Only the single writer of the count may call `add`.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // This store pairs with the acquire load in `get`: a reader of this count also sees
        // everything that the writer counted earlier. A release store costs nothing on x86.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    /// Sets the count to `n` if `n` is greater. Only the single writer of the count may call
    /// `raise_to`.
    #[inline(always)]
    pub fn raise_to(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Release);
        }
    }

    /// Sets the count to `n`, which may be lower. Only the single writer of the count may call
    /// `set`.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Release);
    }

    /// Returns the count.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        // Pairs with the release store in `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// A count with many writers, for rare and slow events, such as waking a CPU.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// Adds to the count.
    pub fn add(&self, n: u64) {
        // Relaxed, because no other memory depends on this count.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets the count to `n` if `n` is greater.
    pub fn raise_to(&self, n: u64) {
        // Relaxed: no other memory depends on this count. The load comes first because it is
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
