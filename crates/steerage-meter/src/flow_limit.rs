//! Limits the number of flows on all CPUs together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steerage::limits::CPUS_MAX;

/// The limit and the current number of flows. The current number of flows changes only when a flow
/// starts or ends. Packets of a flow after its first packet do not access the current number of
/// flows.
#[derive(Debug)]
pub(super) struct FlowLimit {
    max: usize,
    // `Relaxed` suffices, because the number of flows is only a count and no other memory depends
    // on it.
    taken: AtomicUsize,
}

impl FlowLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// Returns the maximum number of flows on one CPU: all flows within the limit, plus one flow
    /// per CPU beyond the limit.
    pub(super) fn flows_max(&self) -> usize {
        self.max + CPUS_MAX
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// The number of slots that a flow table or a moving bucket has taken. Dropping this value frees
/// the slots.
#[derive(Debug)]
pub(super) struct FlowSlots {
    limit: Arc<FlowLimit>,
    held: usize,
}

impl FlowSlots {
    pub(super) fn none(limit: &Arc<FlowLimit>) -> Self {
        Self { limit: Arc::clone(limit), held: 0 }
    }

    /// Takes one more slot if a slot is free. A CPU without slots always gets a slot, even beyond
    /// the limit, because a CPU needs at least one slot. The limit is exceeded only a little,
    /// because there are few CPUs.
    pub(super) fn take(&mut self) -> bool {
        if self.limit.taken.fetch_add(1, Ordering::Relaxed) >= self.limit.max && self.held > 0 {
            self.limit.taken.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.held += 1;
        true
    }

    /// Returns true if all CPUs together have taken more slots than the limit allows. Each flow
    /// table may take one flow beyond the limit, and moves of buckets can bring several of these
    /// extra flows into one table.
    pub(super) fn is_surplus(&self) -> bool {
        self.limit.taken.load(Ordering::Relaxed) > self.limit.max
    }

    pub(super) fn give(&mut self) {
        self.held -= 1;
        self.limit.taken.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn split(&mut self, count: usize) -> Self {
        let held = count.min(self.held);
        self.held -= held;
        Self { limit: Arc::clone(&self.limit), held }
    }

    pub(super) fn absorb(&mut self, mut other: Self) {
        self.held += std::mem::take(&mut other.held);
    }
}

impl Drop for FlowSlots {
    fn drop(&mut self) {
        self.limit.taken.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_whoever_holds_them() {
        let limit = FlowLimit::new(3);
        let (mut one, mut other) = (FlowSlots::none(&limit), FlowSlots::none(&limit));
        assert!(one.take() && one.take() && one.take() && !one.take());
        assert!(other.take() && !other.take());
        let moved = one.split(2);
        drop(other);
        assert!(!one.take());
        drop(moved);
        assert!(one.take() && one.take() && !one.take());
        let mut heir = FlowSlots::none(&limit);
        heir.absorb(one);
        heir.give();
        assert!(heir.take() && !heir.take());
        drop(heir);
        assert_eq!(limit.taken.load(Ordering::Relaxed), 0);
    }
}
