//! Keeps the fragments of a datagram together: the fragment that arrives first decides for the others.
//!
//! Only the first fragment of a datagram has ports. If it arrives first, it is steered by its flow, and the table
//! records the flow's key for the other fragments. If another fragment arrives first, the ports are not known: the
//! datagram gets a key of its own, and all of its fragments are steered by that key. Either way, all fragments of a
//! datagram go to the same CPU, in order. The table holds keys and not CPUs, so a bucket that moves takes its
//! fragments along.
//!
//! Each receive queue has a table of its own, which only the queue's owner uses. Only frames that are not plain reach
//! it.

use crate::flow_key::FlowKey;
use crate::hash::FlowHasher;

use crate::dissect::{Dissection, Fragment};
use crate::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS};
use crate::time::Timestamp;

/// A datagram with fragments that have arrived.
#[derive(Clone, Copy, Debug)]
struct Entry {
    datagram: FlowKey,
    /// The key that its fragments are steered by.
    key: FlowKey,
    since: Timestamp,
    /// How many bytes of its data have arrived.
    bytes: u32,
    /// The length of its data, which its last fragment states. `u32::MAX` until then.
    bytes_all: u32,
    /// Whether the first fragment, which has the ports, has arrived.
    first_came: bool,
    /// Whether the entry can be reused, because all of the datagram has arrived or the entry was never used.
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

/// How often a queue's table could not remember a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FragmentCounts {
    /// There was no free entry for the datagram.
    pub full: u64,
    /// The datagram's time had run out.
    pub aged: u64,
}

/// The fragmented datagrams of a queue.
///
/// ```
/// use steerage_flow::dissect::{Layers, dissect};
/// use steerage_flow::{FlowHasher, FragmentTable, HashKey, LinkType, Timestamp};
///
/// // A UDP datagram in two fragments. Only the first has ports.
/// let mut first = [0; 28];
/// (first[0], first[3], first[5], first[6], first[9]) = (0x45, 28, 7, 0x20, 17);
/// (first[21], first[23], first[25]) = (53, 99, 16);
/// let mut second = [0; 28];
/// (second[0], second[3], second[5], second[7], second[9]) = (0x45, 28, 7, 1, 17);
///
/// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
/// let mut table = FragmentTable::new();
/// let mut key = |packet: &[u8]| {
///     let found = dissect(packet, LinkType::RAW, Layers::Inner);
///     assert!(found.fragment().is_some());
///     table.steer(&found, &hasher, Timestamp::ZERO)
/// };
/// let key_of_first = key(&first);
/// assert_eq!(key_of_first.to_string(), "udp 0.0.0.0:53 > 0.0.0.0:99");
/// assert_eq!(key(&second), key_of_first);
/// assert_eq!(table.take_counts().full, 0);
/// ```
#[derive(Debug)]
pub struct FragmentTable {
    sets: Box<[[Entry; FRAGMENT_WAYS]]>,
    counts: FragmentCounts,
}

impl Default for FragmentTable {
    fn default() -> Self {
        Self::new()
    }
}

impl FragmentTable {
    /// The table's size in memory, in bytes.
    pub const BYTES: usize = FRAGMENT_SETS * FRAGMENT_WAYS * size_of::<Entry>();

    /// An empty table.
    pub fn new() -> Self {
        let nothing = FlowKey::from_bytes(&[]);
        let (since, bytes, bytes_all) = (Timestamp::ZERO, 0, u32::MAX);
        let empty = Entry { datagram: nothing, key: nothing, since, bytes, bytes_all, first_came: false, free: true };
        Self { sets: vec![[empty; FRAGMENT_WAYS]; FRAGMENT_SETS].into_boxed_slice(), counts: FragmentCounts::default() }
    }

    /// The key that a frame is steered by. The inner datagram is looked up first, because the other fragments of the
    /// outer datagram must follow the key that results.
    pub fn steer(&mut self, found: &Dissection, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        found.fragments.iter().rev().flatten().fold(found.key, |key, fragment| self.follow(fragment, key, hasher, now))
    }

    /// The key that a fragment is steered by. `key` is the key of its headers, which counts if this is the first
    /// fragment and arrives first.
    fn follow(&mut self, fragment: &Fragment, key: FlowKey, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        let is_first = fragment.offset == 0;
        let own = if is_first { key } else { fragment.datagram };
        // The hash is keyed, so no sender can aim at a set.
        let set = &mut self.sets[hasher.hash(&fragment.datagram).0 as usize % FRAGMENT_SETS];
        let Some(entry) = set.iter_mut().find(|entry| entry.datagram == fragment.datagram) else {
            return match set.iter_mut().find(|entry| entry.free || entry.is_old(now)) {
                Some(place) => {
                    *place = Entry::begin(fragment, own, now);
                    own
                }
                None => {
                    // All fragments of the datagram get this key without a table.
                    self.counts.full += 1;
                    fragment.datagram
                }
            };
        };
        let is_old = entry.is_old(now);
        if is_old && !is_first {
            self.counts.aged += 1;
        }
        // A second first fragment belongs to another datagram, because ids are reused.
        if is_old || (is_first && entry.first_came) {
            *entry = Entry::begin(fragment, own, now);
            return own;
        }
        entry.note(fragment);
        entry.key
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> FragmentCounts {
        std::mem::take(&mut self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKey;

    const FLOW: FlowKey = FlowKey::v4_bits((1, 1000), (2, 53), 17);

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
        // Another datagram with the same id, whose first fragment arrives first.
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

    /// If the table is full, each datagram is steered by its own key, including its first fragment.
    #[test]
    fn a_full_table_is_counted_and_splits_nothing() {
        let (mut table, hasher) = table();
        let many = 4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32;
        let mut own = 0;
        for id in 0..many {
            let key = table.follow(&fragment(id, 0, true), FLOW, &hasher, Timestamp::ZERO);
            own += u64::from(key != FLOW);
            assert!(key == FLOW || key == fragment(id, 0, true).datagram);
            // The other fragments get the same key as the first.
            assert_eq!(table.follow(&fragment(id, 8, true), FLOW, &hasher, Timestamp::ZERO), key);
        }
        assert_eq!(u64::from(many) - own, (FRAGMENT_SETS * FRAGMENT_WAYS) as u64);
        assert_eq!(table.take_counts(), FragmentCounts { full: 2 * own, aged: 0 });
    }

    /// Complete datagrams free their entries: the table is never full, however many there are.
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
