use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steerage::limits::CPUS_MAX;

/// The number of flows changes when a flow begins or ends, but not for each packet.
#[derive(Debug)]
pub(super) struct FlowLimit {
    max: usize,
    // `Relaxed` suffices, because this count makes no other memory visible.
    taken: AtomicUsize,
}

impl FlowLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// Returns the largest possible number of flows: those within the limit, plus one flow per CPU
    /// beyond the limit.
    pub(super) fn flows_max(&self) -> usize {
        self.max + CPUS_MAX
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// The slots that a flow table or a moving bucket has taken. Dropping this value frees the slots.
#[derive(Debug)]
pub(super) struct FlowSlots {
    limit: Arc<FlowLimit>,
    held: usize,
}

impl FlowSlots {
    pub(super) fn none(limit: &Arc<FlowLimit>) -> Self {
        Self { limit: Arc::clone(limit), held: 0 }
    }

    /// Each CPU gets at least one slot, even beyond the limit.
    pub(super) fn take(&mut self) -> bool {
        if self.limit.taken.fetch_add(1, Ordering::Relaxed) >= self.limit.max && self.held > 0 {
            self.limit.taken.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.held += 1;
        true
    }

    /// Each table may take one flow beyond the limit, and moves of buckets can bring several such
    /// flows into one table.
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
