//! [`Inbox`] records which rings to a CPU may have frames, so that the CPU need not check all
//! rings.
//!
//! A producer publishes frames, executes a fence, and then sets the bit of its ring if the bit is
//! clear. The consumer clears the bit of a ring that was empty for a while, executes a fence, and
//! then checks the ring once more. Whichever of the two fences comes first, either the consumer
//! sees the frames, or the producer sees that the bit of its ring is clear. The bit of a busy ring
//! stays set and is only read.
//!
//! A consumer that is about to sleep also checks only the rings whose bits are set. Therefore a
//! producer that has set a bit executes another fence before it checks for sleeping CPUs. If there
//! are several queues, one counter ([`Admission`]) shows whether any frame waits in a ring.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::admission::Admission;
use crate::sync::{AtomicU64, Ordering, fence};

const WORDS: usize = 8;

/// After this many checks of an empty ring in a row, a CPU ignores the ring until frames are
/// published on it. A check takes 2 to 4 ns. Using an ignored ring again costs both sides a cache
/// line transfer and an atomic operation, so the ring should be idle for about 100 us before it is
/// ignored. This number is divided by the number of rings to the CPU.
const LOOKS: u32 = 1024;

/// The minimum number of checks of an empty ring before a CPU ignores the ring. 32 checks take as
/// much time as using an ignored ring again.
const LOOKS_MIN: u32 = 32;

/// For each ring to one CPU, a bit that is set if the ring may have frames.
#[derive(Debug)]
pub struct Inbox {
    lines: Box<[CachePadded<[AtomicU64; WORDS]>]>,
    words: usize,
    looks_max: u32,
    /// The frames that wait for each CPU, and the index of this inbox's CPU.
    counted: Option<(Arc<[Admission]>, usize)>,
}

impl Inbox {
    /// Creates an inbox for `rings` empty rings. `counted` has the counters of all CPUs, and the
    /// index of the counter of this inbox's CPU, which counts each frame before the frame is
    /// published.
    pub fn new(rings: usize, counted: Option<(Arc<[Admission]>, usize)>) -> Self {
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let words = rings.div_ceil(64).max(1);
        let looks_max = (LOOKS / rings.clamp(1, LOOKS as usize) as u32).max(LOOKS_MIN);
        Self { lines: (0..words.div_ceil(WORDS)).map(|_| line()).collect(), words, looks_max, counted }
    }

    /// How often in a row a CPU checks an empty ring before it [clears](Self::clear) the bit.
    #[inline]
    pub fn looks_max(&self) -> u32 {
        self.looks_max
    }

    /// Returns true if a counter shows that no ring has frames. A CPU that has announced its sleep
    /// misses no frame: producers count frames before their fence, and check for sleeping CPUs
    /// after the fence.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.counted.as_ref().is_some_and(|(all, cpu)| all[*cpu].waiting() == 0)
    }

    #[inline(always)]
    fn word(&self, nth: usize) -> &AtomicU64 {
        &self.lines[nth / WORDS][nth % WORDS]
    }

    /// Records that frames were published on a ring. Call this function between
    /// [`after_publishing`](crate::park::Sleepers::after_publishing) and the check for sleepers.
    #[inline(always)]
    pub fn note(&self, ring: usize) {
        let (word, bit) = (self.word(ring / 64), 1 << (ring % 64));
        // N1: the fence F2 (in `after_publishing`) before this load pairs with the fence F3 in
        // `clear`. The load before the atomic operation keeps the cache line shared if the bit is
        // set already.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
            // F4: pairs with F1 of `park`. Either the CPU that goes to sleep sees the bit, or this
            // thread sees that the CPU sleeps.
            fence(Ordering::SeqCst);
        }
    }

    /// Records that a ring is empty. After this call, check the ring once more, and [set the
    /// bit](Self::note) if the ring has frames.
    pub fn clear(&self, ring: usize) {
        // N2, relaxed: the following fence F3 orders this change.
        self.word(ring / 64).fetch_and(!(1 << (ring % 64)), Ordering::Relaxed);
        // F3: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Begins a pass through all rings, starting with the ring `first`.
    #[inline]
    pub fn begin(&self, first: usize) -> Turns {
        if self.is_empty() {
            return Turns::default();
        }
        let nth = first / 64;
        let not_before = u64::MAX << (first % 64);
        let noted = self.word(nth).load(Ordering::Relaxed);
        // If the inbox has only one word, a pass reads the word again only if bits of rings before
        // `first` are set.
        let words_left = if self.words == 1 { usize::from(noted & !not_before != 0) } else { self.words };
        Turns { nth, noted: noted & not_before, words_left, not_before }
    }

    /// Returns the next ring of the pass that may have frames.
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

/// A pass through an [`Inbox`], which reads each word once, except perhaps the first word.
#[derive(Debug, Default)]
pub struct Turns {
    nth: usize,
    noted: u64,
    words_left: usize,
    /// In the first word, the bits of `first` and of later rings, which are visited at the start of
    /// the pass. The bits of the rings before `first` are visited at the end of the pass.
    not_before: u64,
}

impl Turns {
    /// Returns the next ring of the pass if its bit is set in the word that was read last.
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
        // Testing a pass from every ring would take ten minutes under Miri.
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
