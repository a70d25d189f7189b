//! How a ring grows while it is in use: from one position on, its frames lie in a larger buffer.
//!
//! The producer publishes the first position in the larger buffer together with the slots from this
//! position on. The consumer switches to the larger buffer when all slots before this position are
//! finished. Until the consumer has switched to the larger buffer, the producer grows the ring
//! again only if no frame was staged in this buffer.

use super::{Consumer, Producer, RingBuffer};
use crate::page::Slot;
use crate::sync::{Ordering, UnsafeCell};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown(u64);

impl Grown {
    /// `capacity` is a power of 2. The position `at` has 59 bits, and does not overflow within a
    /// century.
    pub(super) fn new(at: u64, capacity: usize) -> Self {
        Self(at << 5 | u64::from(capacity.ilog2()))
    }

    pub(super) fn at(self) -> u64 {
        self.0 >> 5
    }

    pub(super) fn capacity(self) -> usize {
        1 << (self.0 & 31)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }
}

impl RingBuffer {
    pub(super) fn grown(&self) -> Grown {
        // Relaxed: the store P1 makes this value visible together with the slots in the larger
        // buffer.
        Grown(self.to_consumer.grown.load(Ordering::Relaxed))
    }
}

impl Producer {
    /// Grows the ring if the limit exceeds the ring's capacity, unless the last growth is not
    /// complete.
    #[inline(always)]
    pub(super) fn make_room(&mut self) {
        if self.limit > self.mask + 1 {
            self.grow();
        }
        self.room_until = self.reclaimed + u64::from(self.limit.min(self.mask + 1));
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        // The consumer must not miss any position at which the ring changes its buffer.
        if self.mask_before != 0 && self.staged != self.shared.grown().at() {
            return;
        }
        let capacity = self.limit.next_power_of_two();
        if self.mask_before == 0 {
            self.mask_before = self.mask;
        }
        self.mask = capacity - 1;
        self.slots = self.shared.slots(capacity as usize);
        self.grows_at(self.staged);
    }

    pub(super) fn grows_at(&self, position: u64) {
        let grown = Grown::new(position, self.capacity());
        self.shared.to_consumer.grown.store(grown.word(), Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn slot_in_either(&self, position: u64) -> *const UnsafeCell<Slot> {
        let (slots, mask) = if position < self.shared.grown().at() {
            (self.shared.slots(self.mask_before as usize + 1), self.mask_before)
        } else {
            (self.slots, self.mask)
        };
        slots.wrapping_add((position as u32 & mask) as usize)
    }
}

impl Consumer {
    /// Returns how many of the next `count` slots lie in the same buffer.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(&mut self, count: u64) -> u64 {
        let grown = self.shared.grown();
        if self.hand.end < grown.at() {
            return count.min(grown.at() - self.hand.end);
        }
        self.grown = grown;
        self.hand.slots = self.shared.slots(grown.capacity());
        self.hand.arrivals = self.shared.arrivals(grown.capacity());
        self.hand.mask = grown.capacity() as u32 - 1;
        count
    }
}
