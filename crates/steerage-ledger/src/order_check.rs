use std::sync::atomic::{AtomicU64, Ordering};

/// For each bucket of a queue, the arrival number of the frame that was finished last.
#[derive(Debug)]
pub struct OrderCheck {
    last: Box<[AtomicU64]>,
}

impl OrderCheck {
    /// Creates the check for a queue whose flows are divided into `buckets` buckets.
    pub fn new(buckets: usize) -> Self {
        Self { last: (0..buckets).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records that a frame was finished. Returns true if the frame was finished out of order.
    pub fn completed(&self, bucket: usize, arrival: u64) -> bool {
        // `Relaxed` is enough: after a move, the rings and the control lock make the previous CPU's
        // writes visible. If a bucket is on two CPUs at once, an arrival number is not greater than
        // the last one.
        self.last[bucket].fetch_max(arrival, Ordering::Relaxed) >= arrival
    }
}
