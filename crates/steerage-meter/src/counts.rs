//! Counts current and past flows. Other threads can read these counts while the meters run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::flow_limit::FlowLimit;
use super::record::FlowRecord;
use super::totals::Totals;
use super::writer_state::OutputCounts;

/// The current counts of the meters of all CPUs, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCounts {
    /// The number of current flows.
    pub active: u64,
    /// The number of records: one for each flow that ended, one for each cut of a flow by the
    /// active timeout, and one for each current flow.
    pub total: u64,
    /// The number of records in `total` whose flow was evicted to make room for another flow.
    pub evicted: u64,
    /// The number of records that were written or sent, summed over all outputs.
    pub written: u64,
    /// The number of records that could not be written or sent, summed over all outputs.
    pub lost: u64,
    /// The number of records of ended or cut flows that are neither written nor lost yet, summed
    /// over all outputs.
    pub waiting: u64,
}

/// The counts of one meter, which the meter publishes whenever a record ends. The counts of a meter
/// have their own cache lines, because only that meter writes these counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    // `Relaxed` suffices for these counters: they are independent, and no other memory depends on
    // them.
    ended: AtomicU64,
    evicted: AtomicU64,
    largest: Mutex<Vec<FlowRecord>>,
}

impl Published {
    pub(super) fn publish(&self, totals: &Totals) {
        self.ended.store(totals.total, Ordering::Relaxed);
        self.evicted.store(totals.evicted, Ordering::Relaxed);
    }

    /// Publishes the flows with the most bytes. If another thread is reading the previous list of
    /// flows, the previous list stays published until the next call.
    pub(super) fn publish_largest(&self, flows: Vec<FlowRecord>) {
        if let Ok(mut published) = self.largest.try_lock() {
            *published = flows;
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct AllPublished(Arc<Mutex<Vec<Arc<Published>>>>);

impl AllPublished {
    /// Adds the counts of a new meter. If a CPU's meter has panicked, the new meter replaces the
    /// old meter. The old meter's counts are dropped here, because no report includes the old
    /// meter's flows either.
    pub(super) fn one_more(&self) -> Arc<Published> {
        let published = Arc::new(Published::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|published| Arc::strong_count(published) > 1);
        all.push(Arc::clone(&published));
        published
    }

    pub(super) fn largest(&self, most: usize) -> Vec<FlowRecord> {
        let mut flows = Vec::new();
        for published in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            flows.extend_from_slice(&published.largest.lock().unwrap_or_else(PoisonError::into_inner));
        }
        flows.sort_unstable_by(FlowRecord::rank);
        flows.truncate(most);
        flows
    }

    /// Returns the sum of all meters' counts, and the number of flows that have slots in the flow
    /// tables. The counts are read at different moments, so a flow may be included in one count and
    /// not yet in another. The caller must read the counts of the outputs before this call.
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
