//! A ring of slots from a CPU that receives packets to a CPU that handles them: one producer, one
//! consumer, no lock.
//!
//! The ring has five positions, which are always in this order:
//!
//! ```text
//!        reclaimed <= finished <= taken <= published <= staged
//!
//!  reclaimed .. finished    the producer's again: it reads its own slots back, and the pages return to the pool
//!  finished  .. taken       held by the handler
//!  taken     .. published   the backlog
//!  published .. staged      written and not yet visible: this tail is the list being staged, so nothing is copied
//! ```
//!
//! | | producer | consumer |
//! |---|---|---|
//! | `published` | writes (release P1) | reads (acquire C1) |
//! | `finished` | reads (acquire P2) | writes (release C2) |
//! | `revoke_until` | raises (relaxed) | reads (relaxed) |
//! | `wake_at` | sets, then a fence, then reads `finished` | writes `finished`, then a fence, then reads and clears |
//! | `grown` | writes (relaxed) | reads (relaxed) |
//! | slots `published .. staged`, `reclaimed .. finished` | reads and writes | |
//! | slots `finished .. published` | | reads; blanks slots whose page it keeps |
//!
//! The producer's store P1 synchronises with the consumer's load C1: a slot is completely written
//! before the consumer takes it. The consumer's store C2 synchronises with the producer's load P2:
//! when the producer reclaims a slot, the handler no longer uses the slot's page, and the producer
//! sees whether the slot is blanked (marked as having no page). The finished index of a ring shows
//! when a moving bucket may continue on its new CPU, which pages may return to the pool, and which
//! frames are no longer in flight.
//!
//! A ring can grow while it is in use ([`Producer::set_limit`]): from one position on, its slots
//! lie in a larger buffer, to which the consumer switches when it has finished all earlier slots.
//! The ring may grow again after the consumer has taken a frame out of the larger buffer.

mod finished;
mod frames;
mod growth;
#[cfg(not(loom))]
mod lane;
mod lists;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
mod unpublished;

use std::alloc::{Layout, handle_alloc_error};
use std::io;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::memory::Memory;
use crate::page::{Completion, Slot};
use crate::region::{prefetch_read, prefetch_write};
use crate::sync::{AtomicU64, Ordering, UnsafeCell, fence};
use frames::InHand;
use growth::Grown;
use slots::SlotMemory;

pub use finished::Finished;
pub use frames::{Frame, Frames, Hand};
#[cfg(not(loom))]
pub use lane::Lane;
pub use lists::LISTS_MAX;

/// The maximum number of slots of a ring, which take 16 MiB for each queue and CPU.
pub const RING_SLOTS_MAX: usize = 1 << 20;

const SLOTS_A_LINE: u64 = 64 / size_of::<Slot>() as u64;

const NO_WISH: u64 = u64::MAX;

#[derive(Debug)]
struct RingBuffer {
    to_consumer: CachePadded<ToConsumer>,
    finished: CachePadded<AtomicU64>,
    slots: Arc<SlotMemory>,
    nth: usize,
}

/// The fields that the producer writes and the consumer reads, in one cache line so that reading
/// them causes only one cache miss.
#[derive(Debug)]
struct ToConsumer {
    published: AtomicU64,
    /// The consumer should discard all slots before this position without handling them.
    revoke_until: AtomicU64,
    /// The consumer wakes a sleeping producer if at most this number of slots wait. `NO_WISH` if no
    /// producer sleeps.
    wake_at: AtomicU64,
    /// The last growth of the ring, as a [`Grown`]. Relaxed: the store P1 makes this field visible
    /// together with the slots of the larger buffer.
    grown: AtomicU64,
}

impl RingBuffer {
    fn slots(&self, capacity: usize) -> *const UnsafeCell<Slot> {
        self.slots.slots(self.nth, capacity)
    }

    fn arrivals(&self, capacity: usize) -> *const AtomicU64 {
        self.slots.arrivals(self.nth, capacity)
    }

    fn arrival(&self, mask: u32, position: u64) -> Option<&AtomicU64> {
        self.slots.arrival(self.nth, mask as usize + 1, (position as u32 & mask) as usize)
    }

