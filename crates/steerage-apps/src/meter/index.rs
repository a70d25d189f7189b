//! From a hash to the places in the table that may hold its flow: open addressing, eight entries to a cache line.

use steerage::memory::HugeVec;

/// How many entries the smallest index has room for.
const SLOTS_MIN: usize = 1024;

/// Nothing is there.
pub(super) const NONE: u32 = u32::MAX;

/// Each slot has the hash in its upper half and the place plus one in its lower; 0 is empty. Probing is linear, from where
/// the hash's topmost bits point: so a doubled index is filled from the old one front to back. At most half is in use,
/// which keeps runs short; what is taken out lets those behind it move up, so that there are no tombstones.
#[derive(Debug)]
pub(super) struct Index {
    slots: HugeVec<u64>,
    /// So many of the hash's lower bits do not count.
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

    /// Asks for what is looked up by that hash.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u32) {
        self.slots.prefetch(self.home(hash));
    }

    /// The first place whose flow has that hash: nearly always the right one, if there is a right one. Else [`NONE`].
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

    /// The place among those with that hash that `is_it`.
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

    /// Puts a place in that is not there yet.
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

    /// Takes a place out.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let wanted = u64::from(hash) << 32 | u64::from(place + 1);
        let mut hole = self.home(hash);
        while self.slots[hole] != wanted {
            if self.slots[hole] == 0 {
                return; // It isn't there.
            }
            hole = self.next(hole);
        }
        self.len -= 1;
        let mut at = self.next(hole);
        while self.slots[at] != 0 {
            // What stands at or before the hole when counted from its home can go there.
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
        /// Few hashes, all of them at the upper end, so that runs are long, wrap around and hold equal hashes.
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
