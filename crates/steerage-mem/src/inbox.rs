//! [`Inbox`] records which rings to a CPU may have frames, so that the CPU need not check all
//! rings.
//!
//! A producer publishes frames, executes a fence, and then sets the bit of its ring if the bit is
//! clear. The consumer clears the bit of a ring that was empty for a while, executes a fence, and
//! then checks whether this ring is still empty. Either the producer's fence or the consumer's
//! fence is executed first. Therefore either the consumer sees the published frames, or the
//! producer sees that its bit is clear. The bit of a ring stays set as long as packets arrive in
//! the ring. Producer and consumer therefore usually only read the bit and do not write it.
//!
//! A consumer that is about to sleep also checks only the rings whose bits are set. Therefore a
//! producer that has set a bit executes another fence before it checks for sleeping CPUs.
//!
//! If there are several queues, one counter shows whether no frame waits in any ring
//! ([`Admission`]). Then no ring is checked.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::admission::Admission;
use crate::sync::{AtomicU64, Ordering, fence};

const WORDS: usize = 8;

/// The number of times in a row that a CPU checks an empty ring. A CPU that has found a ring empty
/// this number of times ignores the ring until frames are published on it. A check takes 2 to 4 ns.
/// When an ignored ring is used again, the producer and the consumer each need a cache line
/// transfer and an atomic operation. Because of this cost, ignoring a ring is worthwhile only if
/// the ring is idle for about 100 us. This number of checks is divided among all rings to a CPU,
/// because the CPU checks all of these rings in each round (pass of its loop).
const LOOKS: u32 = 1024;

/// The minimum number of checks in a row of each empty ring, if there are many rings. `LOOKS_MIN`
/// checks of an empty ring take as much time as using an ignored ring again.
const LOOKS_MIN: u32 = 32;

/// For each ring to one CPU, a bit that is set if the ring may have frames.
#[derive(Debug)]
pub struct Inbox {
    lines: Box<[CachePadded<[AtomicU64; WORDS]>]>,
    words: usize,
    looks_max: u32,
    /// The counters of the frames that wait for each CPU, and the index of the CPU to which this
    /// inbox belongs.
    counted: Option<(Arc<[Admission]>, usize)>,
}

impl Inbox {
    /// Creates an inbox for the rings 0 to `rings` - 1, which are all empty. `counted` has counters
    /// and an index. The counter with this index includes the frames of all these rings: each frame
    /// is counted before it is published.
    pub fn new(rings: usize, counted: Option<(Arc<[Admission]>, usize)>) -> Self {
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let words = rings.div_ceil(64).max(1);
        let looks_max = (LOOKS / rings.clamp(1, LOOKS as usize) as u32).max(LOOKS_MIN);
        Self { lines: (0..words.div_ceil(WORDS)).map(|_| line()).collect(), words, looks_max, counted }
    }

    /// The number of times in a row that a CPU checks an empty ring before it [clears](Self::clear)
    /// the ring's bit.
    #[inline]
    pub fn looks_max(&self) -> u32 {
        self.looks_max
    }

