//! Only the first fragment of a datagram has ports. If the fragment with the ports arrives first,
//! all fragments are steered by the key of the datagram's flow. If another fragment arrives first,
//! the ports are not known yet, and all fragments are steered by a key that is made for the
//! datagram. The fragment table stores keys, not CPUs, so fragments follow when the bucket of their
//! hash moves to another CPU.
//!
//! Each receive queue has its own fragment table, which only the CPU that owns the queue uses. The
//! crate `steerage-meter` has a table of the same type, to find the flows of fragments. Packets
//! that are not fragments are never looked up.

use crate::flow_key::FlowKey;
use crate::hash::FlowHasher;

use crate::dissect::{Dissection, Fragment};
use crate::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS};
use crate::time::Timestamp;

/// A datagram of which some fragments have arrived, with a value that its fragments share.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<V> {
    name: FlowKey,
    /// The value that the user of the table stores for the datagram, such as its flow key.
    pub value: V,
    since: u64,
    bytes: u32,
    /// The length of the datagram's data, or `u32::MAX` until the last fragment, which shows the
    /// length, has arrived.
    bytes_all: u32,
    first_came: bool,
    /// True if all fragments have arrived, so that another datagram may take this entry. Until
    /// another datagram takes the entry, fragments that arrive twice still find this datagram.
    free: bool,
}

impl<V: Copy> Datagram<V> {
    /// Creates the state of a datagram whose fragments arrived in another table. `name` is the
    /// datagram's [key](Fragment::datagram), and `since` is the arrival time of its earliest
    /// fragment in nanoseconds.
    pub const fn new(name: FlowKey, value: V, since: u64, first_came: bool) -> Self {
        Self { name, value, since, bytes: 0, bytes_all: u32::MAX, first_came, free: false }
    }

    /// Creates the state of a datagram of which one fragment has arrived.
    pub fn begin(fragment: &Fragment, value: V, since: u64) -> Self {
        let mut datagram = Self::new(fragment.datagram, value, since, false);
        datagram.note(fragment);
        datagram
    }

    /// Returns the key that all fragments of the datagram share.
    pub const fn name(&self) -> &FlowKey {
        &self.name
    }

    /// Returns the time at which the earliest fragment arrived, in nanoseconds.
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// Returns true after the first fragment (with the ports) has arrived.
    pub const fn first_came(&self) -> bool {
        self.first_came
    }

    /// Adds a fragment with this datagram's `name`, and returns the datagram's value. If the
    /// fragment belongs to a later datagram with the same `name`, the later datagram first replaces
    /// this one, with the value `own`.
    pub fn follow(&mut self, fragment: &Fragment, own: V, now: u64) -> V {
        // A first fragment that arrives again belongs to another datagram, because senders reuse
        // identifications.
        if self.is_old(now) || (fragment.offset == 0 && self.first_came) {
            *self = Self::begin(fragment, own, now);
        } else {
            self.note(fragment);
        }
        self.value
    }

    fn note(&mut self, fragment: &Fragment) {
        self.first_came |= fragment.offset == 0;
        self.bytes = self.bytes.saturating_add(fragment.bytes);
        if !fragment.more {
            self.bytes_all = fragment.offset.saturating_add(fragment.bytes);
        }
        self.free |= self.bytes >= self.bytes_all;
    }

    /// Returns true if the datagram is older than [`FRAGMENT_TIME`]: later fragments belong to
    /// another datagram.
    pub fn is_old(&self, now: u64) -> bool {
        u128::from(now.abs_diff(self.since)) >= FRAGMENT_TIME.as_nanos()
    }
}

/// A table of recent fragmented datagrams, with which the flow of a fragment is found.
#[derive(Debug)]
pub struct Datagrams<V> {
    sets: Box<[[Option<Datagram<V>>; FRAGMENT_WAYS]]>,
    counts: FragmentCounts,
}

impl<V: Copy> Default for Datagrams<V> {
    fn default() -> Self {
        let sets = vec![[None; FRAGMENT_WAYS]; FRAGMENT_SETS].into_boxed_slice();
        Self { sets, counts: FragmentCounts::default() }
    }
}

impl<V: Copy> Datagrams<V> {
    const BYTES: usize = FRAGMENT_SETS * size_of::<[Option<Datagram<V>>; FRAGMENT_WAYS]>();

    /// Returns the value of the fragment's datagram. The fragment that arrives first determines
    /// this value: `own` if it is the datagram's first fragment, which has the ports, or else
    /// `alone`. `hash` is a hash of the datagram's key with a secret hash key, so that a sender
    /// cannot fill a chosen set of the table. `now` is in nanoseconds.
    pub fn follow(&mut self, fragment: &Fragment, hash: u32, own: V, alone: V, now: u64) -> V {
        let is_first = fragment.offset == 0;
        let own = if is_first { own } else { alone };
        let set = &mut self.sets[hash as usize % FRAGMENT_SETS];
        let Some(known) = set.iter_mut().flatten().find(|known| known.name == fragment.datagram) else {
            return match entry_for_another(set, now, |known| known.free || known.is_old(now)) {
                Some(entry) => entry.insert(Datagram::begin(fragment, own, now)).value,
                None => {
                    // The value `alone` does not depend on other fragments, so no entry in the
                    // table is necessary.
                    self.counts.full += 1;
                    alone
                }
            };
        };
        if known.is_old(now) && !is_first {
            self.counts.aged += 1;
        }
        known.follow(fragment, own, now)
    }

    /// Returns true if the table contains the datagram `name`.
    pub fn has(&self, name: &FlowKey, hash: u32) -> bool {
        self.sets[hash as usize % FRAGMENT_SETS].iter().flatten().any(|known| known.name == *name)
    }

