//! Datagrams under way in fragments: whoever comes first decides for the rest.
//!
//! Only the first fragment of a datagram has ports. If it is the first to arrive, it goes where its flow goes, and the
//! table notes its flow's key for the others. If another one is, no ports are known: the datagram gets a key of its own,
//! and all of it stays where that leads. Either way all fragments of a datagram are on one CPU, in order.
//!
//! Each receive queue has a table, which its owner alone touches. It is reached from the slow part of hashing only.

use steerage_mem::hash::{FlowHasher, FlowKey};

use super::dissection::{Dissection, Fragment};
use crate::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS};
use crate::platform::Timestamp;

/// A datagram.
#[derive(Clone, Copy)]
struct Entry {
    datagram: FlowKey,
    /// What its fragments are steered by.
    key: FlowKey,
    since: Timestamp,
    /// How much of its data has come.
    bytes: u32,
    /// How much it is in all: its last fragment tells. `u32::MAX` until then.
    bytes_all: u32,
    /// Whether the first fragment, the one with the ports, has come.
    first_came: bool,
    /// All of it has come, or there never was any: the place can be taken.
    free: bool,
}

impl Entry {
    fn begin(fragment: &Fragment, key: FlowKey, since: Timestamp) -> Self {
        let (bytes, bytes_all, first_came) = (0, u32::MAX, false);
        let mut entry = Self { datagram: fragment.datagram, key, since, bytes, bytes_all, first_came, free: false };
        entry.note(fragment);
        entry
    }

    fn note(&mut self, fragment: &Fragment) {
        self.first_came |= fragment.offset == 0;
        self.bytes = self.bytes.saturating_add(fragment.bytes);
        if !fragment.more {
            self.bytes_all = fragment.offset.saturating_add(fragment.bytes);
        }
        self.free |= self.bytes >= self.bytes_all;
    }

    fn is_old(&self, now: Timestamp) -> bool {
        now.since(self.since) >= FRAGMENT_TIME
    }
}

/// What a queue's table could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FragmentCounts {
    /// No place for the datagram.
    pub(crate) full: u64,
    /// The datagram's time was over.
    pub(crate) aged: u64,
}

/// The datagrams under way on a queue.
pub(crate) struct FragmentTable {
    sets: Box<[[Entry; FRAGMENT_WAYS]]>,
    counts: FragmentCounts,
}

impl FragmentTable {
    /// Its size in memory.
    pub(crate) const BYTES: usize = FRAGMENT_SETS * FRAGMENT_WAYS * size_of::<Entry>();

    pub(crate) fn new() -> Self {
        let nothing = FlowKey::from_bytes(&[]);
        let (since, bytes, bytes_all) = (Timestamp::ZERO, 0, u32::MAX);
        let empty = Entry { datagram: nothing, key: nothing, since, bytes, bytes_all, first_came: false, free: true };
        Self { sets: vec![[empty; FRAGMENT_WAYS]; FRAGMENT_SETS].into_boxed_slice(), counts: FragmentCounts::default() }
    }

    /// What a frame is to be steered by. The inner datagram first: what it is steered by is what the outer one's other
    /// fragments have to follow.
    pub(crate) fn steer(&mut self, found: &Dissection, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        found.fragments.iter().rev().flatten().fold(found.key, |key, fragment| self.follow(fragment, key, hasher, now))
    }

    /// What a fragment is steered by; `key` is what it would be if it came first and has the ports.
    fn follow(&mut self, fragment: &Fragment, key: FlowKey, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        let is_first = fragment.offset == 0;
        let own = if is_first { key } else { fragment.datagram };
        // The hash is a keyed one: nobody can aim at a set.
        let set = &mut self.sets[hasher.hash(&fragment.datagram).0 as usize % FRAGMENT_SETS];
        let Some(entry) = set.iter_mut().find(|entry| entry.datagram == fragment.datagram) else {
            return match set.iter_mut().find(|entry| entry.free || entry.is_old(now)) {
                Some(place) => {
                    *place = Entry::begin(fragment, own, now);
                    own
                }
                None => {
                    // All of its fragments agree on this without a table.
                    self.counts.full += 1;
                    fragment.datagram
                }
            };
        };
        let is_old = entry.is_old(now);
        if is_old && !is_first {
            self.counts.aged += 1;
        }
        // A second first fragment is that of another datagram: ids come round.
        if is_old || (is_first && entry.first_came) {
            *entry = Entry::begin(fragment, own, now);
            return own;
        }
        entry.note(fragment);
        entry.key
    }

