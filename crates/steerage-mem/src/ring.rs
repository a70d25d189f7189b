//! The slot ring between the CPU that receives and a CPU that handles: one producer, one consumer, no lock.
//!
//! Four positions run round it, each never ahead of the one before:
//!
//! ```text
//!        reclaimed <= finished <= taken <= published <= staged
//!
//!  reclaimed .. finished    the producer's again: it reads its own slots back, and the pages come home
//!  finished  .. taken       in the handler's hands
//!  taken     .. published   the backlog
//!  published .. staged      written, not yet shown: the list being staged is this tail, so nothing is copied
//! ```
//!
//! | | producer | consumer |
//! |---|---|---|
//! | `published` | writes (release P1) | reads (acquire C1) |
//! | `finished` | reads (acquire P2) | writes (release C2) |
//! | `revoke_until` | raises (relaxed) | reads (relaxed) |
//! | `wake_at` | sets, then a fence, then reads `finished` | writes `finished`, then a fence, then reads and clears |
//! | slots `published .. staged`, `reclaimed .. finished` | reads and writes | |
//! | slots `finished .. published` | | reads; blanks those whose page it keeps |
//!
//! P1 synchronises with C1: a slot is whole before it can be taken. C2 synchronises with P2: the handler is done with a
//! page, and a blank is visible, before the slot is read back and the page used again. That one index serves as fence of
//! a move, as return of the pages and as ledger.

mod frames;
mod lists;

use std::sync::Arc;

use crate::memory::Memory;
use crate::page::{BLANK, Completion, Slot};
use crate::region::prefetch_write;
use crate::sync::{AtomicU64, Line, Ordering, UnsafeCell, fence};

pub use frames::{Frame, Frames};
pub use lists::LISTS_MAX;

/// The most slots a ring can have. 2^20 x 16 bytes is 16 MiB for each queue and CPU: past that, drop earlier.
pub const RING_SLOTS_MAX: usize = 1 << 20;

/// Slots to a cache line.
const SLOTS_A_LINE: u64 = 64 / size_of::<Slot>() as u64;

/// `wake_at` when the producer is awake.
const NO_WISH: u64 = u64::MAX;

#[derive(Debug)]
struct Shared {
    to_consumer: Line<ToConsumer>,
    finished: Line<AtomicU64>,
    slots: Box<[UnsafeCell<Slot>]>,
    /// The arrival number of each slot's frame, if the ring keeps them; otherwise empty.
    arrivals: Box<[AtomicU64]>,
}

/// What the producer tells the consumer: one line, so that looking at all of it costs what looking at one does.
#[derive(Debug)]
struct ToConsumer {
    published: AtomicU64,
    /// Slots before this position are to be discarded, not handled.
    revoke_until: AtomicU64,
    /// The producer sleeps until no more than this many slots wait; `NO_WISH` while it doesn't.
    wake_at: AtomicU64,
}

impl Shared {
    fn revoke_until(&self, tail: u64) {
        // Relaxed: a late look handles a few frames more, which the fence waits for all the same; where it must not be
        // late, a lock orders it. The greatest wins: what was revoked once stays so.
        self.to_consumer.0.revoke_until.fetch_max(tail, Ordering::Relaxed);
    }
}

// SAFETY: a slot's cell is reached by the producer outside of finished..published and by the consumer inside of it; the
// two positions are handed over by release and acquire. There is one of each, neither can be cloned.
unsafe impl Sync for Shared {}
// SAFETY: as above; slots are plain bits.
unsafe impl Send for Shared {}

/// How a ring is made.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// How many slots: rounded up to a power of two, at most [`RING_SLOTS_MAX`].
    pub slots: usize,
    /// How many of them may be occupied from staging to finish; the rest stays free until the limit is raised.
    pub limit: usize,
    /// Whether each slot carries its frame's arrival number, for checking order. 8 bytes more a slot.
    pub arrivals: bool,
}

/// Makes a ring whose frames lie in `memory`.
pub fn ring(options: RingOptions, memory: Memory) -> (Producer, Consumer) {
    let producer = Producer::new(options, false);
    let shared = Arc::clone(&producer.shared);
    let slots = shared.slots.as_ptr();
    let mask = producer.mask;
    (producer, Consumer { shared, slots, mask, finished: 0, taken: 0, memory })
}

