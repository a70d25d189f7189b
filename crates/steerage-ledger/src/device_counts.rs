//! The counts of a device besides received and lost packets.

use crate::counter::SharedCounter;

/// Counts of a queue that only its kind of device has, by the names that the kernel or the driver gives them. The queue adds to them,
/// and so may other threads that use the device. Any thread reads them.
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
    /// Counts with these names, all 0.
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, counts: names.iter().map(|_| SharedCounter::default()).collect() }
    }

    /// Sets the count at this place in the list of names, unless it is less than before.
    ///
    /// # Panics
    /// If the list has fewer names.
    pub fn raise_to(&self, nth: usize, count: u64) {
        self.counts[nth].raise_to(count);
    }

    /// Adds to the count at this place in the list of names.
    ///
    /// # Panics
    /// If the list has fewer names.
    pub fn add(&self, nth: usize, count: u64) {
        self.counts[nth].add(count);
    }

    /// The counts with their names, in the order of the names.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().map(SharedCounter::get)).collect()
    }
}
