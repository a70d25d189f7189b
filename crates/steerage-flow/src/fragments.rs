//! Keeps the fragments of a datagram together: the fragment that arrives first determines the key
//! of all fragments.
//!
//! Only the first fragment of a datagram has ports. If that fragment arrives first, its flow's key
//! steers it, and the table records the key for the other fragments. If another fragment arrives
//! first, the ports are unknown. All fragments are then steered by a key made for the datagram. In
//! both cases all fragments of a datagram reach the same CPU in order. The table stores keys and
//! not CPUs, so that fragments follow when their bucket moves to another CPU.
//!
//! Each receive queue has a table, which only the queue's owner uses. Frames that the fast path can
//! read never reach the table.

use crate::flow_key::FlowKey;
use crate::hash::FlowHasher;

use crate::dissect::{Dissection, Fragment};
use crate::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS};
use crate::time::Timestamp;

/// A datagram of which some fragments have arrived.
#[derive(Clone, Copy, Debug)]
struct Entry {
    datagram: FlowKey,
    /// The key by which the datagram's fragments are steered.
    key: FlowKey,
    since: Timestamp,
    /// The number of the datagram's bytes that have arrived.
    bytes: u32,
    /// The length of the datagram's data, which only the last fragment states. `u32::MAX` until
    /// that fragment arrives.
    bytes_all: u32,
    /// True after the first fragment, which has the ports, has arrived.
    first_came: bool,
    /// True if the entry can be reused, because all of the datagram has arrived or the entry was
    /// never used.
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

/// Counts datagrams that a queue's table could not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FragmentCounts {
    /// Datagrams for which the table had no free entry.
    pub full: u64,
    /// Datagrams whose time in the table ran out.
    pub aged: u64,
}

/// The table of a queue's fragmented datagrams.
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

    /// Returns the key by which a frame is steered. The inner datagram is looked up first, because
    /// the other fragments of the outer datagram must follow the key that results from the inner
    /// one.
    pub fn steer(&mut self, found: &Dissection, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        found.fragments.iter().rev().flatten().fold(found.key, |key, fragment| self.follow(fragment, key, hasher, now))
    }

    /// Returns the key by which a fragment is steered. `key` is the key of the fragment's own
    /// headers, which is used if `fragment` is the first of its datagram and arrives first.
    fn follow(&mut self, fragment: &Fragment, key: FlowKey, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        let is_first = fragment.offset == 0;
        let own = if is_first { key } else { fragment.datagram };
        // The hash is keyed, so that no sender can fill a chosen set of the table.
        let set = &mut self.sets[hasher.hash(&fragment.datagram).0 as usize % FRAGMENT_SETS];
        let Some(entry) = set.iter_mut().find(|entry| entry.datagram == fragment.datagram) else {
            return match set.iter_mut().find(|entry| entry.free || entry.is_old(now)) {
                Some(place) => {
                    *place = Entry::begin(fragment, own, now);
                    own
                }
                None => {
                    // Every fragment computes this key from its own headers, without the table.
                    self.counts.full += 1;
                    fragment.datagram
                }
            };
        };
        let is_old = entry.is_old(now);
        if is_old && !is_first {
            self.counts.aged += 1;
        }
        // A repeated first fragment belongs to another datagram, because senders reuse
        // identifications.
        if is_old || (is_first && entry.first_came) {
            *entry = Entry::begin(fragment, own, now);
            return own;
        }
        entry.note(fragment);
        entry.key
    }

    /// Returns the counts since the last call.
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
        // Another datagram with the same identification, whose first fragment arrives first.
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

    /// If the table is full, every fragment is steered by its datagram's own key, even the first
    /// fragment.
    #[test]
    fn a_full_table_is_counted_and_splits_nothing() {
        let (mut table, hasher) = table();
        let many = 4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32;
        let mut own = 0;
        for id in 0..many {
            let key = table.follow(&fragment(id, 0, true), FLOW, &hasher, Timestamp::ZERO);
            own += u64::from(key != FLOW);
            assert!(key == FLOW || key == fragment(id, 0, true).datagram);
            // The later fragments get the same key as the first fragment.
            assert_eq!(table.follow(&fragment(id, 8, true), FLOW, &hasher, Timestamp::ZERO), key);
        }
        assert_eq!(u64::from(many) - own, (FRAGMENT_SETS * FRAGMENT_WAYS) as u64);
        assert_eq!(table.take_counts(), FragmentCounts { full: 2 * own, aged: 0 });
    }

    /// Complete datagrams free their entries, so that the table never fills up.
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
