//! Checks whether packets complete in the order of their arrival.

use std::sync::atomic::{AtomicU64, Ordering};

/// The arrival number of the frame that completed last, for each bucket of a queue.
#[derive(Debug)]
pub struct OrderCheck {
    last: Box<[AtomicU64]>,
}

impl OrderCheck {
    /// For a queue whose flows are divided into `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self { last: (0..buckets).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records a completion. Returns whether it was out of order.
    pub fn completed(&self, bucket: usize, arrival: u64) -> bool {
        // Relaxed: moves guarantee that the writes of the bucket's last CPU are visible here, by the rings and the control lock. If
        // a bucket is on two CPUs at once, a number does not increase.
        self.last[bucket].fetch_max(arrival, Ordering::Relaxed) >= arrival
    }
}