    /// Returns true if there is a counter and it shows that no ring has frames. A CPU that has
    /// announced that it is about to sleep misses no frame: a frame is counted before the
    /// producer's fence, and the fence is executed before the producer checks for sleeping CPUs.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.counted.as_ref().is_some_and(|(all, cpu)| all[*cpu].waiting() == 0)
    }

    #[inline(always)]
    fn word(&self, nth: usize) -> &AtomicU64 {
        &self.lines[nth / WORDS][nth % WORDS]
    }

    /// Records that frames were published on a ring. The caller must execute the fence of
    /// [`after_publishing`](crate::park::Sleepers::after_publishing) between publishing the frames
    /// and this call. After this call, the caller may check whether the ring's CPU sleeps.
    #[inline(always)]
    pub fn note(&self, ring: usize) {
        let (word, bit) = (self.word(ring / 64), 1 << (ring % 64));
        // This load is the memory access N1. The fence F2, which is executed before the load,
        // orders the load and pairs with the fence F3. The bit is read before it is written, so
        // that the cache line stays shared if the bit is already set.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
            // F4: pairs with F1 of `park`. Either the CPU that goes to sleep sees the bit, or this
            // thread sees that the CPU sleeps.
            fence(Ordering::SeqCst);
        }
    }

    /// Records that a ring is empty. After clearing the bit, the caller checks the ring once more,
    /// and [sets the bit](Self::note) again if the ring has frames.
    pub fn clear(&self, ring: usize) {
        // N2. The atomic operation that clears the bit is relaxed, because the fence F3 orders it.
        self.word(ring / 64).fetch_and(!(1 << (ring % 64)), Ordering::Relaxed);
        // F3: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Begins a pass through all rings, starting with the ring `first`. If no ring has frames, the
    /// pass visits no ring.
    #[inline]
    pub fn begin(&self, first: usize) -> Turns {
        if self.is_empty() {
            return Turns::default();
        }
        let nth = first / 64;
        let not_before = u64::MAX << (first % 64);
        let noted = self.word(nth).load(Ordering::Relaxed);
        // If the bits of all rings fit into one 64-bit word, this word is read again only if bits
        // of rings before `first` are set.
        let words_left = if self.words == 1 { usize::from(noted & !not_before != 0) } else { self.words };
        Turns { nth, noted: noted & not_before, words_left, not_before }
    }

    /// Returns the next ring of the pass that may have frames. If another CPU sets the bit of a
    /// ring after the pass has read the bit, the next pass finds the ring.
    #[inline(always)]
    pub fn next(&self, turns: &mut Turns) -> Option<usize> {
        while turns.noted == 0 {
            turns.words_left = turns.words_left.checked_sub(1)?;
            turns.nth = if turns.nth + 1 < self.words { turns.nth + 1 } else { 0 };
            let mask = if turns.words_left > 0 { u64::MAX } else { !turns.not_before };
            turns.noted = self.word(turns.nth).load(Ordering::Relaxed) & mask;
        }
        let found = turns.peek();
        turns.noted &= turns.noted - 1;
        found
    }
}

/// A pass through an [`Inbox`]. The pass reads each 64-bit word of the inbox once. The first 64-bit
/// word of the pass is read twice if bits before the first ring are set in this word, or if the
/// inbox has more than one word.
#[derive(Debug, Default)]
pub struct Turns {
    nth: usize,
    noted: u64,
    words_left: usize,
    /// A mask for the first 64-bit word of the pass: the rings whose bits are set in the mask are
    /// visited at the start of the pass. The rings of all other bits in the first 64-bit word are
    /// visited at the end of the pass.
    not_before: u64,
}

impl Turns {
    /// Returns the next ring of the pass if its bit is set in the 64-bit word that was read last.
    #[inline]
    pub fn peek(&self) -> Option<usize> {
        (self.noted != 0).then(|| self.nth * 64 + self.noted.trailing_zeros() as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn found(inbox: &Inbox, first: usize) -> Vec<usize> {
        let mut turns = inbox.begin(first);
        std::iter::from_fn(|| inbox.next(&mut turns)).collect()
    }

    #[test]
    fn every_ring_has_its_turn() {
        // If the test started at every ring in turn, it would take ten minutes under Miri.
        let (most, all_firsts) = if cfg!(miri) { (130, 10) } else { (1024, 200) };
        for rings in [1, 5, 63, 64, 65, 130, 512, 513, 1024].into_iter().filter(|rings| *rings <= most) {
            let inbox = Inbox::new(rings, None);
            let noted = |ring: &usize| ring % 3 != 1 || ring % 64 == 63;
            (0..rings).filter(noted).for_each(|ring| inbox.note(ring));
            for first in (0..rings).filter(|first| rings < all_firsts || first % 7 == 0) {
                let all = (first..rings).chain(0..first);
                assert_eq!(found(&inbox, first), all.filter(noted).collect::<Vec<_>>(), "{rings} rings from {first}");
            }
        }
    }

    #[test]
    fn a_ring_that_was_cleared_is_not_found() {
        let inbox = Inbox::new(130, None);
        assert_eq!(found(&inbox, 7), [0; 0]);
        [3, 70, 129].iter().for_each(|ring| inbox.note(*ring));
        inbox.clear(70);
        assert_eq!(found(&inbox, 70), [129, 3]);
    }

    #[test]
    fn the_next_ring_is_known_before_it_is_taken() {
        let inbox = Inbox::new(8, None);
        [2, 5].iter().for_each(|ring| inbox.note(*ring));
        let mut turns = inbox.begin(4);
        assert_eq!((turns.peek(), inbox.next(&mut turns), turns.peek()), (Some(5), Some(5), None));
        assert_eq!((inbox.next(&mut turns), inbox.next(&mut turns)), (Some(2), None));
    }
}
