//! How many flows there are and were, for whoever asks while the meters run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::record::FlowRecord;
use super::room::Room;
use super::totals::Totals;

/// What the meters of all CPUs have come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCounts {
    /// Flows that go on.
    pub active: u64,
    /// Records so far: those of flows that ended or were cut, and one for each that goes on.
    pub total: u64,
    /// Of these, records of flows that had to make room.
    pub evicted: u64,
    /// Records that could not be written in time.
    pub lost: u64,
}

/// What one meter has told. It alone writes it, when a record ends, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Told {
    // Relaxed throughout: each is a number by itself, and no other memory hangs on them.
    ended: AtomicU64,
    evicted: AtomicU64,
    lost: AtomicU64,
    /// As they were found last.
    largest: Mutex<Vec<FlowRecord>>,
}

impl Told {
    /// Tells what has been counted.
    pub(super) fn tell(&self, totals: &Totals) {
        self.ended.store(totals.total, Ordering::Relaxed);
        self.evicted.store(totals.evicted, Ordering::Relaxed);
        self.lost.store(totals.lost, Ordering::Relaxed);
    }

    /// Tells its flows with the most bytes. Where somebody reads just now, not until the next time.
    pub(super) fn tell_largest(&self, flows: Vec<FlowRecord>) {
        if let Ok(mut told) = self.largest.try_lock() {
            *told = flows;
        }
    }
}

/// What all meters have told.
#[derive(Clone, Debug, Default)]
pub(super) struct AllTold(Arc<Mutex<Vec<Arc<Told>>>>);

impl AllTold {
    /// Room for one more meter's. A meter that is gone by now panicked, and another takes its place: what it counted is in no
    /// report, so neither is it here.
    pub(super) fn one_more(&self) -> Arc<Told> {
        let told = Arc::new(Told::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|told| Arc::strong_count(told) > 1);
        all.push(Arc::clone(&told));
        told
    }

    /// The flows with the most bytes of all, so many at most.
    pub(super) fn largest(&self, most: usize) -> Vec<FlowRecord> {
        let mut flows = Vec::new();
        for told in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            flows.extend_from_slice(&told.largest.lock().unwrap_or_else(PoisonError::into_inner));
        }
        flows.sort_unstable_by(FlowRecord::rank);
        flows.truncate(most);
        flows
    }

    /// Their sum, with the flows that have places. They are not read at one moment, so one may count what another does not
    /// yet.
    pub(super) fn sum(&self, room: &Room) -> FlowCounts {
        let mut counts = FlowCounts { active: room.taken() as u64, ..FlowCounts::default() };
        for told in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            counts.total += told.ended.load(Ordering::Relaxed);
            counts.evicted += told.evicted.load(Ordering::Relaxed);
            counts.lost += told.lost.load(Ordering::Relaxed);
        }
        counts.total += counts.active;
        counts
    }
}
