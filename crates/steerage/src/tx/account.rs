//! Packets that an output has taken and not sent yet. They are in flight until the output says what became of them.
//!
//! The CPU that sends counts what the output took. The output, on a thread of its own, settles each of these packets once: as
//! sent or as lost. A queue's ledger counts settled packets only, so what an output still holds is in flight without being
//! counted anywhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counter::Counter;
use crate::ledger::{DropReason, Drops, TxLedger};
use crate::rx::DeviceError;

/// Where the packets of a batch came from. An output that finishes them later gives it back to its [`TxAccount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSource(u32);

impl TxSource {
    /// The receive queue of that number.
    pub(crate) fn queue(queue: usize) -> Self {
        Self(queue as u32)
    }

    /// Packets of the function's own making: they follow the `queues` receive queues.
    pub(crate) fn originated(queues: usize) -> Self {
        Self(queues as u32)
    }
}

/// What became of packets that an output took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: Drops,
}

impl Settled {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.dropped.merge(&other.dropped);
    }

    fn total(&self) -> u64 {
        self.packets + self.dropped.total()
    }
}

/// What one CPU's queue to an output took and settled, by source.
#[derive(Debug)]
pub(crate) struct Deferred {
    /// Packets that the output took. Written by the CPU that sends.
    taken: Box<[Counter]>,
    books: Mutex<Books>,
    /// The run waits no longer. Relaxed: nothing is handed over by it.
    over: AtomicBool,
}

#[derive(Debug)]
struct Books {
    settled: Box<[Settled]>,
    /// Everything counts; what the output says from now on is too late.
    closed: bool,
}

impl Deferred {
    pub(crate) fn new(sources: usize) -> Self {
        let settled = vec![Settled::default(); sources].into();
        let taken = (0..sources).map(|_| Counter::default()).collect();
        Self { taken, books: Mutex::new(Books { settled, closed: false }), over: AtomicBool::new(false) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, source: TxSource, packets: u64) {
        if let Some(taken) = self.taken.get(source.0 as usize) {
            taken.add(packets);
        }
    }

    fn settle(&self, source: TxSource, count: impl FnOnce(&mut Settled)) {
        let mut books = self.books();
        if books.closed {
            return;
        }
        if let Some(settled) = books.settled.get_mut(source.0 as usize) {
            count(settled);
        }
    }

    /// By source, what was settled.
    pub(crate) fn settled(&self) -> Box<[Settled]> {
        self.books().settled.clone()
    }

    /// Packets that the output holds.
    pub(crate) fn held(&self) -> u64 {
        let settled: u64 = self.books().settled.iter().map(Settled::total).sum();
        // The output may settle packets before the CPU that gave them has counted them.
        self.taken.iter().map(Counter::get).sum::<u64>().saturating_sub(settled)
    }

    /// Asks the output to give up what it holds.
    pub(crate) fn ask_to_end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Counts what the output still holds as lost. What the output says of it later does not count.
    pub(crate) fn close(&self) {
        let mut books = self.books();
        books.closed = true;
        for (settled, taken) in books.settled.iter_mut().zip(&self.taken) {
            settled.dropped.add(DropReason::TxLost, taken.get().saturating_sub(settled.total()));
        }
    }
}

/// Where an output counts the packets that it took in [`TxQueue::send`](crate::TxQueue::send) and finished later. It may be
/// used from any thread.
#[derive(Clone, Debug)]
pub struct TxAccount(Arc<TxLedger>);

impl TxAccount {
    pub(crate) fn new(ledger: &Arc<TxLedger>) -> Self {
        Self(Arc::clone(ledger))
    }

    fn deferred(&self) -> Option<&Deferred> {
        self.0.deferred.as_ref()
    }

    /// So many packets, of so many bytes with their link headers, were sent.
    pub fn sent(&self, source: TxSource, packets: u64, bytes: u64) {
        self.settle(source, |settled| {
            settled.packets += packets;
            settled.bytes += bytes;
        });
    }

    /// So many packets were lost: the output failed, or the run ended before they were sent. They drop as
    /// [`DropReason::TxLost`].
    pub fn lost(&self, source: TxSource, packets: u64) {
        self.settle(source, |settled| settled.dropped.add(DropReason::TxLost, packets));
    }

    fn settle(&self, source: TxSource, count: impl FnOnce(&mut Settled)) {
        if let Some(deferred) = self.deferred() {
            deferred.settle(source, count);
        }
    }

    /// The output failed. The reports name it.
    pub fn failed(&self, error: &DeviceError) {
        self.0.failed(error);
    }

    /// Whether the run no longer waits for the output: what it cannot send at once is to be counted as lost now.
    pub fn is_over(&self) -> bool {
        self.deferred().is_some_and(|deferred| deferred.over.load(Ordering::Relaxed))
    }
}
