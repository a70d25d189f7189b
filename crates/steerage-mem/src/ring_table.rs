use crate::bits::Bits;
use crate::ring::LISTS_MAX;

/// The number of rings that have buckets, in three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RingsInUse {
    /// One ring has all buckets, so that no hash is needed.
    One,
    /// From 2 to [`LISTS_MAX`] rings have buckets.
    Few,
    /// More than [`LISTS_MAX`] rings have buckets.
    Many,
}

/// For each bucket, the ring for its frames (a CPU's ring or the parking lot), and for each ring
/// the number of its buckets. The numbers of buckets are stored, because counting a ring's buckets
/// during a move would take several microseconds.
#[derive(Debug)]
pub struct RingTable<const BUCKETS: usize> {
    /// The ring of each bucket.
    pub ring_of: Box<[u16; BUCKETS]>,
    buckets_of: Vec<u16>,
    /// The set of rings that have buckets.
    pub in_use: Bits,
    rings: usize,
}

impl<const BUCKETS: usize> RingTable<BUCKETS> {
    /// Creates a table in which all buckets go to the first ring.
    pub fn new(rings: usize) -> Self {
        let mut buckets_of = vec![0; rings];
        buckets_of[0] = BUCKETS as u16;
        let mut in_use = Bits::new(rings);
        in_use.insert(0);
        Self { ring_of: Box::new([0; BUCKETS]), buckets_of, in_use, rings: 1 }
    }

    /// Assigns a bucket to another ring.
    pub fn set(&mut self, bucket: usize, ring: u16) {
        let before = std::mem::replace(&mut self.ring_of[bucket], ring);
        self.buckets_of[usize::from(before)] -= 1;
        if self.buckets_of[usize::from(before)] == 0 {
            self.in_use.remove(usize::from(before));
            self.rings -= 1;
        }
        self.in_use.insert(usize::from(ring));
        self.rings += usize::from(self.buckets_of[usize::from(ring)] == 0);
        self.buckets_of[usize::from(ring)] += 1;
    }

    /// Returns whether one, few or many rings have buckets.
    pub fn rings_in_use(&self) -> RingsInUse {
        match self.rings {
            1 => RingsInUse::One,
            2..=LISTS_MAX => RingsInUse::Few,
            _ => RingsInUse::Many,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BUCKETS: usize = 4096;

    #[test]
    fn few_rings_are_told_from_many() {
        let of = |rings: usize| {
            let mut table = RingTable::<BUCKETS>::new(BUCKETS);
            (0..BUCKETS).for_each(|bucket| table.set(bucket, (bucket % rings) as u16));
            table.rings_in_use()
        };
        assert_eq!(of(1), RingsInUse::One);
        for rings in 2..=LISTS_MAX {
            assert_eq!(of(rings), RingsInUse::Few, "{rings} rings");
        }
        assert_eq!(of(LISTS_MAX + 1), RingsInUse::Many);
        assert_eq!(of(BUCKETS), RingsInUse::Many);
        let mut table = RingTable::<BUCKETS>::new(3);
        (0..BUCKETS).for_each(|bucket| table.set(bucket, 2));
        assert_eq!(table.rings_in_use(), RingsInUse::One);
        table.set(BUCKETS - 1, 1);
        assert_eq!(table.rings_in_use(), RingsInUse::Few);
        table.set(BUCKETS - 1, 2);
        table.set(7, 2);
        assert_eq!(table.rings_in_use(), RingsInUse::One);
    }
}
