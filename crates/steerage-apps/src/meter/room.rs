//! How many flows there can be, of all CPUs together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steerage::CPUS_MAX;

/// Places for flows. Touched once when a flow begins and once when it ends, never by a packet of a known flow.
#[derive(Debug)]
pub(super) struct Room {
    max: usize,
    // Relaxed throughout: it is a count, and no other memory hangs on it.
    taken: AtomicUsize,
}

impl Room {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// How many there can be on one CPU at most: all, and for each CPU the one that it gets though there is no place.
    pub(super) fn flows_max(&self) -> usize {
        self.max + CPUS_MAX
    }

    /// How many are taken: as many as there are flows.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// The places that one table, or a bucket on its way, has. They are free again when it is gone, however that happens.
#[derive(Debug)]
pub(super) struct Seats {
    room: Arc<Room>,
    held: usize,
}

impl Seats {
    pub(super) fn none(room: &Arc<Room>) -> Self {
        Self { room: Arc::clone(room), held: 0 }
    }

    /// Takes one more place, if there is one. Who holds none gets one all the same: a CPU cannot do without, and there are
    /// few.
    pub(super) fn take(&mut self) -> bool {
        if self.room.taken.fetch_add(1, Ordering::Relaxed) >= self.room.max && self.held > 0 {
            self.room.taken.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.held += 1;
        true
    }

    /// Whether more places are taken than there are: moves can gather what tables took that had none.
    pub(super) fn is_surplus(&self) -> bool {
        self.room.taken.load(Ordering::Relaxed) > self.room.max
    }

    /// Gives one back.
    pub(super) fn give(&mut self) {
        self.held -= 1;
        self.room.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Parts with so many.
    pub(super) fn split(&mut self, count: usize) -> Self {
        let held = count.min(self.held);
        self.held -= held;
        Self { room: Arc::clone(&self.room), held }
    }

    /// Takes over all of another's.
    pub(super) fn absorb(&mut self, mut other: Self) {
        self.held += std::mem::take(&mut other.held);
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_whoever_holds_them() {
        let room = Room::new(3);
        let (mut one, mut other) = (Seats::none(&room), Seats::none(&room));
        assert!(one.take() && one.take() && one.take() && !one.take());
        // The first is not refused; the second is.
        assert!(other.take() && !other.take());
        let moved = one.split(2);
        drop(other);
        assert!(!one.take());
        drop(moved);
        assert!(one.take() && one.take() && !one.take());
        let mut heir = Seats::none(&room);
        heir.absorb(one);
        heir.give();
        assert!(heir.take() && !heir.take());
        drop(heir);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
