/// The SplitMix64 generator of Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators" (2014). Synthetic traffic and simulations use this generator, because their random
/// numbers must be the same on every machine and in every version.
///
/// ```
/// use steerage_testing::SplitMix64; // steerage::testing::SplitMix64
///
/// let mut dice = SplitMix64::new(1);
/// assert!((1..100).all(|_| dice.below(6) < 6));
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator whose numbers depend only on `seed`.
    #[inline(always)]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    #[inline(always)]
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// The finaliser of SplitMix64: a one-to-one map that moves neighbouring numbers far apart.
    #[inline(always)]
    pub const fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number that is less than `bound`, which must not be 0.
    #[inline(always)]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random number that is greater than 0 and at most 1.
    #[inline(always)]
    pub fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true in one of `times` calls, on average. Always returns false if `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn the_sequence_is_that_of_other_implementations() {
        let mut random = SplitMix64::new(1_234_567);
        let drawn: [u64; 5] = std::array::from_fn(|_| random.draw());
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }
}
