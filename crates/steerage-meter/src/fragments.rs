//! Assigns fragmented datagrams to flows.
//!
//! Steering keeps a datagram together by the same rule, so all fragments of a datagram are on the
//! CPU of its flow. The fragment that arrives first decides: if it has the ports, all fragments
//! belong to its flow. Otherwise the datagram is a flow of its own, without ports, and its first
//! fragment belongs to that flow too.

use steerage::flow::Fragment;
use steerage::{
    BucketId, FlowKey,
    flow::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS},
};

use super::key::{Directed, Key, Seeds};
use super::timeouts::nanos;

#[derive(Clone, Copy, Debug)]
struct Datagram {
    name: FlowKey,
    flow: Directed,
    bucket: BucketId,
    since: u64,
    bytes: u32,
    /// The datagram's total number of bytes. `u32::MAX` until the last fragment arrives, which
    /// contains this number.
    bytes_all: u32,
    first_came: bool,
}

impl Datagram {
    fn begin(fragment: &Fragment, flow: Directed, bucket: BucketId, since: u64) -> Self {
        let (name, bytes, bytes_all) = (fragment.datagram, 0, u32::MAX);
        Self { name, flow, bucket, since, bytes, bytes_all, first_came: false }
    }

    /// Counts a fragment. Returns true if the datagram is complete.
    fn note(&mut self, fragment: &Fragment) -> bool {
        self.first_came |= fragment.offset == 0;
        self.bytes = self.bytes.saturating_add(fragment.bytes);
        if !fragment.more {
            self.bytes_all = fragment.offset.saturating_add(fragment.bytes);
        }
        self.bytes >= self.bytes_all
    }

    fn is_old(&self, now: u64) -> bool {
        now.abs_diff(self.since) >= nanos(FRAGMENT_TIME)
    }
}

type Set = [Option<Datagram>; FRAGMENT_WAYS];

/// The incomplete datagrams on a CPU, whose maximum number is the one that steering uses for each
/// queue.
#[derive(Debug)]
pub(super) struct Datagrams {
    sets: Vec<Set>,
    seeds: Seeds,
}

#[derive(Debug)]
pub(super) struct DepartedDatagrams(Vec<Datagram>);

impl Datagrams {
    pub(super) fn new(seeds: Seeds) -> Self {
        Self { sets: Vec::new(), seeds }
    }

    fn set(&mut self, name: &FlowKey) -> &mut Set {
        if self.sets.is_empty() {
            self.sets = vec![[None; FRAGMENT_WAYS]; FRAGMENT_SETS];
        }
        // The mark is a hash of the datagram's name, which is hashed again with random seeds, so
        // that attackers cannot fill a chosen set.
        let hash = Key::other().key.marked(name).hash(&self.seeds);
        &mut self.sets[hash as usize % FRAGMENT_SETS]
    }

    /// The flow of a fragment. `flow` has only the data of the fragment's own headers.
    pub(super) fn follow(&mut self, fragment: &Fragment, flow: Directed, bucket: BucketId, now: u64) -> Directed {
        let is_first = fragment.offset == 0;
        let alone = flow.without_ports();
        let alone = Directed { key: alone.key.marked(&fragment.datagram), ..alone };
        let own = if is_first { flow } else { alone };
        let set = self.set(&fragment.datagram);
        let known = set.iter().position(|place| place.is_some_and(|known| known.name == fragment.datagram));
        let place = known.or_else(|| set.iter().position(|place| place.is_none_or(|known| known.is_old(now))));
        // If the set is full, all fragments, including the first one, belong to a flow without
        // ports. Steering treats the fragments of such a datagram in the same way.
        let Some(place) = place.map(|place| &mut set[place]) else { return alone };
        let mut datagram = match *place {
            // A second first fragment belongs to a new datagram, because datagram ids repeat.
            Some(datagram) if known.is_some() && !datagram.is_old(now) && !(is_first && datagram.first_came) => {
                datagram
            }
            _ => Datagram::begin(fragment, own, bucket, now),
        };
        let is_whole = datagram.note(fragment);
        *place = (!is_whole).then_some(datagram);
        datagram.flow
    }

