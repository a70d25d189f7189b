//! Random numbers that depend only on a seed, and random ranks by Zipf's law.

use std::sync::Arc;

pub use steerage::testing::SplitMix64 as Chance;

/// Draws random ranks by Zipf's law: the probability of rank r is proportional to 1 / (r + 1)^s.
#[derive(Clone, Debug)]
pub struct Zipf(Arc<[u64]>);

impl Zipf {
    /// Creates a distribution of the ranks from 0 to `count - 1` with the exponent `s`; with 0, all
    /// ranks are equally probable.
    pub fn new(count: usize, s: f64) -> Self {
        let weights: Vec<f64> = (0..count).map(|rank| 1.0 / ((rank + 1) as f64).powf(s)).collect();
        let sum: f64 = weights.iter().sum();
        let mut upto = 0.0;
        let bounds = weights.iter().map(|weight| {
            upto += weight / sum;
            (upto * u64::MAX as f64) as u64
        });
        Self(bounds.collect())
    }

    /// Draws a random rank.
    pub fn draw(&self, chance: &mut Chance) -> usize {
        let at = chance.draw();
        self.0.partition_point(|bound| *bound < at).min(self.0.len() - 1)
    }
}
