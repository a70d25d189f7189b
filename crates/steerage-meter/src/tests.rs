use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use steerage::BucketId;

use super::counts::AllPublished;
use super::flow::{Flow, FlowEnd, Seen};
use super::flow_limit::FlowLimit;
use super::key::{Key, Seeds};
use super::largest::Largest;
use super::table::Table;
use super::timeouts::{LATE_MAX, Timeouts, nanos};

const S: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * S;
const TABLES: usize = 3;
const BUCKETS: u32 = 4;
const ALL_LOOKS: usize = 1000;

fn timeouts() -> Timeouts {
    Timeouts::new(Duration::from_secs(300), false, Duration::from_secs(60))
}

fn bucket_of(flow: u32) -> BucketId {
    BucketId { group: (flow % 2) as u16, bucket: (flow % BUCKETS) as u16 }
}

fn seen(flow: u32, time: u64, seeds: &Seeds) -> Seen {
    let flow = Key::v4((flow, 1), (u32::MAX, 2), 17);
    Seen { time, bytes: 60, ip_bytes: 40, hash: flow.key.hash(seeds), ..Seen::of(flow) }
}

/// Flow 1 has one packet, flow 2 has two packets, and so on.
#[test]
fn the_largest_are_found_a_part_of_the_table_at_a_time() {
    const FLOWS: u32 = 100;
    let (seeds, published) = (Seeds::by_chance(), AllPublished::default());
    let mut table = Table::new(timeouts(), &FlowLimit::new(1000));
    for nth in 1..=FLOWS {
        let seen = seen(nth, START, &seeds);
        let mut flow = Flow::begin(&seen, bucket_of(nth));
        for _ in 0..nth {
            flow.add(&seen);
        }
        assert!(table.make_room().is_none());
        table.insert(flow);
    }
    let gone = seen(FLOWS, START, &seeds);
    table.remove(table.find(&gone.flow.key, gone.hash).unwrap());
    let (mut largest, one) = (Largest::new(5), published.one_more());
    let packets = || published.largest(3).iter().map(|flow| flow.forth().packets).collect::<Vec<_>>();
    for _ in 0..10 {
        assert!(packets().is_empty());
        largest.go_on(&table, 10, &one);
    }
    largest.go_on(&table, 10, &one);
    assert_eq!(packets(), [99, 98, 97]);
    let next = seen(99, START, &seeds);
    table.remove(table.find(&next.flow.key, next.hash).unwrap());
    largest.go_on(&table, 1000, &one);
    assert_eq!(packets(), [98, 97, 96]);
    Largest::new(0).go_on(&table, 1000, &one);
    assert!(packets().is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Packet(u32),
    /// The test's clock advances by some seconds.
    Pass(u64),
    Move(u32, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..64u32).prop_map(Step::Packet),
        1 => (0..40u64).prop_map(Step::Pass),
        1 => (0..BUCKETS, 0..TABLES).prop_map(|(bucket, table)| Step::Move(bucket, table)),
    ];
    prop::collection::vec(step, 0..400)
}

struct World {
    tables: Vec<Table>,
    limit: Arc<FlowLimit>,
    seeds: Seeds,
    at: [usize; BUCKETS as usize],
    open: BTreeMap<u32, (u64, u64)>,
    ended: [BTreeMap<u32, u64>; 2],
    now: u64,
}

impl World {
    fn new(flows_max: usize) -> Self {
        let limit = FlowLimit::new(flows_max);
        let tables = (0..TABLES).map(|_| Table::new(timeouts(), &limit)).collect();
        Self {
            tables,
            limit,
            seeds: Seeds::by_chance(),
            at: [0; BUCKETS as usize],
            open: BTreeMap::new(),
            ended: Default::default(),
            now: START,
        }
    }

    fn end(&mut self, flow: &Flow) {
        let (one, other) = flow.key.addresses();
        let id = one.min(other) as u32;
        *self.ended[0].entry(id).or_default() += flow.traffic().0.packets + flow.traffic().1.packets;
    }

    fn end_in_map(&mut self, id: u32) {
        let (packets, _) = self.open.remove(&id).expect("it is open");
        *self.ended[1].entry(id).or_default() += packets;
    }

    fn packet(&mut self, id: u32) {
        let seen = seen(id, self.now, &self.seeds);
        let at = self.at[(id % BUCKETS) as usize];
        let place = self.tables[at].find(&seen.flow.key, seen.hash);
        assert_eq!(place.is_some(), self.open.contains_key(&id), "{id}");
        if let Some(place) = place {
            assert_eq!(self.tables[at].candidate(seen.hash), place, "no two of so few hashes are equal");
            let flow = self.tables[at].at_mut(place).unwrap();
            let cut = flow.ends_before(&seen, &timeouts()).map(|why| flow.restart(&seen, why));
            flow.add(&seen);
            if let Some(cut) = cut {
                self.end(&cut);
                self.end_in_map(id);
            }
        } else {
            self.shed(at);
            if let Some(evicted) = self.tables[at].make_room() {
                self.evicted(&evicted);
            }
            let mut flow = Flow::begin(&seen, bucket_of(id));
            flow.add(&seen);
            flow.take_used();
            self.tables[at].insert(flow);
        }
        let (packets, last) = self.open.entry(id).or_default();
        (*packets, *last) = (*packets + 1, self.now);
    }

