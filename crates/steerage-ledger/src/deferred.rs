//! Counts packets that an output has accepted but not sent yet.
//!
//! The sending CPU counts the packets that the output accepts. The output *settles* each packet
//! once, on its own thread, as sent or as lost. Until a packet is settled, it is in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::counter::Counter;
use crate::drops::Drops;
use crate::reasons::DropReason;

/// The source of the packets in a batch: a receive queue, or the handler itself. See `TxAccount`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSource(u32);

impl TxSource {
    /// The source of packets that came from the receive queue with the number `queue`.
    pub fn queue(queue: usize) -> Self {
        Self(queue as u32)
    }

    /// The source of packets that a handler created. The index of this source comes after the
    /// indices of the `queues` receive queues.
    pub fn originated(queues: usize) -> Self {
        Self(queues as u32)
    }

    /// Returns the index of the source in lists of counts.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Counts of accepted packets: how many the output sent, and how many it lost.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Settled {
    /// Packets sent.
    pub packets: u64,
    /// The number of bytes in the packets that were sent.
    pub bytes: u64,
    /// Packets lost, by reason.
    pub dropped: Drops,
}

impl Settled {
    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped.merge(&other.dropped);
    }

    fn total(&self) -> u64 {
        self.packets + self.dropped.total()
    }
}

/// The packets that one CPU's queue to an output has accepted and settled, by source.
#[derive(Debug)]
pub struct Deferred {
    taken: Box<[Counter]>,
    books: Mutex<Books>,
    /// True if the run no longer waits for the output. Relaxed: no other memory depends on this
    /// flag.
    over: AtomicBool,
}

#[derive(Debug)]
struct Books {
    settled: Box<[Settled]>,
    /// True after the end of the run. Later reports of the output are ignored.
    closed: bool,
}

impl Deferred {
    /// Creates the counts for packets from `sources` sources.
    pub fn new(sources: usize) -> Self {
        let settled = vec![Settled::default(); sources].into();
        let taken = (0..sources).map(|_| Counter::default()).collect();
        Self { taken, books: Mutex::new(Books { settled, closed: false }), over: AtomicBool::new(false) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `packets` packets from `source` that the output accepted.
    pub fn take(&self, source: TxSource, packets: u64) {
        if let Some(taken) = self.taken.get(source.index()) {
            taken.add(packets);
        }
    }

    /// Counts packets from `source` that the output reports as sent or lost.
    pub fn settle(&self, source: TxSource, count: impl FnOnce(&mut Settled)) {
        let mut books = self.books();
        if books.closed {
            return;
        }
        if let Some(settled) = books.settled.get_mut(source.index()) {
            count(settled);
        }
    }

    /// Returns the counts of settled packets (sent or lost) for each source.
    pub fn settled(&self) -> Box<[Settled]> {
        self.books().settled.clone()
    }

    /// Returns how many accepted packets the output has not settled yet.
    pub fn held(&self) -> u64 {
        let settled: u64 = self.books().settled.iter().map(Settled::total).sum();
        // The output may settle packets before the sending CPU has counted them as accepted.
        self.taken.iter().map(Counter::get).sum::<u64>().saturating_sub(settled)
    }

    /// Returns true if the output should drop the packets that it still holds.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Tells the output to drop the packets that it still holds.
    pub fn ask_to_end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Counts all packets that the output still holds as lost, and ignores later reports.
    pub fn close(&self) {
        let mut books = self.books();
        books.closed = true;
        for (settled, taken) in books.settled.iter_mut().zip(&self.taken) {
            settled.dropped.add(DropReason::TxLost, taken.get().saturating_sub(settled.total()));
        }
    }
}
