//! A histogram of times.

/// The longest stored time: 2^40 ns, about 18 minutes. Longer times are stored as 2^40 ns.
const NANOS_MAX: u64 = (1 << 40) - 1;

/// The number of significant decimal digits. With two digits, the error of a percentile is at most
/// 1 %.
const DIGITS: u8 = 2;

/// A histogram of times in nanoseconds, with the exact mean and the exact longest time.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    max: u64,
    sum: u128,
}

impl Histogram {
    /// Makes an empty histogram.
    #[expect(clippy::missing_panics_doc, reason = "the bounds are constants that are valid")]
    pub fn new() -> Self {
        let counts = hdrhistogram::Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("valid bounds");
        Self { counts, max: 0, sum: 0 }
    }

    /// Counts a time.
    pub fn add(&mut self, nanos: u64) {
        self.counts.saturating_record(nanos);
        self.max = self.max.max(nanos);
        self.sum += u128::from(nanos);
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts += &other.counts;
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the longest time, or 0 if the histogram is empty.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean time, or 0 if the histogram is empty.
    pub fn mean(&self) -> u64 {
        (self.sum / u128::from(self.count().max(1))) as u64
    }

    /// Returns a quantile of the times (the 99th percentile if `permille` is 990), or 0 if the
    /// histogram is empty.
    pub fn permille(&self, permille: u64) -> u64 {
        self.counts.value_at_quantile(permille as f64 / 1000.0).min(self.max)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_kept_to_within_a_percent() {
        for nanos in (0..2000).chain((11..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 12_345])) {
            let mut histogram = Histogram::new();
            histogram.add(nanos);
            let value = histogram.permille(1000);
            assert!(value.abs_diff(nanos) * 100 <= nanos, "{nanos}: {value}");
        }
        let mut histogram = Histogram::new();
        histogram.add(u64::MAX);
        assert_eq!(histogram.permille(1000), NANOS_MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut histogram = Histogram::new();
        let mut times: Vec<u64> = (1..=10_000).map(|nth: u64| nth * nth % 7919 * 1000 + 500).collect();
        let (one, other) = times.split_at(5000);
        let mut second = Histogram::new();
        one.iter().for_each(|time| histogram.add(*time));
        other.iter().for_each(|time| second.add(*time));
        histogram.merge(&second);
        times.sort_unstable();
        for permille in [1, 500, 900, 990, 999, 1000] {
            let right = times[10_000 * permille / 1000 - 1];
            assert!(histogram.permille(permille as u64).abs_diff(right) * 100 <= right, "{permille}");
        }
        assert_eq!((histogram.max(), histogram.count()), (*times.last().unwrap(), 10_000));
        assert_eq!(histogram.mean(), times.iter().sum::<u64>() / 10_000);
        assert_eq!(Histogram::new().permille(500), 0);
    }
}