/// Makes a parking lot: a ring that nobody else sees. What is staged on it is taken out again by its owner with
/// [`Producer::unpark`]. To the steering loop it is one more target.
pub fn parking_lot(options: RingOptions) -> Producer {
    Producer::new(options, true)
}

/// The receiving CPU's end: one cache line, since a receiver with many targets has many of them.
#[derive(Debug)]
#[repr(align(64))]
pub struct Producer {
    slots: *const UnsafeCell<Slot>,
    mask: u64,
    staged: u64,
    /// `reclaimed + limit`: where staging has to stop.
    room_until: u64,
    published: u64,
    reclaimed: u64,
    shared: Arc<Shared>,
    limit: u32,
    lot: bool,
    /// Whether `shared.arrivals` is kept: here, so that staging reads no other cache line to find out.
    numbered: bool,
}

const _: () = assert!(size_of::<Producer>() == 64 && RING_SLOTS_MAX <= u32::MAX as usize);

// SAFETY: the pointer is into `shared`, which is Sync and lives as long as the producer.
unsafe impl Send for Producer {}

impl Producer {
    fn new(options: RingOptions, lot: bool) -> Self {
        let capacity = options.slots.clamp(2, RING_SLOTS_MAX).next_power_of_two();
        let limit = options.limit.clamp(1, capacity) as u32;
        let shared = Arc::new(Shared {
            to_consumer: Line(ToConsumer {
                published: AtomicU64::new(0),
                revoke_until: AtomicU64::new(0),
                wake_at: AtomicU64::new(NO_WISH),
            }),
            finished: Line::default(),
            slots: (0..capacity).map(|_| UnsafeCell::new(Slot::default())).collect(),
            arrivals: (0..if options.arrivals { capacity } else { 0 }).map(|_| AtomicU64::new(0)).collect(),
        });
        Self {
            slots: shared.slots.as_ptr(),
            mask: capacity as u64 - 1,
            staged: 0,
            room_until: u64::from(limit),
            published: 0,
            reclaimed: 0,
            limit,
            lot,
            numbered: options.arrivals,
            shared,
        }
    }

    /// How many slots it has.
    pub fn capacity(&self) -> usize {
        self.mask as usize + 1
    }

