//! The limit for the number of flows on all CPUs together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steerage::limits::CPUS_MAX;

/// The limit and the current number of flows. The number changes when a flow begins or ends. A
/// packet of a known flow does not touch it.
#[derive(Debug)]
pub(super) struct FlowLimit {
    max: usize,
    // Relaxed throughout: it is a count, and no other memory depends on it.
    taken: AtomicUsize,
}

impl FlowLimit {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// The most flows that one CPU can have: all flows within the limit, and for each CPU the one
    /// flow that it may have beyond the limit.
    pub(super) fn flows_max(&self) -> usize {
        self.max + CPUS_MAX
    }

    /// The number of slots that are taken, which is the number of flows.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// The slots that one table holds, or one bucket while it moves. Dropping the holder frees its
/// slots.
#[derive(Debug)]
pub(super) struct FlowSlots {
    limit: Arc<FlowLimit>,
    held: usize,
}

impl FlowSlots {
    pub(super) fn none(limit: &Arc<FlowLimit>) -> Self {
        Self { limit: Arc::clone(limit), held: 0 }
    }

    /// Takes one more slot, if there is one. A holder without slots always gets one, because a CPU
    /// cannot work without a slot, and there are few CPUs.
    pub(super) fn take(&mut self) -> bool {
        if self.limit.taken.fetch_add(1, Ordering::Relaxed) >= self.limit.max && self.held > 0 {
            self.limit.taken.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.held += 1;
        true
    }

    /// Whether more slots are taken than the limit allows. A move can bring together flows that
    /// tables took beyond the limit.
    pub(super) fn is_surplus(&self) -> bool {
        self.limit.taken.load(Ordering::Relaxed) > self.limit.max
    }

    /// Returns one slot.
    pub(super) fn give(&mut self) {
        self.held -= 1;
        self.limit.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Splits off at most `count` slots.
    pub(super) fn split(&mut self, count: usize) -> Self {
        let held = count.min(self.held);
        self.held -= held;
        Self { limit: Arc::clone(&self.limit), held }
    }

    /// Takes over all slots of another holder.
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
        // The first slot is not refused, the second is.
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