    fn revoke_until(&self, tail: u64) {
        // Relaxed: a consumer that sees the new position late handles a few more frames, for which
        // the bucket's move waits anyway. If the consumer must not miss the new position, the
        // caller holds a lock, which orders this store. `fetch_max` never lowers the position, so a
        // revoked slot stays revoked.
        self.to_consumer.revoke_until.fetch_max(tail, Ordering::Relaxed);
    }
}

// SAFETY: the producer accesses a slot's cell only outside of finished..published, and the consumer
// only inside. The positions `published` and `finished` are handed over by release and acquire.
// Each ring has one producer and one consumer, and neither can be cloned.
unsafe impl Sync for RingBuffer {}
// SAFETY: as above; slots are plain bits.
unsafe impl Send for RingBuffer {}

/// The settings of a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// The number of slots at the start, rounded up to a power of two, at most [`RING_SLOTS_MAX`].
    pub slots: usize,
    /// The number of slots to which the ring may grow, rounded like `slots`. Unused slots take only
    /// address space.
    pub slots_max: usize,
    /// The number of slots that may be occupied. A slot is occupied from staging to reclaiming.
    pub limit: usize,
    /// True if the ring stores an arrival number for each frame (8 bytes), to check the frames'
    /// order.
    pub arrivals: bool,
}

/// The memory for several rings with the same settings.
#[derive(Debug)]
pub struct Rings {
    slots: Arc<SlotMemory>,
    options: RingOptions,
    made: usize,
}

impl Rings {
    /// Reserves address space for `rings` rings. A ring takes no memory before it is used.
    ///
    /// # Errors
    /// Returns the kernel's error if there is no address space.
    pub fn reserve(rings: usize, options: RingOptions) -> io::Result<Self> {
        let least = options.slots.clamp(2, RING_SLOTS_MAX).next_power_of_two();
        let most = options.slots_max.clamp(least, RING_SLOTS_MAX).next_power_of_two();
        let slots = Arc::new(SlotMemory::reserve(rings.max(1), least, most, options.arrivals)?);
        let options = RingOptions { slots: least, ..options };
        Ok(Self { slots, options, made: 0 })
    }

    /// Creates the next ring, whose frames lie in `memory`.
    ///
    /// # Panics
    /// Panics if all rings were already created.
    pub fn ring(&mut self, memory: Memory) -> (Producer, Consumer) {
        let producer = self.producer(false);
        let shared = Arc::clone(&producer.shared);
        let (slots, mask, grown) = (producer.slots, producer.mask, shared.grown());
        let arrivals = shared.arrivals(mask as usize + 1);
        (
            producer,
            Consumer { shared, grown, hand: InHand { slots, arrivals, mask, begin: 0, end: 0, hidden_end: 0, memory } },
        )
    }

    fn producer(&mut self, lot: bool) -> Producer {
        assert!(self.made < self.slots.rings(), "no more rings than were asked for");
        let producer = Producer::new(self.options, Arc::clone(&self.slots), self.made, lot);
        self.made += 1;
        producer
    }
}

fn single(options: RingOptions) -> Rings {
    Rings::reserve(1, options).unwrap_or_else(|_| handle_alloc_error(Layout::new::<Slot>()))
}

/// Creates a single ring. Its frames lie in `memory`.
pub fn ring(options: RingOptions, memory: Memory) -> (Producer, Consumer) {
    single(options).ring(memory)
}

/// Creates a parking lot: a ring without a consumer, whose owner calls [`Producer::unpark`].
pub fn parking_lot(options: RingOptions) -> Producer {
    single(options).producer(true)
}

/// The receiving CPU's end of a ring. A producer fits in one cache line, because a receiving CPU
/// has many producers.
#[derive(Debug)]
#[repr(align(64))]
pub struct Producer {
    slots: *const UnsafeCell<Slot>,
    staged: u64,
    room_until: u64,
    published: u64,
    reclaimed: u64,
    shared: Arc<RingBuffer>,
    mask: u32,
    /// The mask of the smaller buffer while the consumer still uses that buffer, or else 0.
    mask_before: u32,
    limit: u32,
    lot: bool,
    /// A copy of [`RingOptions::arrivals`], so that staging reads no other cache line.
    numbered: bool,
}