    /// How many may be occupied.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Sets how many may be occupied, from 1 to the capacity. In force for the next slot; what is there stays.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, self.capacity()) as u32;
        self.room_until = self.reclaimed + u64::from(self.limit);
    }

    /// Writes a frame's slot behind the last one; the consumer sees it after the next [`publish`](Self::publish). A ring that
    /// keeps arrival numbers keeps `arrival` with the slot, any other ring ignores it. `Err` returns the frame if the limit is
    /// reached: [`reclaim`](Self::reclaim) may make room.
    #[inline(always)]
    pub fn stage(&mut self, frame: Completion, arrival: u64) -> Result<(), Completion> {
        if self.staged >= self.room_until {
            return Err(frame);
        }
        // SAFETY: the masked position is under the capacity. It lies before `reclaimed + limit`, so its last frame has
        // been read back, and behind `published`, so the consumer does not look at it.
        unsafe {
            (*self.slots.add((self.staged & self.mask) as usize)).with_mut(|slot| *slot = frame.slot());
        }
        if self.numbered {
            self.note_arrival(self.staged, arrival);
        }
        self.staged += 1;
        Ok(())
    }

    /// Notes the arrival number of the frame whose slot is at `position`. Out of line: only runs that check order come here.
    #[cold]
    #[inline(never)]
    fn note_arrival(&self, position: u64, arrival: u64) {
        if let Some(number) = self.shared.arrivals.get((position & self.mask) as usize) {
            // Relaxed: the number becomes visible together with its slot, by P1.
            number.store(arrival, Ordering::Relaxed);
        }
    }

    /// The position behind the last staged slot: what has to be finished before a move of its frames may end.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.staged
    }

    /// How many slots are staged and not yet published.
    #[inline(always)]
    pub fn unpublished(&self) -> u64 {
        self.staged - self.published
    }

    /// How many slots may still be staged before [`reclaim`](Self::reclaim) has to look.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        self.room_until.saturating_sub(self.staged)
    }

    /// How many slots are occupied as far as this end has looked: from staging to being read back.
    #[inline(always)]
    pub fn occupied(&self) -> u64 {
        self.staged - self.reclaimed
    }

    /// Shows all that is staged to the consumer. Returns whether there was anything.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        if self.lot || self.staged == self.published {
            return false;
        }
        let count = self.staged - self.published;
        self.published = self.staged;
        // P1, release: pairs with C1.
        self.shared.to_consumer.0.published.store(self.staged, Ordering::Release);
        // The consumer has the lines that come next: taken back now, they are here when they are written. As many as
        // were written this time.
        for line in 0..count.div_ceil(SLOTS_A_LINE) {
            let at = (self.staged + line * SLOTS_A_LINE) & self.mask;
            // SAFETY: the masked position is under the capacity; a prefetch reads nothing.
            prefetch_write(unsafe { self.slots.add(at as usize) }.cast());
        }
        true
    }

    /// Reads back the slots that are finished and hands over the frames whose pages came home. Those that a worker kept
    /// are passed over: they come by their [`Home`](crate::Home). Returns how many slots were read.
    #[inline]
    pub fn reclaim(&mut self, mut home: impl FnMut(Completion)) -> u64 {
        if self.lot {
            return 0;
        }
        // P2, acquire: pairs with C2.
        let finished = self.shared.finished.0.load(Ordering::Acquire);
        // Noted first: should `home` panic, pages are lost, but none comes home twice.
        let first = std::mem::replace(&mut self.reclaimed, finished);
        self.room_until = finished + u64::from(self.limit);
        for at in first..finished {
            // SAFETY: the masked position is under the capacity, and the slot lies before `finished`: it is ours again.
            let slot = unsafe { (*self.slots.add((at & self.mask) as usize)).with(|slot| *slot) };
            if slot.page != BLANK {
                home(Completion::from_slot(slot));
            }
        }
        finished - first
    }

    /// Whether everything before `tail` is finished.
    #[inline]
    pub fn passed(&self, tail: u64) -> bool {
        // P2 as well: whoever acts on it sees what the handler did.
        self.shared.finished.0.load(Ordering::Acquire) >= tail
    }

    /// Tells the consumer to discard what it has not yet taken before position `tail`.
    pub fn revoke_until(&mut self, tail: u64) {
        self.shared.revoke_until(tail);
    }

    /// Says that this end is about to sleep until no more than `waiting` slots wait in the backlog; the caller then
    /// looks for room once more.
    pub fn wake_at(&mut self, waiting: u64) {
        self.shared.to_consumer.0.wake_at.store(waiting, Ordering::Relaxed);
        // Pairs with the fence in `Consumer::producer_waits`: either we see its finish or it sees our wish.
        fence(Ordering::SeqCst);
    }

    /// Takes back the unpublished frames, oldest first: for a producer that was declared dead meanwhile and whose
    /// steering is out of date.
    pub fn withdraw(&mut self, mut each: impl FnMut(Completion)) {
        // Noted first, as in `reclaim`.
        let staged = std::mem::replace(&mut self.staged, self.published);
        for at in self.published..staged {
            // SAFETY: the masked position is under the capacity; what is not published is ours alone.
            let slot = unsafe { (*self.slots.add((at & self.mask) as usize)).with(|slot| *slot) };
            each(Completion::from_slot(slot));
        }
    }

    /// Takes the oldest frame out of a [`parking_lot`], with its arrival number (0 where none are kept).
    pub fn unpark(&mut self) -> Option<(Completion, u64)> {
        if !self.lot || self.reclaimed == self.staged {
            return None;
        }
        let at = (self.reclaimed & self.mask) as usize;
        // SAFETY: the masked position is under the capacity. A lot has no consumer and never publishes, so all that is
        // staged on it is ours alone; `reclaimed` moves on, so each frame is taken once.
        let slot = unsafe { (*self.slots.add(at)).with(|slot| *slot) };
        let arrival = self.shared.arrivals.get(at).map_or(0, |a| a.load(Ordering::Relaxed));
        self.reclaimed += 1;
        self.published = self.reclaimed;
        self.room_until = self.reclaimed + u64::from(self.limit);
        Some((Completion::from_slot(slot), arrival))
    }

    /// A view of this ring for those who only count.
    pub fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.shared))
    }
}