    /// Removes and returns each datagram for whose value the function `departs` returns true.
    pub fn depart(&mut self, mut departs: impl FnMut(&V) -> bool) -> Vec<Datagram<V>> {
        let places = self.sets.iter_mut().flatten();
        places.filter_map(|place| place.take_if(|known| departs(&known.value))).collect()
    }

    /// Adds a datagram that [`depart`](Self::depart) removed from another table, if its set has a
    /// free entry.
    pub fn arrive(&mut self, datagram: Datagram<V>, hash: impl FnOnce(&FlowKey) -> u32) {
        let set = &mut self.sets[hash(&datagram.name) as usize % FRAGMENT_SETS];
        if let Some(entry) = entry_for_another(set, datagram.since, |known| known.free) {
            *entry = Some(datagram);
        }
    }

    /// Returns and resets the counts of datagrams that the table could not keep.
    pub fn take_counts(&mut self) -> FragmentCounts {
        std::mem::take(&mut self.counts)
    }
}

/// Returns an empty entry, or else the oldest entry that may be replaced. Recent datagrams stay, so
/// that fragments that arrive twice still find them.
fn entry_for_another<V: Copy>(
    set: &mut [Option<Datagram<V>>],
    now: u64,
    may_go: impl Fn(&Datagram<V>) -> bool,
) -> Option<&mut Option<Datagram<V>>> {
    let free = set.iter_mut().filter(|entry| entry.as_ref().is_none_or(&may_go));
    free.max_by_key(|entry| entry.map_or(u64::MAX, |known| now.abs_diff(known.since)))
}

/// The numbers of datagrams that a queue's fragment table could not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FragmentCounts {
    /// The number of datagrams for which there was no free entry.
    pub full: u64,
    /// The number of datagrams that were too old when another fragment arrived.
    pub aged: u64,
}

/// The table of the fragmented datagrams of one receive queue.
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
#[derive(Debug, Default)]
pub struct FragmentTable(Datagrams<FlowKey>);

impl FragmentTable {
    /// The size of the table in memory, in bytes.
    pub const BYTES: usize = Datagrams::<FlowKey>::BYTES;

    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the flow key that steers a frame. If a fragmented datagram contains another
    /// fragmented datagram, all fragments of the outer datagram get the key of the inner datagram.
    pub fn steer(&mut self, found: &Dissection, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        found.fragments.iter().rev().flatten().fold(found.key, |key, fragment| self.follow(fragment, key, hasher, now))
    }

    fn follow(&mut self, fragment: &Fragment, key: FlowKey, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
        let hash = hasher.hash(&fragment.datagram).0;
        self.0.follow(fragment, hash, key, fragment.datagram, now.as_nanos())
    }

    /// Returns and resets the counts of datagrams that the table could not keep.
    pub fn take_counts(&mut self) -> FragmentCounts {
        self.0.take_counts()
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

    #[test]
    fn doubled_fragments_follow_their_datagram() {
        let (mut table, hasher) = table();
        let mut at = |offset, more| table.follow(&fragment(7, offset, more), FLOW, &hasher, Timestamp::ZERO);
        for _ in 0..2 {
            let offsets = [(0, true), (0, true), (8, false), (8, false), (8, false)];
            assert_eq!(offsets.map(|(offset, more)| at(offset, more)), [FLOW; 5]);
        }
    }

    #[test]
    fn complete_datagrams_stay_while_there_is_room() {
        let (mut table, mut other) = (Datagrams::<u32>::default(), Datagrams::<u32>::default());
        let whole = |table: &mut Datagrams<u32>, id: u32| {
            let now = u64::from(id);
            table.follow(&fragment(id, 0, true), 0, id, 1000 + id, now);
            table.follow(&fragment(id, 8, false), 0, 0, 1000 + id, now);
        };
        let again = |table: &mut Datagrams<u32>, id: u32| table.follow(&fragment(id, 8, false), 0, 0, 1000 + id, 100);
        let ids = 1..=FRAGMENT_WAYS as u32;
        ids.clone().for_each(|id| whole(&mut table, id));
        assert!(ids.clone().all(|id| again(&mut table, id) == id));
        whole(&mut table, 50);
        assert!(ids.clone().skip(1).all(|id| again(&mut table, id) == id) && again(&mut table, 50) == 50);
        assert_eq!(again(&mut table, 1), 1001);
        whole(&mut other, 60);
        for datagram in other.depart(|_| true) {
            table.arrive(datagram, |_| 1);
        }
        whole(&mut other, 61);
        for datagram in other.depart(|_| true) {
            table.arrive(datagram, |_| 1);
        }
        for id in [60, 61] {
            assert_eq!(table.follow(&fragment(id, 8, false), 1, 0, 1000 + id, 100), id);
        }
    }

    #[test]
    fn a_full_table_is_counted_and_splits_nothing() {
        let (mut table, hasher) = table();
        let many = 4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32;
        let mut own = 0;
        for id in 0..many {
            let key = table.follow(&fragment(id, 0, true), FLOW, &hasher, Timestamp::ZERO);
            own += u64::from(key != FLOW);
            assert!(key == FLOW || key == fragment(id, 0, true).datagram);
            assert_eq!(table.follow(&fragment(id, 8, true), FLOW, &hasher, Timestamp::ZERO), key);
        }
        assert_eq!(u64::from(many) - own, (FRAGMENT_SETS * FRAGMENT_WAYS) as u64);
        assert_eq!(table.take_counts(), FragmentCounts { full: 2 * own, aged: 0 });
    }

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