    pub(super) fn depart(&mut self, bucket: BucketId) -> DepartedDatagrams {
        let places = self.sets.iter_mut().flatten();
        DepartedDatagrams(places.filter_map(|place| place.take_if(|known| known.bucket == bucket)).collect())
    }

    pub(super) fn arrive(&mut self, bucket: BucketId, departed: DepartedDatagrams) {
        for datagram in departed.0 {
            // If the set is full, the later fragments of the datagram form a flow of their own.
            if let Some(place) = self.set(&datagram.name).iter_mut().find(|place| place.is_none()) {
                *place = Some(Datagram { bucket, ..datagram });
            }
        }
    }
}

impl DepartedDatagrams {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: BucketId = BucketId { group: 0, bucket: 7 };
    const NOW: u64 = 1_700_000_000_000_000_000;

    fn fragment(id: u32, offset: u32, more: bool) -> Fragment {
        let datagram = FlowKey::from_bytes(&id.to_be_bytes());
        Fragment::new(14, id, offset..offset + 8, more, datagram)
    }

    fn with_ports() -> Directed {
        Key::v4((2, 1000), (1, 53), 17)
    }

    fn without() -> Directed {
        Key::v4((2, 0), (1, 0), 17)
    }

    #[test]
    fn later_fragments_follow_the_first() {
        let mut datagrams = Datagrams::new(Seeds::by_chance());
        for id in [7, 8, 7] {
            assert_eq!(datagrams.follow(&fragment(id, 0, true), with_ports(), BUCKET, NOW), with_ports());
            assert_eq!(datagrams.follow(&fragment(id, 8, true), without(), BUCKET, NOW), with_ports());
            assert_eq!(datagrams.follow(&fragment(id, 16, false), without(), BUCKET, NOW), with_ports());
        }
        assert!(datagrams.sets.iter().flatten().all(Option::is_none), "all came whole");
    }

    #[test]
    fn what_comes_first_without_ports_is_a_flow_of_its_own() {
        let mut datagrams = Datagrams::new(Seeds::by_chance());
        let later = datagrams.follow(&fragment(7, 8, true), without(), BUCKET, NOW);
        assert_ne!(later, without());
        assert_eq!(later.key.flow_key(later.turned), without().key.flow_key(without().turned));
        assert_eq!(datagrams.follow(&fragment(7, 0, true), with_ports(), BUCKET, NOW), later);
        // Fragments of another datagram belong to another flow, and so do late fragments of this
        // datagram.
        assert_ne!(datagrams.follow(&fragment(8, 8, true), without(), BUCKET, NOW), later);
        assert_eq!(datagrams.follow(&fragment(9, 0, true), with_ports(), BUCKET, NOW), with_ports());
        let old = NOW + nanos(FRAGMENT_TIME);
        assert_ne!(datagrams.follow(&fragment(9, 8, true), without(), BUCKET, old), with_ports());
    }

    #[test]
    fn datagrams_move_with_their_bucket() {
        let (mut here, mut there) = (Datagrams::new(Seeds::by_chance()), Datagrams::new(Seeds::by_chance()));
        here.follow(&fragment(7, 0, true), with_ports(), BUCKET, NOW);
        assert!(here.depart(BucketId { group: 0, bucket: 8 }).is_empty());
        there.arrive(BUCKET, here.depart(BUCKET));
        assert!(here.depart(BUCKET).is_empty());
        assert_eq!(there.follow(&fragment(7, 8, false), without(), BUCKET, NOW), with_ports());
    }

    #[test]
    fn many_at_a_time_lose_none_of_their_packets() {
        let mut datagrams = Datagrams::new(Seeds::by_chance());
        for id in 0..4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32 {
            let first = datagrams.follow(&fragment(id, 0, true), with_ports(), BUCKET, NOW);
            let later = datagrams.follow(&fragment(id, 8, true), without(), BUCKET, NOW);
            assert_eq!(first, later, "{id}");
        }
    }
}
