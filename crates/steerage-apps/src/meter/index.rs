//! Maps a hash to the places in the table that may hold its flow. The index uses open addressing,
//! with eight entries per cache line.

use steerage::memory::HugeVec;

/// The number of slots of the smallest index.
const SLOTS_MIN: usize = 1024;

/// No place in the table.
pub(super) const NONE: u32 = u32::MAX;

/// An index of places in the flow table by hash.
///
/// Each slot has the hash in its upper half, and the place plus one in its lower half. 0 is an
/// empty slot. Probing is linear and starts at the slot that the topmost bits of the hash select,
/// so a doubled index is filled from front to back. At most half of the slots are used, which keeps
/// runs short. A removal moves later entries up, so there are no tombstones.
#[derive(Debug)]
pub(super) struct Index {
    slots: HugeVec<u64>,
    /// The number of lower bits of the hash that do not select a slot.
    shift: u32,
    len: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        Self::of_size(SLOTS_MIN)
    }

    fn of_size(slots: usize) -> Self {
        Self { slots: HugeVec::filled(0, slots), shift: u32::BITS - slots.ilog2(), len: 0 }
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    #[inline(always)]
    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Prefetches the slot where a lookup of the hash begins.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u32) {
        self.slots.prefetch(self.home(hash));
    }

    /// The first place whose flow has the hash, or [`NONE`]. If the flow is in the table, this is
    /// almost always its place.
    #[inline(always)]
    pub(super) fn candidate(&self, hash: u32) -> u32 {
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return NONE;
            }
            if (slot >> 32) as u32 == hash {
                return slot as u32 - 1;
            }
            at = self.next(at);
        }
    }

    /// The place of a flow with the hash for which `is_it` returns true.
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            let place = slot as u32 - 1;
            if (slot >> 32) as u32 == hash && is_it(place) {
                return Some(place);
            }
            at = self.next(at);
        }
    }

    /// Adds a place that is not in the index yet.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        self.put(u64::from(hash) << 32 | u64::from(place + 1));
        self.len += 1;
    }

    fn put(&mut self, slot: u64) {
        let mut at = self.home((slot >> 32) as u32);
        while self.slots[at] != 0 {
            at = self.next(at);
        }
        self.slots[at] = slot;
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::of_size(2 * self.slots.len());
        self.slots.iter().filter(|slot| **slot != 0).for_each(|slot| larger.put(*slot));
        larger.len = self.len;
        *self = larger;
    }

    /// Removes a place.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let wanted = u64::from(hash) << 32 | u64::from(place + 1);
        let mut hole = self.home(hash);
        while self.slots[hole] != wanted {
            if self.slots[hole] == 0 {
                return; // The place is not in the index.
            }
            hole = self.next(hole);
        }
        self.len -= 1;
        let mut at = self.next(hole);
        while self.slots[at] != 0 {
            // An entry can move to the hole if the hole is not before the entry's home.
            let home = self.home((self.slots[at] >> 32) as u32);
            let distance = |to: usize| to.wrapping_sub(home) & (self.slots.len() - 1);
            if distance(hole) < distance(at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    use super::*;

    proptest! {
        /// Uses few hashes at the upper end, so that runs are long, wrap around and hold equal
        /// hashes.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..48, 0u32..4), 0..400)) {
            let (mut index, mut model) = (Index::new(), BTreeMap::new());
            for (insert, place, hash) in steps {
                match (insert, model.contains_key(&place)) {
                    (true, false) => {
                        let hash = u32::MAX - hash * (place % 3);
                        index.insert(hash, place);
                        model.insert(place, hash);
                    }
                    (false, true) => index.remove(model.remove(&place).unwrap(), place),
                    _ => {}
                }
                for (place, hash) in &model {
                    prop_assert_eq!(index.find(*hash, |at| at == *place), Some(*place));
                    prop_assert_ne!(index.candidate(*hash), NONE);
                }
                prop_assert_eq!(index.len, model.len());
                prop_assert_eq!(index.slots.iter().filter(|slot| **slot != 0).count(), model.len());
            }
        }
    }

    #[test]
    fn it_grows_and_finds_all() {
        let mut index = Index::new();
        let hash = |place: u32| place.wrapping_mul(0x9e37_79b1);
        (0..100_000).for_each(|place| index.insert(hash(place), place));
        assert!((0..100_000).all(|place| index.find(hash(place), |at| at == place) == Some(place)));
        assert!((100_000..200_000).all(|place| index.find(hash(place), |at| at == place).is_none()));
        (0..100_000).for_each(|place| index.remove(hash(place), place));
        assert!(index.slots.iter().all(|slot| *slot == 0));
    }
}
