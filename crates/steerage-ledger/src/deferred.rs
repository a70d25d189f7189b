//! Packets that an output has taken and not sent yet. They are in flight until the output reports them as sent or lost.
//!
//! The CPU that sends counts the packets that the output took. The output, on a thread of its own, settles each of them once: as
//! sent or as lost. A queue's ledger counts settled packets only, so packets that an output still holds are in flight without a
//! count of their own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::counter::Counter;
use crate::drops::Drops;
use crate::reasons::DropReason;

/// Where the packets of a batch came from. An output that finishes them later passes it to its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSource(u32);

impl TxSource {
    /// The receive queue with that number.
    pub fn queue(queue: usize) -> Self {
        Self(queue as u32)
    }

    /// Packets that a packet function made itself. The number of this source follows those of the `queues` receive queues.
    pub fn originated(queues: usize) -> Self {
        Self(queues as u32)
    }

    /// The index of the source.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The outcomes of packets that an output took.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Settled {
    /// Packets sent.
    pub packets: u64,
    /// The bytes of the sent packets.
    pub bytes: u64,
    /// Packets lost, by reason.
    pub dropped: Drops,
}

impl Settled {
    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped.merge(&other.dropped);
    }

    fn total(&self) -> u64 {
        self.packets + self.dropped.total()
    }
}

/// The packets that one CPU's queue to an output took and settled, by source.
#[derive(Debug)]
pub struct Deferred {
    /// Packets that the output took. Written by the CPU that sends.
    taken: Box<[Counter]>,
    books: Mutex<Books>,
    /// The run no longer waits. Relaxed: no other memory depends on it.
    over: AtomicBool,
}

#[derive(Debug)]
struct Books {
    settled: Box<[Settled]>,
    /// All packets are accounted for. Later reports of the output are ignored.
    closed: bool,
}

impl Deferred {
    /// For packets of `sources` sources.
    pub fn new(sources: usize) -> Self {
        let settled = vec![Settled::default(); sources].into();
        let taken = (0..sources).map(|_| Counter::default()).collect();
        Self { taken, books: Mutex::new(Books { settled, closed: false }), over: AtomicBool::new(false) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts packets that the output took.
    pub fn take(&self, source: TxSource, packets: u64) {
        if let Some(taken) = self.taken.get(source.index()) {
            taken.add(packets);
        }
    }

    /// Counts the outcomes of packets that the output reports.
    pub fn settle(&self, source: TxSource, count: impl FnOnce(&mut Settled)) {
        let mut books = self.books();
        if books.closed {
            return;
        }
        if let Some(settled) = books.settled.get_mut(source.index()) {
            count(settled);
        }
    }

    /// The settled packets, by source.
    pub fn settled(&self) -> Box<[Settled]> {
        self.books().settled.clone()
    }

    /// Packets that the output holds.
    pub fn held(&self) -> u64 {
        let settled: u64 = self.books().settled.iter().map(Settled::total).sum();
        // The output may settle packets before the CPU that gave them has counted them.
        self.taken.iter().map(Counter::get).sum::<u64>().saturating_sub(settled)
    }

    /// Whether the output was requested to drop the packets that it holds.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Requests the output to drop the packets that it holds.
    pub fn ask_to_end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Counts the packets that the output still holds as lost. Later reports of the output are ignored.
    pub fn close(&self) {
        let mut books = self.books();
        books.closed = true;
        for (settled, taken) in books.settled.iter_mut().zip(&self.taken) {
            settled.dropped.add(DropReason::TxLost, taken.get().saturating_sub(settled.total()));
        }
    }
}
