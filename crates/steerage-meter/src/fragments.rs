//! Fragmented datagrams are assigned to flows by the rule of steering, so each datagram is on the
//! CPU of its flow. If the first fragment to arrive has ports, the datagram belongs to the flow
//! with these ports. If the first fragment to arrive has no ports, the datagram is a flow of its
//! own, without ports.

use steerage::flow::{Datagram, Datagrams, Fragment};
use steerage::{BucketId, FlowKey};

use super::key::{Directed, Key, Seeds};

#[derive(Debug)]
pub(super) struct FlowsOfDatagrams {
    table: Option<Datagrams<Followed>>,
    seeds: Seeds,
}

#[derive(Clone, Copy, Debug)]
struct Followed {
    flow: Directed,
    bucket: BucketId,
}

#[derive(Debug)]
pub(super) struct DepartedDatagrams(Vec<Datagram<Followed>>);

impl FlowsOfDatagrams {
    pub(super) fn new(seeds: Seeds) -> Self {
        Self { table: None, seeds }
    }

    /// `flow` is the flow that the fragment's own headers show.
    pub(super) fn follow(&mut self, fragment: &Fragment, flow: Directed, bucket: BucketId, now: u64) -> Directed {
        let [own, alone] = [flow, alone(flow, fragment)].map(|flow| Followed { flow, bucket });
        let hash = hash(&fragment.datagram, &self.seeds);
        self.table.get_or_insert_default().follow(fragment, hash, own, alone, now).flow
    }

    pub(super) fn knows(&self, fragment: &Fragment) -> bool {
        let name = &fragment.datagram;
        self.table.as_ref().is_some_and(|table| table.has(name, hash(name, &self.seeds)))
    }

    pub(super) fn into_datagrams(mut self) -> Vec<Datagram<Directed>> {
        let all = self.table.as_mut().map_or_else(Vec::new, |table| table.depart(|_| true));
        let flow = |known: Datagram<Followed>| {
            Datagram::new(*known.name(), known.value.flow, known.since(), known.first_came())
        };
        all.into_iter().map(flow).collect()
    }

    pub(super) fn depart(&mut self, bucket: BucketId) -> DepartedDatagrams {
        let departs = |followed: &Followed| followed.bucket == bucket;
        DepartedDatagrams(self.table.as_mut().map_or_else(Vec::new, |table| table.depart(departs)))
    }

    pub(super) fn arrive(&mut self, bucket: BucketId, departed: DepartedDatagrams) {
        for mut datagram in departed.0 {
            datagram.value.bucket = bucket;
            self.table.get_or_insert_default().arrive(datagram, |name| hash(name, &self.seeds));
        }
    }
}

/// Returns the flow of a datagram whose first fragment did not arrive first.
pub(super) fn alone(flow: Directed, fragment: &Fragment) -> Directed {
    let alone = flow.without_ports();
    Directed { key: alone.key.marked(&fragment.datagram), ..alone }
}

/// Hashes a datagram's key with random seeds, so that attackers cannot choose datagrams that all
/// fall into one set of the table.
fn hash(name: &FlowKey, seeds: &Seeds) -> u32 {
    Key::other().key.marked(name).hash(seeds)
}

impl DepartedDatagrams {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use steerage::flow::limits::{FRAGMENT_SETS, FRAGMENT_TIME, FRAGMENT_WAYS};

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
        let mut datagrams = FlowsOfDatagrams::new(Seeds::by_chance());
        for id in [7, 8, 7] {
            assert_eq!(datagrams.follow(&fragment(id, 0, true), with_ports(), BUCKET, NOW), with_ports());
            assert_eq!(datagrams.follow(&fragment(id, 8, true), without(), BUCKET, NOW), with_ports());
            assert_eq!(datagrams.follow(&fragment(id, 16, false), without(), BUCKET, NOW), with_ports());
        }
    }

    #[test]
    fn what_comes_first_without_ports_is_a_flow_of_its_own() {
        let mut datagrams = FlowsOfDatagrams::new(Seeds::by_chance());
        let later = datagrams.follow(&fragment(7, 8, true), without(), BUCKET, NOW);
        assert_ne!(later, without());
        assert_eq!(later.key.flow_key(later.turned), without().key.flow_key(without().turned));
        assert_eq!(datagrams.follow(&fragment(7, 0, true), with_ports(), BUCKET, NOW), later);
        assert_ne!(datagrams.follow(&fragment(8, 8, true), without(), BUCKET, NOW), later);
        assert_eq!(datagrams.follow(&fragment(9, 0, true), with_ports(), BUCKET, NOW), with_ports());
        let old = NOW + FRAGMENT_TIME.as_nanos() as u64;
        assert_ne!(datagrams.follow(&fragment(9, 8, true), without(), BUCKET, old), with_ports());
    }

    #[test]
    fn datagrams_move_with_their_bucket() {
        let (mut here, mut there) =
            (FlowsOfDatagrams::new(Seeds::by_chance()), FlowsOfDatagrams::new(Seeds::by_chance()));
        here.follow(&fragment(7, 0, true), with_ports(), BUCKET, NOW);
        assert!(here.depart(BucketId { group: 0, bucket: 8 }).is_empty());
        there.arrive(BUCKET, here.depart(BUCKET));
        assert!(here.depart(BUCKET).is_empty());
        assert_eq!(there.follow(&fragment(7, 8, false), without(), BUCKET, NOW), with_ports());
    }

    #[test]
    fn many_at_a_time_lose_none_of_their_packets() {
        let mut datagrams = FlowsOfDatagrams::new(Seeds::by_chance());
        for id in 0..4 * (FRAGMENT_SETS * FRAGMENT_WAYS) as u32 {
            let first = datagrams.follow(&fragment(id, 0, true), with_ports(), BUCKET, NOW);
            let later = datagrams.follow(&fragment(id, 8, true), without(), BUCKET, NOW);
            assert_eq!(first, later, "{id}");
        }
    }
}
