//! Maps a flow's hash to its possible slots in the flow table.

use steerage::memory::HugeVec;

const ENTRIES_MIN: usize = 1024;

const LINE: usize = 8;

pub(super) const NONE: u32 = u32::MAX;

/// A hash index with open addressing, and eight entries per cache line. The topmost bits of a
/// flow's hash select a cache line, so that the entries of an index, in their order, fill an index
/// of double size from the first line to the last. A search compares all hashes of a line without
/// branches, which would often be mispredicted. If a line is full, further entries of the line are
/// in the next lines. At most half of the entries are used, so few lines are full. Removing an
/// entry moves later entries, so there are no tombstones.
#[derive(Debug)]
pub(super) struct Index {
    lines: HugeVec<Line>,
    shift: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    hashes: [u32; LINE],
    /// Slot numbers plus one, or 0 for an unused entry.
    places: [u32; LINE],
}

impl Line {
    fn is_full(&self) -> bool {
        self.places[LINE - 1] != 0
    }

    /// Returns the slot number plus one of the entry with this hash, or 0 if there is none. If two
    /// entries have the hash, returns any number except 0.
    #[inline(always)]
    fn any_with(&self, hash: u32) -> u32 {
        let one = |(its, place): (&u32, &u32)| if *its == hash { *place } else { 0 };
        self.hashes.iter().zip(&self.places).map(one).fold(0, |any, place| any | place)
    }
}

const _: () = assert!(size_of::<Line>() == 64);

type At = (usize, usize);

impl Index {
    pub(super) fn new() -> Self {
        Self::of_size(ENTRIES_MIN / LINE)
    }

    fn of_size(lines: usize) -> Self {
        let empty = Line { hashes: [0; LINE], places: [0; LINE] };
        Self { lines: HugeVec::filled(empty, lines), shift: u32::BITS - lines.ilog2(), len: 0 }
    }

    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    fn next(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    fn behind(&self, (line, nth): At) -> At {
        if nth + 1 < LINE { (line, nth + 1) } else { (self.next(line), 0) }
    }

    fn at(&self, (line, nth): At) -> Option<(u32, u32)> {
        let Line { hashes, places } = &self.lines[line];
        Some((hashes[nth], places[nth].checked_sub(1)?))
    }

    fn set(&mut self, (line, nth): At, entry: Option<(u32, u32)>) {
        let Line { hashes, places } = &mut self.lines[line];
        (hashes[nth], places[nth]) = entry.map_or((0, 0), |(hash, place)| (hash, place + 1));
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u32) {
        self.lines.prefetch(self.home(hash));
    }

    /// Returns a slot whose flow may have this hash, or [`NONE`]. If several flows have the hash,
    /// the slot may be that of any of them, so the caller has to compare the slot's key.
    #[inline(always)]
    pub(super) fn candidate(&self, hash: u32) -> u32 {
        let line = &self.lines[self.home(hash)];
        match line.any_with(hash) {
            0 if line.is_full() => self.find(hash, |_| true).unwrap_or(NONE),
            found => found.wrapping_sub(1),
        }
    }

    #[inline(never)]
    pub(super) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            // Most searches are for new flows, whose hash is in no entry.
            if line.any_with(hash) != 0 {
                let mut entries = line.hashes.iter().zip(line.places);
                let found = entries.find(|(its, place)| **its == hash && *place != 0 && is_it(place - 1));
                if let Some((_, place)) = found {
                    return Some(place - 1);
                }
            }
            if !line.is_full() {
                return None;
            }
            at = self.next(at);
        }
    }

    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if 2 * (self.len + 1) > LINE * self.lines.len() {
            self.grow();
        }
        self.put((hash, place));
        self.len += 1;
    }

    fn put(&mut self, entry: (u32, u32)) {
        let mut line = self.home(entry.0);
        while self.lines[line].is_full() {
            line = self.next(line);
        }
        let used = self.lines[line].places.iter().filter(|place| **place != 0).count();
        self.set((line, used), Some(entry));
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::of_size(2 * self.lines.len());
        let all = (0..self.lines.len()).flat_map(|line| (0..LINE).map(move |nth| (line, nth)));
        all.filter_map(|at| self.at(at)).for_each(|entry| larger.put(entry));
        larger.len = self.len;
        *self = larger;
    }

    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let mut hole = (self.home(hash), 0);
        loop {
            match self.at(hole) {
                Some(entry) if entry == (hash, place) => break,
                Some(_) => hole = self.behind(hole),
                None => return,
            }
        }
        self.len -= 1;
        let mut at = self.behind(hole);
        while let Some(entry) = self.at(at) {
            // An entry can move to `hole` only if the search for the entry's hash begins at `hole`
            // or before it.
            let distance = |(line, nth): At| (line.wrapping_sub(self.home(entry.0)) & (self.lines.len() - 1), nth);
            if distance(hole) < distance(at) {
                self.set(hole, Some(entry));
                hole = at;
            }
            at = self.behind(at);
        }
        self.set(hole, None);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    use super::*;

    fn used(index: &Index) -> usize {
        index.lines.iter().flat_map(|line| line.places).filter(|place| *place != 0).count()
    }

    proptest! {
        /// In this test, used entries form long sequences that wrap around, and many hashes are
        /// equal.
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
                prop_assert_eq!(used(&index), model.len());
            }
        }
    }

    #[test]
    fn it_grows_and_finds_all() {
        let mut index = Index::new();
        let hash = |place: u32| place.wrapping_mul(0x9e37_79b1);
        (0..100_000).for_each(|place| index.insert(hash(place), place));
        assert!((0..100_000).all(|place| index.find(hash(place), |at| at == place) == Some(place)));
        assert!((0..100_000).all(|place| index.candidate(hash(place)) == place));
        assert!((100_000..200_000).all(|place| index.candidate(hash(place)) == NONE));
        assert!((100_000..200_000).all(|place| index.find(hash(place), |at| at == place).is_none()));
        (0..100_000).for_each(|place| index.remove(hash(place), place));
        assert_eq!(used(&index), 0);
    }
}
