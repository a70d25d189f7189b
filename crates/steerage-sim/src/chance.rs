//! Random numbers that depend only on a seed.

use std::sync::Arc;

/// xorshift64* (Vigna 2016). Its numbers are random enough for schedules, and equal on every
/// machine.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Creates the sequence of random numbers for `seed`.
    pub fn new(seed: u64) -> Self {
        // Splitmix64's finaliser, so that the sequences of seeds 1, 2, 3 differ from the start.
        let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((z ^ (z >> 31)) | 1)
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A random number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `times` calls on average. Never true for 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

/// Draws ranks by Zipf's law: the probability of rank r is proportional to 1 / (r + 1)^s.
#[derive(Clone, Debug)]
pub struct Zipf(Arc<[u64]>);

impl Zipf {
    /// Ranks below `count`, with exponent `s`. With an exponent of 0, all ranks are equally
    /// probable.
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

    /// A random rank.
    pub fn draw(&self, chance: &mut Chance) -> usize {
        let at = chance.draw();
        self.0.partition_point(|bound| *bound < at).min(self.0.len() - 1)
    }
}