const _: () = assert!(size_of::<Producer>() == 64 && RING_SLOTS_MAX <= u32::MAX as usize);

// SAFETY: the pointer points into `shared`, which is Sync and lives as long as the producer.
unsafe impl Send for Producer {}

impl Producer {
    fn new(options: RingOptions, slots: Arc<SlotMemory>, nth: usize, lot: bool) -> Self {
        let capacity = options.slots;
        let limit = options.limit.clamp(1, capacity) as u32;
        let shared = Arc::new(RingBuffer {
            to_consumer: CachePadded::new(ToConsumer {
                published: AtomicU64::new(0),
                revoke_until: AtomicU64::new(0),
                wake_at: AtomicU64::new(NO_WISH),
                grown: AtomicU64::new(Grown::new(0, capacity).word()),
            }),
            finished: CachePadded::default(),
            slots,
            nth,
        });
        Self {
            slots: shared.slots(capacity),
            staged: 0,
            room_until: u64::from(limit),
            published: 0,
            reclaimed: 0,
            mask: capacity as u32 - 1,
            mask_before: 0,
            limit,
            lot,
            numbered: options.arrivals,
            shared,
        }
    }

    /// The number of slots.
    pub fn capacity(&self) -> usize {
        self.mask as usize + 1
    }

    /// Returns true if the ring keeps arrival numbers.
    pub fn is_numbered(&self) -> bool {
        self.numbered
    }

    /// The number of slots that may be occupied at the same time.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Sets how many slots may be occupied, at most the maximum size of the ring.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, self.shared.slots.most()) as u32;
        self.make_room();
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> *const UnsafeCell<Slot> {
        if self.mask_before != 0 {
            return self.slot_in_either(position);
        }
        self.slots.wrapping_add((position as u32 & self.mask) as usize)
    }

    /// Stages a frame, which the consumer sees after the next [`publish`](Self::publish). `Err`
    /// returns the frame if the ring's limit is reached. [`reclaim`](Self::reclaim) may make room
    /// in a full ring.
    #[inline(always)]
    pub fn stage(&mut self, frame: Completion, arrival: u64) -> Result<(), Completion> {
        if self.staged >= self.room_until {
            return Err(frame);
        }
        // SAFETY: the masked position is under the capacity. The slot lies before `reclaimed +
        // limit`, so the slot's previous frame was reclaimed. The slot lies after `published`, so
        // the consumer does not read the slot.
        unsafe {
            (*self.slots.add((self.staged as u32 & self.mask) as usize)).with_mut(|slot| *slot = frame.slot());
        }
        if self.numbered {
            self.note_arrival(self.staged, arrival);
        }
        self.staged += 1;
        Ok(())
    }

    /// Not inlined: only runs that check the order of frames have arrival numbers.
    #[cold]
    #[inline(never)]
    fn note_arrival(&self, position: u64, arrival: u64) {
        if let Some(number) = self.shared.arrival(self.mask, position) {
            // Relaxed: the store P1 makes the arrival number visible together with its slot.
            number.store(arrival, Ordering::Relaxed);
        }
    }