    /// What was counted since the last call.
    pub(crate) fn take_counts(&mut self) -> FragmentCounts {
        std::mem::take(&mut self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steerage_mem::hash::HashKey;

    const FLOW: FlowKey = FlowKey::v4((1, 1000), (2, 53), 17);

    fn fragment(id: u32, offset: u32, more: bool) -> Fragment {
        let datagram = FlowKey::from_bytes(&id.to_be_bytes());
        Fragment { ip_offset: 14, id, offset, bytes: 8, more, datagram }
    }

    fn table() -> (FragmentTable, FlowHasher) {
        (FragmentTable::new(), FlowHasher::keyed(&HashKey::MICROSOFT))
    }

    #[test]
    fn the_first_fragment_leads_where_it_comes_first() {
        let (mut table, hasher) = table();
        let mut at = |offset, more| table.follow(&fragment(7, offset, more), FLOW, &hasher, Timestamp::ZERO);
        assert_eq!([at(0, true), at(16, false), at(8, true)], [FLOW; 3]);
        assert_eq!(table.take_counts(), FragmentCounts::default());
    }

    #[test]
    fn a_later_fragment_leads_where_it_comes_first() {
        let (mut table, hasher) = table();
        let own = fragment(7, 8, true).datagram;
        let mut at = |offset, more| table.follow(&fragment(7, offset, more), FLOW, &hasher, Timestamp::ZERO);
        assert_eq!([at(8, true), at(0, true), at(16, false)], [own; 3]);
        // Another datagram with the same id: its first fragment comes first.
        assert_eq!([at(0, true), at(8, false)], [FLOW; 2]);
    }

    #[test]
    fn a_datagram_is_forgotten_after_its_time() {
        let (mut table, hasher) = table();
        let own = fragment(7, 8, true).datagram;
        let (start, end) = (Timestamp::from_nanos(5), Timestamp::from_nanos(5) + FRAGMENT_TIME);
        assert_eq!(table.follow(&fragment(7, 0, true), FLOW, &hasher, start), FLOW);
        assert_eq!(table.follow(&fragment(7, 8, true), FLOW, &hasher, end), own);
        assert_eq!(table.take_counts(), FragmentCounts { full: 0, aged: 1 });
        assert_eq!(table.follow(&fragment(7, 16, false), FLOW, &hasher, end), own);
        assert_eq!(table.take_counts(), FragmentCounts::default());
    }

    /// Full, the table steers each datagram by itself, the first fragment too.
    #[test]
    fn a_full_table_is_counted_and_splits_nothing() {
        let (mut table, hasher) = table();
        let many = 4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32;
        let mut own = 0;
        for id in 0..many {
            let key = table.follow(&fragment(id, 0, true), FLOW, &hasher, Timestamp::ZERO);
            own += u64::from(key != FLOW);
            assert!(key == FLOW || key == fragment(id, 0, true).datagram);
            // The rest agrees with what the first was steered by.
            assert_eq!(table.follow(&fragment(id, 8, true), FLOW, &hasher, Timestamp::ZERO), key);
        }
        assert_eq!(u64::from(many) - own, (FRAGMENT_SETS * FRAGMENT_WAYS) as u64);
        assert_eq!(table.take_counts(), FragmentCounts { full: 2 * own, aged: 0 });
    }

    /// Datagrams that have come whole make room: nothing is ever full, however many there are.
    #[test]
    fn whole_datagrams_make_room() {
        let (mut table, hasher) = table();
        for id in 0..8 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32 {
            for fragment in [fragment(id, 0, true), fragment(id, 16, false), fragment(id, 8, true)] {
                assert_eq!(table.follow(&fragment, FLOW, &hasher, Timestamp::ZERO), FLOW);
            }
        }
        assert_eq!(table.take_counts(), FragmentCounts::default());
    }
}
