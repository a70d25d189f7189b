//! Counts of current and past flows, which other threads can read while the meters run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::flow_limit::FlowLimit;
use super::record::FlowRecord;
use super::totals::Totals;
use super::writer_state::OutputCounts;

/// The counts of the meters of all CPUs so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCounts {
    /// Current flows.
    pub active: u64,
    /// Records so far: the records of flows that ended or were cut, and one for each current flow.
    pub total: u64,
    /// The records in `total` whose flow was evicted to make room for another flow.
    pub evicted: u64,
    /// Records that were written or sent, summed over all outputs.
    pub written: u64,
    /// Records that could not be written or sent, summed over all outputs.
    pub lost: u64,
    /// Records of flows that ended or were cut, and that are neither written nor lost so far,
    /// summed over all outputs.
    pub waiting: u64,
}

/// The counts that one meter has published. Only that meter writes them, when a record ends. They
/// have cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    // Relaxed throughout: these are independent counts, and no other memory depends on them.
    ended: AtomicU64,
    evicted: AtomicU64,
    /// The flows with the most bytes, as of the last check of all flows.
    largest: Mutex<Vec<FlowRecord>>,
}

impl Published {
    /// Publishes the totals.
    pub(super) fn publish(&self, totals: &Totals) {
        self.ended.store(totals.total, Ordering::Relaxed);
        self.evicted.store(totals.evicted, Ordering::Relaxed);
    }

    /// Publishes the flows with the most bytes. If another thread is reading them, they stay as
    /// they are until the next time.
    pub(super) fn publish_largest(&self, flows: Vec<FlowRecord>) {
        if let Ok(mut published) = self.largest.try_lock() {
            *published = flows;
        }
    }
}

/// The counts that all meters have published.
#[derive(Clone, Debug, Default)]
pub(super) struct AllPublished(Arc<Mutex<Vec<Arc<Published>>>>);

impl AllPublished {
    /// Adds the counts of one more meter. A meter that is gone by now has panicked, and the new
    /// meter replaces it. The counts of the old meter are in no report, so they are dropped here
    /// too.
    pub(super) fn one_more(&self) -> Arc<Published> {
        let published = Arc::new(Published::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|published| Arc::strong_count(published) > 1);
        all.push(Arc::clone(&published));
        published
    }

    /// The flows with the most bytes on all CPUs, at most `most`.
    pub(super) fn largest(&self, most: usize) -> Vec<FlowRecord> {
        let mut flows = Vec::new();
        for published in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            flows.extend_from_slice(&published.largest.lock().unwrap_or_else(PoisonError::into_inner));
        }
        flows.sort_unstable_by(FlowRecord::rank);
        flows.truncate(most);
        flows
    }

    /// The sum of all counts, and the number of flows that have slots. The counts are not read at
    /// the same moment, so one count may include a flow that another does not include yet.
    /// The counts of outputs were read before this call.
    pub(super) fn sum(&self, limit: &FlowLimit, outputs: &[OutputCounts]) -> FlowCounts {
        let (written, lost) = (outputs.iter().map(|of| of.written).sum(), outputs.iter().map(|of| of.lost).sum());
        let mut counts = FlowCounts { active: limit.taken() as u64, written, lost, ..FlowCounts::default() };
        for published in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            counts.total += published.ended.load(Ordering::Relaxed);
            counts.evicted += published.evicted.load(Ordering::Relaxed);
        }
        counts.waiting = (outputs.len() as u64 * counts.total).saturating_sub(written + lost);
        counts.total += counts.active;
        counts
    }
}
