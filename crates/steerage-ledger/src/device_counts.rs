//! [`DeviceCounts`] contains counts that a device has in addition to the counts of received and
//! lost packets.

use crate::counter::SharedCounter;

/// The counts of a receive queue that exist only for one kind of device. Device counts have the
/// names that the kernel or the driver uses. The queue and each other thread that uses the device
/// may add to the queue's device counts. Every thread may read the device counts.
///
/// ```
/// # mod steerage { pub mod device { pub use steerage_ledger::DeviceCounts; } }
/// use steerage::device::DeviceCounts;
///
/// let counts = DeviceCounts::new(&["rx_ring_full", "rx_invalid_descs"]);
/// counts.raise_to(0, 7);
/// counts.add(1, 2);
/// assert_eq!(counts.read(), [("rx_ring_full", 7), ("rx_invalid_descs", 2)]);
/// ```
#[derive(Debug)]
pub struct DeviceCounts {
    names: &'static [&'static str],
    counts: Box<[SharedCounter]>,
}

impl DeviceCounts {
    /// Creates device counts with the names `names`. All counts are 0.
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, counts: names.iter().map(|_| SharedCounter::default()).collect() }
    }

    /// Raises the count with the `nth` name of the list to `count`. Does nothing if the count is
    /// already greater.
    ///
    /// # Panics
    /// Panics if the list of names is too short for `nth`.
    pub fn raise_to(&self, nth: usize, count: u64) {
        self.counts[nth].raise_to(count);
    }

    /// Adds `count` to the count with the `nth` name of the list.
    ///
    /// # Panics
    /// Panics if the list of names is too short for `nth`.
    pub fn add(&self, nth: usize, count: u64) {
        self.counts[nth].add(count);
    }

    /// Returns the names of the counts, with the counts, in the order of the list of names.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().map(SharedCounter::get)).collect()
    }
}
