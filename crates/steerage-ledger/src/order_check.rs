//! [`OrderCheck`] checks that packets are finished in the order in which they arrived.

use std::sync::atomic::{AtomicU64, Ordering};

/// For each bucket of a queue, the arrival number (position in the order of arrival) of the frame
/// that was finished last.
#[derive(Debug)]
pub struct OrderCheck {
    last: Box<[AtomicU64]>,
}

impl OrderCheck {
    /// Creates the check for a queue whose flows are divided into `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self { last: (0..buckets).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records a completion. Returns true if the frame was finished out of order.
    pub fn completed(&self, bucket: usize, arrival: u64) -> bool {
        // The ordering `Relaxed` is enough: after a bucket has moved, the rings and the control
        // lock make the writes of the previous CPU visible to the new CPU. If a bug puts a bucket
        // on two CPUs at the same time, the check finds an arrival number that is not greater than
        // the bucket's previous arrival number.
        self.last[bucket].fetch_max(arrival, Ordering::Relaxed) >= arrival
    }
}
