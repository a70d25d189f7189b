//! [`Bits`]: a set of small numbers, such as the numbers of rings.

/// A set of numbers below a fixed limit, with one bit for each number.
///
/// ```
/// let mut touched = steerage_mem::Bits::new(100);
/// touched.insert(3);
/// touched.insert(99);
/// assert_eq!(touched.word(0) | touched.word(1), 1 << 3 | 1 << 35);
/// touched.remove(3);
/// assert_eq!((touched.next(0), touched.next(100), touched.is_empty()), (Some(99), None, false));
/// ```
#[derive(Clone, Debug)]
pub struct Bits(Box<[u64]>);

impl Bits {
    /// Creates an empty set for the numbers below `end`.
    pub fn new(end: usize) -> Self {
        Self(vec![0; end.div_ceil(64).max(1)].into())
    }

    /// Adds a number.
    #[inline(always)]
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Adds each number from 0 to 63 whose bit in `numbers` is set.
    #[inline(always)]
    pub fn insert_all(&mut self, numbers: u64) {
        self.0[0] |= numbers;
    }

    /// Adds all numbers of another set of the same size.
    #[inline]
    pub fn insert_set(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// Removes a number.
    #[inline(always)]
    pub fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    /// Returns true if a number is in the set.
    #[inline(always)]
    pub fn has(&self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }

    /// Removes all numbers.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Returns true if the set is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The number of 64-bit [words](Self::word) that hold the bits of the set.
    #[inline(always)]
    pub fn words(&self) -> usize {
        self.0.len()
    }

    /// The bits of the numbers from 64 x `nth` to 64 x `nth` + 63.
    #[inline(always)]
    pub fn word(&self, nth: usize) -> u64 {
        self.0[nth]
    }

    /// Returns the smallest number in the set that is at least `from`.
    #[inline(always)]
    pub fn next(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for nth in from / 64..self.words() {
            let set = self.word(nth) & mask;
            if set != 0 {
                return Some(nth * 64 + set.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Iterates over the bits of `set`, the lowest first.
#[inline(always)]
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (bit < u64::BITS as usize).then_some(bit)
    })
}