    /// The position after the last staged slot. A move of buckets can end when all slots before
    /// this position are finished.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.staged
    }

    /// The number of slots that are staged but not yet published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.staged - self.published
    }

    /// The number of slots that can be staged before the next [`reclaim`](Self::reclaim).
    #[inline(always)]
    pub fn room(&self) -> u64 {
        self.room_until.saturating_sub(self.staged)
    }

    /// The number of slots that were staged and not yet reclaimed.
    #[inline(always)]
    pub fn occupied(&self) -> u64 {
        self.staged - self.reclaimed
    }

    /// Makes all staged frames visible to the consumer. Returns true if frames were staged and the
    /// ring has a consumer.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.staged == self.published {
            return false;
        }
        if self.lot {
            self.published = self.staged;
            return false;
        }
        let count = self.staged - self.published;
        self.published = self.staged;
        // P1, release: pairs with C1.
        self.shared.to_consumer.published.store(self.staged, Ordering::Release);
        // The cache lines of the slots that the producer writes next are still in the consumer's
        // cache. `publish` prefetches as many of these cache lines as it has written, so that they
        // have arrived when the next call writes them.
        for line in 0..count.div_ceil(SLOTS_A_LINE) {
            let at = (self.staged + line * SLOTS_A_LINE) as u32 & self.mask;
            // SAFETY: the masked position is under the capacity; a prefetch reads nothing.
            prefetch_write(unsafe { self.slots.add(at as usize) }.cast());
        }
        true
    }

    /// Passes each finished frame to `home`, unless a handler kept it. Returns the number of
    /// finished slots.
    #[inline]
    pub fn reclaim(&mut self, mut home: impl FnMut(Completion)) -> u64 {
        self.reclaim_many(|finished| finished.for_each(&mut home))
    }

    /// Like [`reclaim`](Self::reclaim), but passes many slots to `home` at a time.
    #[inline]
    pub fn reclaim_many(&mut self, mut home: impl FnMut(Finished<'_>)) -> u64 {
        if self.lot {
            return 0;
        }
        // P2, acquire: pairs with C2.
        let finished = self.shared.finished.load(Ordering::Acquire);
        // `reclaimed` is set before `home` is called: if `home` panics, pages are lost, but no page
        // returns twice.
        let first = std::mem::replace(&mut self.reclaimed, finished);
        let (mut at, mut end, mut slots, mut mask) = (first, finished, self.slots, self.mask);
        if self.mask_before != 0 {
            end = self.shared.grown().at().clamp(first, finished);
            (slots, mask) = (self.shared.slots(self.mask_before as usize + 1), self.mask_before);
        }
        loop {
            while at < end {
                let begin = at as u32 & mask;
                let count = (end - at).min(u64::from(mask - begin) + 1).min(finished::TOGETHER);
                // SAFETY: the slots lie in the buffer, whose last position is `mask`, and before
                // `finished`: they are ours again, and each is passed once.
                home(unsafe { Finished::new(std::slice::from_raw_parts(slots.add(begin as usize), count as usize)) });
                at += count;
            }
            if end == finished {
                break;
            }
            (end, slots, mask) = (finished, self.slots, self.mask);
        }
        if self.mask_before != 0 && finished > self.shared.grown().at() {
            self.mask_before = 0;
        }
        self.make_room();
        finished - first
    }

    /// Returns true if all slots before position `tail` are finished.
    #[inline]
    pub fn passed(&self, tail: u64) -> bool {
        // P2, acquire: the caller sees all that the handler did with the slots before `tail`.
        self.shared.finished.load(Ordering::Acquire) >= tail
    }

    /// Asks the consumer to discard the frames before position `tail` that it has not yet taken.
    pub fn revoke_until(&mut self, tail: u64) {
        self.shared.revoke_until(tail);
    }

    /// Asks the consumer to wake the producer when at most `waiting` slots wait. After this call,
    /// the caller must check for room again.
    pub fn wake_at(&mut self, waiting: u64) {
        self.shared.to_consumer.wake_at.store(waiting, Ordering::Relaxed);
        // Pairs with the fence in `Consumer::producer_waits`: either the producer sees the
        // consumer's new `finished`, or the consumer sees the producer's `wake_at`.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_next_published(&self) -> bool {
        self.reclaimed < self.published
    }

    /// Takes the oldest frame out of a [`parking_lot`], with its arrival number or 0.
    pub fn unpark(&mut self) -> Option<(Completion, u64)> {
        if !self.lot || self.reclaimed == self.staged {
            return None;
        }
        // SAFETY: the slot lies in its buffer. A parking lot has no consumer and never publishes,
        // so only this producer accesses the staged slots. `reclaimed` is advanced, so each frame
        // is taken once.
        let slot = unsafe { (*self.slot(self.reclaimed)).with(|slot| *slot) };
        let arrival = self.shared.arrival(self.mask, self.reclaimed).map_or(0, |a| a.load(Ordering::Relaxed));
        self.reclaimed += 1;
        self.published = self.published.max(self.reclaimed);
        self.make_room();
        Some((Completion::from_slot(slot), arrival))
    }

    /// Returns a [`Gauge`] of this ring.
    pub fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.shared))
    }
}

/// Shows how full a ring is, for reports from any thread.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<RingBuffer>);

