use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::flow_limit::FlowLimit;
use super::record::FlowRecord;
use super::totals::Totals;
use super::writer_state::OutputCounts;

/// The counts of all CPUs' meters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCounts {
    /// The number of current flows.
    pub active: u64,
    /// The number of records. Each current flow counts as a record, and so does each flow that has
    /// ended or was cut.
    pub total: u64,
    /// The number of records in `total` whose flows were evicted.
    pub evicted: u64,
    /// Records that were written or sent, summed over all outputs.
    pub written: u64,
    /// Records that could not be written or sent, summed over all outputs.
    pub lost: u64,
    /// Records of ended or cut flows that are neither written nor lost yet.
    pub waiting: u64,
}

/// One meter's counts, in their own cache lines, because only this meter writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    // `Relaxed` suffices: the counters are independent, and no other memory depends on them.
    ended: AtomicU64,
    evicted: AtomicU64,
    largest: Mutex<Vec<FlowRecord>>,
}

impl Published {
    pub(super) fn publish(&self, totals: &Totals) {
        self.ended.store(totals.total, Ordering::Relaxed);
        self.evicted.store(totals.evicted, Ordering::Relaxed);
    }

    /// While another thread reads the previous list, the previous list stays published.
    pub(super) fn publish_largest(&self, flows: Vec<FlowRecord>) {
        if let Ok(mut published) = self.largest.try_lock() {
            *published = flows;
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct AllPublished(Arc<Mutex<Vec<Arc<Published>>>>);

impl AllPublished {
    /// If a meter panics, its counts are dropped, and so are its flows in the report.
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

    /// The caller must have read the outputs' counts before. Counts are read at different moments,
    /// so a flow may be in one count and not yet in another.
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
