//! Counts records of an output as unwritten, written or lost.
//!
//! An output gets records only inside an [`Unwritten`], from which only [`Unwritten::written`]
//! removes them. If an `Unwritten` is dropped, because of a full queue, a failed write or a panic,
//! its records count as lost. No code path can thus forget a record or count it twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::FlowRecord;

/// The highest bit of [`RecordLedger::written`], which is set when the ledger is closed. The other
/// 63 bits are the number of written records.
const CLOSED: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) records: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Volume {
    pub(super) const NONE: Self = Self { records: 0, packets: 0, bytes: 0 };

    pub(super) fn of(records: &[FlowRecord]) -> Self {
        let mut volume = Self { records: records.len() as u64, ..Self::NONE };
        for record in records {
            let (forth, back) = (record.forth(), record.back());
            volume.packets += forth.packets + back.packets;
            volume.bytes += forth.ip_bytes + back.ip_bytes;
        }
        volume
    }

    pub(super) fn add(&mut self, more: Self) {
        self.records += more.records;
        self.packets += more.packets;
        self.bytes += more.bytes;
    }

    fn remove(&mut self, part: Self) -> Self {
        let Self { records, packets, bytes } = *self;
        let part = Self {
            records: part.records.min(records),
            packets: part.packets.min(packets),
            bytes: part.bytes.min(bytes),
        };
        *self = Self { records: records - part.records, packets: packets - part.packets, bytes: bytes - part.bytes };
        part
    }
}

/// Additions to the counters are `Release`, and loads are `Acquire`. A meter counts its ended
/// records before it passes the records on. If a thread loads the outputs' counts before the
/// meters' counts, the outputs never seem to have more records than the meters.
#[derive(Debug, Default)]
pub(super) struct RecordLedger {
    taken: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
    // `Relaxed` suffices, because no other memory depends on these statistics.
    lost_packets: AtomicU64,
    lost_bytes: AtomicU64,
}

impl RecordLedger {
    pub(super) fn take(self: &Arc<Self>, volume: Volume) -> Unwritten {
        self.taken.fetch_add(volume.records, Ordering::Release);
        Unwritten { ledger: Arc::clone(self), volume }
    }

    /// When the ledger is closed, all unwritten records count as lost, even those of a thread that
    /// is blocked in a write.
    pub(super) fn close(&self) {
        self.written.fetch_or(CLOSED, Ordering::Release);
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        let written = self.written.load(Ordering::Acquire);
        if written & CLOSED == 0 {
            return (written, self.lost.load(Ordering::Acquire));
        }
        let written = written & !CLOSED;
        (written, self.taken.load(Ordering::Acquire) - written)
    }

    pub(super) fn lost_traffic(&self) -> (u64, u64) {
        (self.lost_packets.load(Ordering::Relaxed), self.lost_bytes.load(Ordering::Relaxed))
    }
}

/// Records that an output has received and not written. If an `Unwritten` is dropped, its records
/// count as lost.
#[derive(Debug)]
#[must_use = "records count as lost if this is dropped"]
pub(super) struct Unwritten {
    ledger: Arc<RecordLedger>,
    volume: Volume,
}

impl Unwritten {
    pub(super) fn split(&mut self, part: Volume) -> Self {
        Self { ledger: Arc::clone(&self.ledger), volume: self.volume.remove(part) }
    }

    pub(super) fn add(&mut self, mut more: Self) {
        self.volume.add(std::mem::take(&mut more.volume));
    }

    /// If the ledger is closed, the records of `part` stay counted as lost.
    pub(super) fn written(&mut self, part: Volume) {
        let part = self.volume.remove(part);
        let add = |written: u64| (written & CLOSED == 0).then(|| written + part.records);
        let _ = self.ledger.written.fetch_update(Ordering::Release, Ordering::Relaxed, add);
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        let Volume { records, packets, bytes } = self.volume;
        if records > 0 {
            self.ledger.lost_packets.fetch_add(packets, Ordering::Relaxed);
            self.ledger.lost_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.ledger.lost.fetch_add(records, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: u64) -> Volume {
        Volume { records, packets: 3 * records, bytes: 100 * records }
    }

    #[test]
    fn a_record_is_written_or_lost_once() {
        let ledger = Arc::<RecordLedger>::default();
        let mut all = ledger.take(of(10));
        let mut some = all.split(of(6));
        some.written(of(2));
        assert_eq!(ledger.counts(), (2, 0));
        all.add(some.split(of(1)));
        drop(some);
        assert_eq!((ledger.counts(), ledger.lost_traffic()), ((2, 3), (9, 300)));
        all.written(of(100));
        drop(all);
        assert_eq!(ledger.counts(), (7, 3));
    }

    #[test]
    fn what_a_stuck_thread_holds_is_lost_once_the_ledger_is_closed() {
        let ledger = Arc::<RecordLedger>::default();
        let (mut stuck, refused) = (ledger.take(of(5)), ledger.take(of(2)));
        stuck.written(of(1));
        drop(refused);
        ledger.close();
        assert_eq!(ledger.counts(), (1, 6));
        stuck.written(of(4));
        drop(ledger.take(of(3)));
        assert_eq!(ledger.counts(), (1, 9));
        drop(stuck);
        assert_eq!(ledger.counts(), (1, 9));
    }
}