    fn shed(&mut self, at: usize) {
        while let Some(evicted) = self.tables[at].shed() {
            self.evicted(&evicted);
        }
    }

    /// Checks an evicted flow: it must have been idle for the longest time, with a tolerance of one
    /// slot of the timing wheel.
    fn evicted(&mut self, flow: &Flow) {
        let (one, other) = flow.key.addresses();
        let id = one.min(other) as u32;
        let at = self.at[(id % BUCKETS) as usize];
        let same_table = self.open.iter().filter(|(id, _)| self.at[(**id % BUCKETS) as usize] == at);
        let oldest = same_table.map(|(_, (_, last))| *last).min().unwrap();
        let place = (timeouts().inactive + nanos(LATE_MAX)) / 30 + 1;
        assert!(flow.last <= oldest + place, "{} s later than the oldest", (flow.last - oldest) / S);
        self.end(flow);
        self.end_in_map(id);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += seconds * S;
        for at in 0..TABLES {
            for _ in 0..ALL_LOOKS {
                match self.tables[at].look(self.now) {
                    Some(Some(flow)) => {
                        assert!(flow.is_over(self.now, nanos(LATE_MAX), &timeouts()));
                        self.end(&flow);
                    }
                    Some(None) => {}
                    None => break,
                }
            }
            assert!(self.tables[at].look(self.now).is_none(), "looking comes to an end");
        }
        // Timeouts are checked late, by up to one slot of the timing wheel.
        let over: Vec<u32> =
            self.open.iter().filter(|(_, (_, last))| self.now - last >= 61 * S).map(|(id, _)| *id).collect();
        for id in over {
            let seen = seen(id, self.now, &self.seeds);
            if self.tables[self.at[(id % BUCKETS) as usize]].find(&seen.flow.key, seen.hash).is_none() {
                self.end_in_map(id);
            } else {
                assert!(self.now - self.open[&id].1 <= 64 * S, "{id} is long over");
            }
        }
    }

    fn move_bucket(&mut self, bucket: u32, to: usize) {
        let from = std::mem::replace(&mut self.at[bucket as usize], to);
        let mut both = 0;
        for group in 0..2 {
            let id = BucketId { group, bucket: bucket as u16 };
            if let Some(departed) = self.tables[from].depart(id) {
                both += departed.flows.len();
                self.tables[to].arrive(id, departed);
            }
        }
        assert_eq!(both, self.open.keys().filter(|id| **id % BUCKETS == bucket).count());
        self.shed(to);
    }

    fn check(&self) {
        let flows: usize = self.tables.iter().map(Table::len).sum();
        assert_eq!(flows, self.open.len());
        assert_eq!(self.ended[0], self.ended[1]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn tables_are_maps(steps in steps(), flows_max in prop_oneof![Just(8usize), Just(1000)]) {
        let mut world = World::new(flows_max);
        for step in steps {
            match step {
                Step::Packet(flow) => world.packet(flow),
                Step::Pass(seconds) => world.pass(seconds),
                Step::Move(bucket, to) => world.move_bucket(bucket, to),
            }
            world.check();
            // Each flow table may take one flow beyond the limit.
            prop_assert!(world.open.len() < flows_max + TABLES);
        }
        let left: BTreeMap<u32, u64> = world.open.iter().map(|(id, (packets, _))| (*id, *packets)).collect();
        let mut flows = BTreeMap::new();
        let tables = world.tables.drain(..).map(Table::into_flows);
        for flow in tables.flat_map(|flows| flows.to_vec()).filter(|flow| !flow.is_vacant()) {
            let (one, other) = flow.key.addresses();
            flows.insert(one.min(other) as u32, flow.traffic().0.packets);
        }
        prop_assert_eq!(flows, left);
        let mut heir = super::flow_limit::FlowSlots::none(&world.limit);
        prop_assert!((0..flows_max).all(|_| heir.take()) && !heir.take());
    }
}

#[test]
fn who_is_in_use_is_not_evicted() {
    let mut world = World::new(16);
    for other in 0..500 {
        world.packet(1_000_000);
        world.packet(1_000_000);
        world.packet(other * BUCKETS);
    }
    assert_eq!(world.open[&1_000_000].0, 1000);
    assert_eq!(world.open.len(), 16);
}

#[test]
fn flows_merge_on_arrival() {
    let mut world = World::new(10);
    let seen = seen(4, START, &world.seeds);
    for table in &mut world.tables[..2] {
        assert!(table.make_room().is_none());
        let mut flow = Flow::begin(&seen, bucket_of(4));
        flow.add(&seen);
        table.insert(flow);
    }
    let departed = world.tables[0].depart(bucket_of(4)).expect("it is there");
    world.tables[1].arrive(bucket_of(4), departed);
    assert_eq!((world.tables[0].len(), world.tables[1].len()), (0, 1));
    let place = world.tables[1].find(&seen.flow.key, seen.hash).expect("it is there");
    let flow = *world.tables[1].at(place).expect("it is there");
    assert_eq!((flow.traffic().0.packets, flow.reason_at_the_end(START, &timeouts())), (2, FlowEnd::Forced));
    let mut heir = super::flow_limit::FlowSlots::none(&world.limit);
    assert!((0..9).all(|_| heir.take()) && !heir.take());
}
