use steerage::{flow::even_share, limits::BUCKETS};

use super::analysis::Volume;

#[derive(Debug)]
pub(super) struct Shares {
    cpus: Vec<Volume>,
    all: Volume,
}

impl Shares {
    pub(super) fn even(buckets: &[Volume; BUCKETS], cpus: usize) -> Self {
        let (mut loads, mut all) = (vec![Volume::default(); cpus.max(1)], Volume::default());
        for (bucket, weight) in buckets.iter().enumerate() {
            loads[even_share(bucket as u16, cpus.max(1))] += *weight;
            all += *weight;
        }
        Self { cpus: loads, all }
    }

    /// Gives each bucket its own CPU. No map of buckets to CPUs spreads packets better, because a
    /// bucket is always on one CPU.
    pub(super) fn thinnest(buckets: &[Volume; BUCKETS]) -> Self {
        Self::even(buckets, BUCKETS)
    }

    pub(super) fn packets(&self) -> Vec<u64> {
        self.cpus.iter().map(|weight| weight.packets).collect()
    }

    pub(super) fn each(&self) -> Vec<f64> {
        self.cpus.iter().map(|weight| fraction(weight.packets, self.all.packets)).collect()
    }

    pub(super) fn busiest(&self) -> f64 {
        self.most(|weight| weight.packets)
    }

    pub(super) fn busiest_bytes(&self) -> f64 {
        self.most(|weight| weight.bytes)
    }

    fn most(&self, of: fn(&Volume) -> u64) -> f64 {
        fraction(self.cpus.iter().map(of).max().unwrap_or(0), of(&self.all))
    }

    /// Returns the speed-up over a single CPU. The share of the busiest CPU limits the speed-up.
    pub(super) fn speed_up(&self) -> f64 {
        if self.busiest() > 0.0 { 1.0 / self.busiest() } else { 1.0 }
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(weights: &[(usize, u64)]) -> Box<[Volume; BUCKETS]> {
        let mut buckets = Box::new([Volume::default(); BUCKETS]);
        for (bucket, packets) in weights {
            buckets[*bucket] += Volume { packets: *packets, bytes: packets * 100 };
        }
        buckets
    }

    #[test]
    fn the_busiest_share_is_that_of_an_even_map() {
        let buckets = buckets(&[(0, 10), (1024, 20), (2048, 30), (4095, 40)]);
        let shares = [1, 2, 4].map(|cpus| Shares::even(&buckets, cpus).busiest());
        assert_eq!(shares, [1.0, 0.7, 0.4]);
        assert_eq!(Shares::even(&buckets, 4).packets(), [10, 20, 30, 40]);
    }

    #[test]
    fn nothing_has_no_busiest() {
        let nothing = Shares::even(&buckets(&[]), 8);
        assert_eq!((nothing.busiest(), nothing.busiest_bytes(), nothing.speed_up()), (0.0, 0.0, 1.0));
    }

    /// Three neighbouring buckets have a third of the packets each.
    #[test]
    fn no_number_of_cpus_is_faster_than_a_cpu_for_each_bucket() {
        let buckets = buckets(&[(7, 10), (8, 10), (9, 10)]);
        assert_eq!(Shares::thinnest(&buckets).speed_up(), 3.0);
        for cpus in 1..=BUCKETS {
            assert!(Shares::even(&buckets, cpus).speed_up() <= 3.0, "{cpus}");
        }
    }
}
