use crate::counter::SharedCounter;

/// The counts that only one kind of device has, with the names of the kernel or the driver. Any
/// thread may add and read.
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
    /// Creates counts of 0 with these names.
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, counts: names.iter().map(|_| SharedCounter::default()).collect() }
    }

    /// Raises the `nth` count to `count`, unless it is already greater.
    ///
    /// # Panics
    /// Panics if there is no `nth` name.
    pub fn raise_to(&self, nth: usize, count: u64) {
        self.counts[nth].raise_to(count);
    }

    /// Adds `count` to the `nth` count.
    ///
    /// # Panics
    /// Panics if there is no `nth` name.
    pub fn add(&self, nth: usize, count: u64) {
        self.counts[nth].add(count);
    }

    /// Returns the names and the counts.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        self.names.iter().copied().zip(self.counts.iter().map(SharedCounter::get)).collect()
    }
}