impl Gauge {
    /// Returns the positions `published` and `finished`, with `published` >= `finished`.
    pub fn read(&self) -> (u64, u64) {
        // Acquire: the reader also sees the counters that were written before the stores P1 and C2.
        let finished = self.0.finished.load(Ordering::Acquire);
        let published = self.0.to_consumer.published.load(Ordering::Acquire);
        (published.max(finished), finished)
    }

    /// Returns true if the consumer has finished all published frames.
    pub fn is_finished(&self) -> bool {
        let (published, finished) = self.read();
        published == finished
    }

    /// Like [`Producer::revoke_until`] for all published frames, from another thread.
    pub fn revoke_published(&self) {
        self.0.revoke_until(self.0.to_consumer.published.load(Ordering::Acquire));
    }
}

/// The consumer: the end of a ring that the handling CPU uses.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<RingBuffer>,
    grown: Grown,
    hand: InHand,
}

impl Consumer {
    /// Returns how many slots the consumer has not taken yet.
    #[inline(always)]
    pub fn waiting(&self) -> u64 {
        // C1, acquire: pairs with P1.
        self.shared.to_consumer.published.load(Ordering::Acquire) - self.hand.end
    }

    /// Prefetches the data that [`take`](Self::take) reads first, for a CPU with many rings.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch_read(std::ptr::from_ref(&self.shared.to_consumer).cast());
        prefetch_read(self.hand.cell(self.hand.end).cast());
    }

    /// Takes up to `most` of the waiting slots, unless the consumer still holds slots, and
    /// prefetches the first cache line of each frame. Returns how many slots the consumer holds.
    #[inline]
    pub fn take(&mut self, most: usize) -> usize {
        self.take_and(most, |memory, slot| memory.prefetch(&slot))
    }

    /// Like [`take`](Self::take), for frames that this CPU has just written or read.
    #[inline]
    pub fn take_cached(&mut self, most: usize) -> usize {
        self.take_and(most, |_, _| ())
    }

    #[inline(always)]
    fn take_and(&mut self, most: usize, fetch: impl Fn(&Memory, Slot)) -> usize {
        if self.hand.begin == self.hand.end {
            let mut count = self.waiting().min(most as u64);
            if self.shared.grown() != self.grown {
                count = self.follow(count);
            }
            for at in self.hand.end..self.hand.end + count {
                fetch(&self.hand.memory, self.hand.slot(at));
            }
            self.hand.end += count;
        }
        self.in_hand()
    }

    /// The number of slots that the consumer has taken and not finished.
    #[inline(always)]
    pub fn in_hand(&self) -> usize {
        (self.hand.end - self.hand.begin) as usize
    }

    /// The number of revoked slots that the consumer has not taken, and should not handle.
    pub fn revoked(&self) -> u64 {
        let until = self.shared.to_consumer.revoke_until.load(Ordering::Relaxed);
        until.saturating_sub(self.hand.end).min(self.waiting())
    }

    /// Returns true, once, if the producer sleeps and its ring has room. Call this after `finish`.
    pub fn producer_waits(&self) -> bool {
        // Pairs with the fence in `Producer::wake_at`.
        fence(Ordering::SeqCst);
        let wish = &self.shared.to_consumer.wake_at;
        let waiting = wish.load(Ordering::Relaxed);
        waiting != NO_WISH && self.waiting() <= waiting && wish.swap(NO_WISH, Ordering::Relaxed) != NO_WISH
    }

    /// The frames that the consumer has taken and not finished.
    #[inline(always)]
    pub fn hand(&mut self) -> Hand<'_> {
        Hand(&mut self.hand)
    }

    /// The frames that the consumer has taken and not finished, in order.
    #[inline]
    pub fn frames(&mut self) -> Frames<'_> {
        Frames::of(&mut self.hand)
    }

    /// The memory in which the frames of this ring lie.
    pub fn memory(&self) -> &Memory {
        &self.hand.memory
    }

    /// Finishes the held slots. The caller must no longer use the frames of these slots.
    #[inline]
    pub fn finish(&mut self) {
        self.hand.begin = self.hand.end;
        // C2, release: pairs with P2.
        self.shared.finished.store(self.hand.begin, Ordering::Release);
    }
}