/// How full a ring is, for the report: readable from any thread.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<Shared>);

impl Gauge {
    /// The positions published and finished. Finished is read first, so that the difference is never negative.
    pub fn read(&self) -> (u64, u64) {
        // Acquire on both: a reader that sees a position also sees what was counted before it was set (P1, C2).
        let finished = self.0.finished.0.load(Ordering::Acquire);
        let published = self.0.to_consumer.0.published.load(Ordering::Acquire);
        (published.max(finished), finished)
    }

    /// Has the consumer discard all that was published and not yet taken: for a producer that cannot say so itself.
    pub fn revoke_published(&self) {
        self.0.revoke_until(self.0.to_consumer.0.published.load(Ordering::Acquire));
    }
}

/// The handling CPU's end.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    slots: *const UnsafeCell<Slot>,
    mask: u64,
    finished: u64,
    taken: u64,
    memory: Memory,
}

// SAFETY: the pointer is into `shared`, which is Sync and lives as long as the consumer.
unsafe impl Send for Consumer {}

impl Consumer {
    /// How many slots wait to be taken.
    #[inline(always)]
    pub fn waiting(&self) -> u64 {
        // C1, acquire: pairs with P1.
        self.shared.to_consumer.0.published.load(Ordering::Acquire) - self.taken
    }

    /// Takes up to `most` of the waiting slots in hand, none while others still are, and fetches their frames' first
    /// lines. Returns how many are in hand.
    #[inline]
    pub fn take(&mut self, most: usize) -> usize {
        self.take_and(most, |memory, slot| memory.prefetch(&slot))
    }

    /// The same for frames that this CPU has just written or read: nothing is fetched.
    #[inline]
    pub fn take_cached(&mut self, most: usize) -> usize {
        self.take_and(most, |_, _| ())
    }

    #[inline(always)]
    fn take_and(&mut self, most: usize, fetch: impl Fn(&Memory, Slot)) -> usize {
        if self.taken == self.finished {
            let count = self.waiting().min(most as u64);
            for at in self.taken..self.taken + count {
                fetch(&self.memory, self.slot(at));
            }
            self.taken += count;
        }
        self.in_hand()
    }

    /// How many slots are in hand.
    #[inline(always)]
    pub fn in_hand(&self) -> usize {
        (self.taken - self.finished) as usize
    }

    /// How many of the slots still to be taken the producer has revoked: they are to be finished unhandled.
    pub fn revoked(&self) -> u64 {
        let until = self.shared.to_consumer.0.revoke_until.load(Ordering::Relaxed);
        until.saturating_sub(self.taken).min(self.waiting())
    }

    /// Whether the producer sleeps and now has the room it wished for: asked after [`finish`](Self::finish). Asking
    /// takes the wish, so that one wake-up follows from it.
    pub fn producer_waits(&self) -> bool {
        // Pairs with the fence in `Producer::wake_at`.
        fence(Ordering::SeqCst);
        let wish = &self.shared.to_consumer.0.wake_at;
        let waiting = wish.load(Ordering::Relaxed);
        waiting != NO_WISH && self.waiting() <= waiting && wish.swap(NO_WISH, Ordering::Relaxed) != NO_WISH
    }

    /// The frames in hand, in order.
    #[inline]
    pub fn frames(&mut self) -> Frames<'_> {
        Frames { at: self.finished, end: self.taken, ring: self }
    }

    /// Where the frames lie.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Gives the slots in hand back: whatever was to be done with their frames is done.
    #[inline]
    pub fn finish(&mut self) {
        self.finished = self.taken;
        // C2, release: pairs with P2.
        self.shared.finished.0.store(self.finished, Ordering::Release);
    }

    #[inline(always)]
    fn slot(&self, at: u64) -> Slot {
        // SAFETY: the masked position is under the capacity, and all callers stay within finished..published.
        unsafe { (*self.slots.add((at & self.mask) as usize)).with(|slot| *slot) }
    }
}
