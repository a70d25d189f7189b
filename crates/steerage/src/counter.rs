//! Counters that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer: adding is a plain load and store, no locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        // Release pairs with the acquire in `get`: who reads a count also sees what was counted before it, so a packet
        // that shows as delivered shows as received. Costs nothing on x86.
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn raise_to(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Release);
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
