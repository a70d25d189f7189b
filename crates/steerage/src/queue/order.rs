//! Whether packets complete in the order of their arrival.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::BUCKETS;

/// When order is checked: for each bucket, the arrival number of the frame completed last.
#[derive(Debug)]
pub(crate) struct OrderCheck {
    last: Box<[AtomicU64]>,
}

impl OrderCheck {
    pub(crate) fn new() -> Self {
        Self { last: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes a completion; returns whether it came out of order.
    pub(crate) fn completed(&self, bucket: usize, arrival: u64) -> bool {
        // Relaxed: that the last CPU's writes are seen here is just what moves promise, by the rings and the control
        // lock; a bucket on two CPUs at once shows as a number that does not rise.
        self.last[bucket].fetch_max(arrival, Ordering::Relaxed) >= arrival
    }
}
