//! Times, counted in places whose width is a part of their height: as HdrHistogram's, so that a percentile is right to about
//! a percent whatever it is.

/// Places to each doubling: a width of 1/64.
const PLACES_BITS: u32 = 6;
const PLACES: usize = 1 << PLACES_BITS;
/// Steps to each doubling where they are drawn.
const STEPS: usize = 8;
/// Doublings: up to 2^40 ns, which is 18 minutes. What is longer is in the last place.
const DOUBLINGS: usize = 40 - PLACES_BITS as usize;

/// Counts of times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max: u64,
    sum: u128,
}

impl Histogram {
    /// Of nothing as yet.
    pub fn new() -> Self {
        Self { counts: vec![0; PLACES * (DOUBLINGS + 1)], count: 0, max: 0, sum: 0 }
    }

    fn place(nanos: u64) -> usize {
        let doubling = (u64::BITS - (nanos >> PLACES_BITS).leading_zeros()) as usize;
        let within = if doubling == 0 { nanos as usize } else { (nanos >> (doubling - 1)) as usize - PLACES };
        (doubling * PLACES + within).min(PLACES * (DOUBLINGS + 1) - 1)
    }

    /// The lowest time of a place.
    fn lowest(place: usize) -> u64 {
        match (place / PLACES, (place % PLACES) as u64) {
            (0, within) => within,
            (doubling, within) => (within + PLACES as u64) << (doubling - 1),
        }
    }

    /// The middle of a place.
    fn value(place: usize) -> u64 {
        let width = Self::lowest(place + 1) - Self::lowest(place);
        Self::lowest(place) + width / 2
    }

    /// Counts one.
    pub fn add(&mut self, nanos: u64) {
        self.counts[Self::place(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
        self.sum += u128::from(nanos);
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean; 0 of none.
    pub fn mean(&self) -> u64 {
        (self.sum / u128::from(self.count.max(1))) as u64
    }

    /// What so many of a thousand are at most. 0 of none.
    pub fn permille(&self, permille: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(permille)).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        let place = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        place.map_or(0, |place| Self::value(place).min(self.max))
    }

    /// Steps of it, eight to each doubling and in rising order: nanoseconds, and how many took so many at most and more than the
    /// step before. For [`Sample::latencies`](crate::report::Sample::latencies).
    pub fn latencies(&self) -> Vec<(u64, u64)> {
        let each = PLACES / STEPS;
        let steps = self.counts.chunks(each).enumerate();
        let steps = steps.map(|(step, counts)| (Self::lowest((step + 1) * each) - 1, counts.iter().sum()));
        steps.filter(|(_, count)| *count > 0).collect()
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
    fn a_place_is_as_wide_as_it_may_be() {
        for nanos in (0..2000).chain((11..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 12_345])) {
            let value = Histogram::value(Histogram::place(nanos));
            assert!(value.abs_diff(nanos) * 64 <= nanos, "{nanos}: {value}");
        }
        assert_eq!(Histogram::place(u64::MAX), PLACES * (DOUBLINGS + 1) - 1);
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
            assert!(histogram.permille(permille as u64).abs_diff(right) * 64 <= right, "{permille}");
        }
        assert_eq!((histogram.max(), histogram.count()), (*times.last().unwrap(), 10_000));
        assert_eq!(Histogram::new().permille(500), 0);
    }

    #[test]
    fn steps_rise_and_hold_all() {
        let mut histogram = Histogram::new();
        (0..1000).for_each(|nth: u64| histogram.add(nth * nth));
        let latencies = histogram.latencies();
        assert!(latencies.is_sorted_by(|one, other| one.0 < other.0), "{latencies:?}");
        assert_eq!(latencies.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        let below: u64 = latencies.iter().filter(|(nanos, _)| *nanos <= 250_000).map(|(_, count)| count).sum();
        assert!(below.abs_diff(500) < 40, "{below}");
    }
}
