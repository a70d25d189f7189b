//! Which of the rings to a CPU may have something in them, so that a CPU with many rings does not have to look at all of them.
//!
//! A producer publishes, fences, and then sets the ring's bit if it is not set. The consumer clears the bit of a ring that was empty
//! for a while, fences, and then looks at the ring once more. One of the two fences comes first, so either the consumer sees what
//! was published, or the producer sees that the bit is not set. A bit that is set stays set while packets keep coming, so usually
//! both sides only read it.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence};

/// Words per cache line.
const WORDS: usize = 8;

/// A bit for each ring to one CPU.
#[derive(Debug)]
pub struct Inbox {
    lines: Box<[CachePadded<[AtomicU64; WORDS]>]>,
}

impl Inbox {
    /// For rings with the numbers from 0 to `rings` - 1, which are all empty.
    pub fn new(rings: usize) -> Self {
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..rings.div_ceil(WORDS * 64)).map(|_| line()).collect() }
    }

    fn word(&self, nth: usize) -> &AtomicU64 {
        &self.lines[nth / WORDS][nth % WORDS]
    }

    /// Notes that something was published on a ring. The caller has passed the fence of
    /// [`after_publishing`](crate::park::Sleepers::after_publishing) since then.
    #[inline(always)]
    pub fn note(&self, ring: usize) {
        let (word, bit) = (self.word(ring / 64), 1 << (ring % 64));
        // N1: ordered by the fence F2 before it, which pairs with F3. The read comes first, so that the line stays shared.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Notes that a ring is empty. The caller then looks at the ring once more, and [notes](Self::note) the ring if it is not.
    pub fn clear(&self, ring: usize) {
        // N2. Relaxed: ordered by the fence.
        self.word(ring / 64).fetch_and(!(1 << (ring % 64)), Ordering::Relaxed);
        // F3: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// The first of the rings from `from` to `until` - 1 that may have something in it.
    #[inline]
    pub fn next(&self, from: usize, until: usize) -> Option<usize> {
        if from >= until {
            return None;
        }
        let mut nth = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while nth * 64 < until {
            let set = self.word(nth).load(Ordering::Relaxed) & mask;
            if set != 0 {
                return Some(nth * 64 + set.trailing_zeros() as usize).filter(|ring| *ring < until);
            }
            (nth, mask) = (nth + 1, u64::MAX);
        }
        None
    }
}

impl Inbox {
    /// Like [`next`](Self::next), for `rings` rings that are looked at in the order `first`, `first` + 1, .., 0, 1, ..: the place in
    /// that order of the first ring from the place `from` on.
    #[inline]
    pub fn next_by_turns(&self, from: usize, first: usize, rings: usize) -> Option<usize> {
        if rings < 64 {
            // One word: it is turned so that its lowest bit is `first`.
            let noted = self.lines[0][0].load(Ordering::Relaxed);
            let by_turns = (noted >> first | noted << (rings - first)) & ((1 << rings) - 1) & (u64::MAX << from);
            return (by_turns != 0).then_some(by_turns.trailing_zeros() as usize);
        }
        let to_the_end = self.next(first + from, rings).map(|ring| ring - first);
        to_the_end.or_else(|| self.next((first + from).saturating_sub(rings), first).map(|ring| ring + rings - first))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_ring_has_its_turn() {
        for rings in [1, 5, 63, 64, 130] {
            let inbox = Inbox::new(rings);
            (0..rings).filter(|ring| ring % 3 != 1).for_each(|ring| inbox.note(ring));
            for first in 0..rings {
                let mut found = Vec::new();
                while let Some(place) = inbox.next_by_turns(found.last().map_or(0, |last| last + 1), first, rings) {
                    found.push(place);
                }
                let noted = |place: &usize| (place + first) % rings % 3 != 1;
                assert_eq!(found, (0..rings).filter(noted).collect::<Vec<_>>(), "{rings} rings from {first}");
            }
        }
    }

    #[test]
    fn it_finds_the_rings_that_were_noted() {
        for rings in [1, 63, 64, 65, 511, 512, 513, 1024] {
            let inbox = Inbox::new(rings);
            assert_eq!(inbox.next(0, rings), None);
            let noted: Vec<usize> = (0..rings).filter(|ring| ring % 61 == 0 || ring % 64 == 63).collect();
            noted.iter().for_each(|ring| inbox.note(*ring));
            let mut found = Vec::new();
            while let Some(ring) = inbox.next(found.last().map_or(0, |last| last + 1), rings) {
                found.push(ring);
            }
            assert_eq!(found, noted, "{rings} rings");
            let last = *noted.last().unwrap();
            assert_eq!(inbox.next(last, last), None, "an empty range");
            inbox.clear(last);
            assert_eq!(inbox.next(last, rings), None);
        }
    }
}
