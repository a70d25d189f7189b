//! [`OrderCheck`]: checks that packets complete in the order of their arrival.

use std::sync::atomic::{AtomicU64, Ordering};

/// For each bucket of a queue, the arrival number of the frame that completed last.
#[derive(Debug)]
pub struct OrderCheck {
    last: Box<[AtomicU64]>,
}

impl OrderCheck {
    /// Makes the check for a queue whose flows are divided into `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self { last: (0..buckets).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records a completion. Returns true if the frame completed out of order.
    pub fn completed(&self, bucket: usize, arrival: u64) -> bool {
        // Relaxed: a move of a bucket guarantees, through the rings and the control lock, that the
        // writes of the bucket's previous CPU are visible here. If a bucket is on two CPUs at once
        // by mistake, some arrival number does not increase.
        self.last[bucket].fetch_max(arrival, Ordering::Relaxed) >= arrival
    }
}
