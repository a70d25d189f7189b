use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use steerage::{WallTime, memory::HugeVec};

use super::cic::Features;
use super::flow::{Flow, FlowEnd};
use super::names::Names;
use super::parts::{Collected, Edges};
use super::record::{Class, Classes, FlowRecord};
use super::timeouts::Timeouts;

/// The records with the most bytes, in a heap whose top has the fewest bytes of them.
#[derive(Clone, Debug)]
pub(super) struct Top {
    most: usize,
    heap: BinaryHeap<Ranked>,
}

#[derive(Clone, Debug)]
struct Ranked(FlowRecord);

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.rank(&other.0)
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

impl Top {
    pub(super) fn new(most: usize) -> Self {
        Self { most, heap: BinaryHeap::with_capacity(most) }
    }

    pub(super) fn has_place_for(&self, bytes: u64) -> bool {
        self.most > 0 && (self.heap.len() < self.most || self.heap.peek().is_some_and(|least| bytes >= least.0.bytes()))
    }

    pub(super) fn offer(&mut self, record: &FlowRecord) {
        if self.heap.len() < self.most {
            self.heap.push(Ranked(record.clone()));
            return;
        }
        if let Some(mut least) = self.heap.peek_mut() {
            if record.rank(&least.0) == Ordering::Less {
                *least = Ranked(record.clone());
            }
        }
    }

    pub(super) fn into_records(self) -> Vec<FlowRecord> {
        self.heap.into_sorted_vec().into_iter().map(|ranked| ranked.0).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub(super) total: u64,
    pub(super) evicted: u64,
    classes: Classes,
    top: Top,
    earliest: u64,
}

impl Totals {
    pub(super) fn new(top: usize) -> Self {
        let top = Top::new(top);
        Self { total: 0, evicted: 0, classes: Classes::NONE, top, earliest: u64::MAX }
    }

    pub(super) fn add(&mut self, record: &FlowRecord) {
        self.count(record.flow());
        self.evicted += u64::from(record.end() == FlowEnd::Resources);
        self.top.offer(record);
    }

    /// Calls `record` only if the flow's record may be among the records with the most bytes.
    fn add_open(&mut self, flow: &Flow, record: impl FnOnce() -> FlowRecord) {
        self.count(flow);
        if self.top.has_place_for(flow.bytes()) {
            self.top.offer(&record());
        }
    }

    fn count(&mut self, flow: &Flow) {
        self.total += 1;
        self.classes.add(Class::of(&flow.key));
        self.earliest = self.earliest.min(flow.first);
    }

    fn add_all(&mut self, more: Self) {
        self.total += more.total;
        self.evicted += more.evicted;
        self.classes.add_all(&more.classes);
        self.earliest = self.earliest.min(more.earliest);
        more.top.into_records().iter().for_each(|record| self.top.offer(record));
    }
}

/// The report of one CPU at the end of the run.
#[derive(Debug)]
pub struct MeterReport {
    pub(super) totals: Totals,
    pub(super) open: HugeVec<Flow>,
    pub(super) names: Names,
    pub(super) features: Features,
    pub(super) now: u64,
    pub(super) timeouts: Timeouts,
    /// The number of bytes that were handled, which is smaller than on the wire if the capture
    /// truncated packets.
    pub handled_bytes: u64,
    pub(super) part: Option<Box<Collected>>,
}

impl MeterReport {
    /// Returns the edges of a part of a recording (flows that other parts may continue), and the
    /// records of all other flows. Returns `None` unless the meter was created [for a
    /// part](super::Metering::of_part).
    pub fn edges(self) -> Option<(Edges, Vec<FlowRecord>)> {
        let Self { part, open, names, now, timeouts, .. } = self;
        let open = open.iter().filter(|flow| !flow.is_vacant()).copied();
        Some(Edges::of(*part?, open, names, (now, timeouts)))
    }
}

/// The results of the meters of all CPUs.
#[derive(Clone, Debug)]
pub struct Metered {
    /// The number of records, including those of flows that were still open at the end.
    pub total: u64,
    /// The number of records whose flows were evicted.
    pub evicted: u64,
    /// The number of records of each [kind](FlowRecord::kind), the most frequent kind first.
    pub kinds: Vec<(Cow<'static, str>, u64)>,
    /// The records with the most bytes in both directions.
    pub top: Vec<FlowRecord>,
    /// The time of the earliest packet.
    pub earliest: Option<WallTime>,
}

/// The flows that were open at the end of the run, or were closed but had no record yet.
#[derive(Debug)]
pub struct OpenFlows {
    tables: Vec<HugeVec<Flow>>,
    names: Vec<Names>,
    features: Vec<Features>,
    end: Option<(u64, Timeouts)>,
}

impl OpenFlows {
    fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.tables.iter().flat_map(|flows| flows.iter()).filter(|flow| !flow.is_vacant())
    }

    fn record(&self, flow: &Flow) -> FlowRecord {
        let why = self.end.map_or(FlowEnd::Forced, |(now, timeouts)| flow.reason_at_the_end(now, &timeouts));
        let names = self.names.iter().find_map(|names| names.get(&flow.key, flow.hash));
        let cic = Features::of_all(&self.features, &flow.key, flow.hash);
        FlowRecord::new(*flow, why).with_names(names).with_cic(cic)
    }

    /// Returns the records of the open flows, in the order in which the flows began.
    pub fn into_records(self) -> Vec<FlowRecord> {
        self.records().collect()
    }

    /// Like [`into_records`](Self::into_records), but creates one record at a time, to save memory.
    pub fn records(&self) -> impl Iterator<Item = FlowRecord> + '_ {
        let mut flows: Vec<&Flow> = self.flows().collect();
        flows.sort_unstable_by_key(|flow| (flow.first, flow.key));
        flows.into_iter().map(|flow| self.record(flow))
    }

    /// Merges the entries of each flow. A flow has several entries if its packets were on several
    /// CPUs: receive queues have different masks, a CPU was declared dead, or a datagram's first
    /// fragment did not arrive first.
    fn merge(&mut self) {
        let places = self.tables.iter().enumerate().flat_map(|(table, flows)| {
            let taken = flows.iter().enumerate().filter(|(_, flow)| !flow.is_vacant());
            taken.map(move |(place, flow)| (flow.hash, table as u16, place as u32))
        });
        let mut places: Vec<(u32, u16, u32)> = places.collect();
        places.sort_unstable();
        for same in places.chunk_by(|one, next| one.0 == next.0).filter(|same| same.len() > 1) {
            for (nth, (_, table, place)) in same.iter().enumerate() {
                let flow = self.tables[usize::from(*table)][*place as usize];
                let known = same[..nth]
                    .iter()
                    .find(|(_, table, place)| self.tables[usize::from(*table)][*place as usize].key == flow.key);
                if let Some((_, first_table, first_place)) = known {
                    self.tables[usize::from(*first_table)][*first_place as usize].merge(&flow);
                    self.tables[usize::from(*table)][*place as usize] = Flow::vacant();
                }
            }
        }
    }
}

impl Metered {
    /// Combines the reports of all CPUs, and returns the open flows, so that the caller can write
    /// them.
    ///
    /// [`Metered::top`] is exact: each of the `top` records is also among the largest records of
    /// its CPU, or its flow is open.
    pub fn of(reports: impl IntoIterator<Item = MeterReport>, top: usize) -> (Self, OpenFlows) {
        let mut totals = Totals::new(top);
        let mut open = OpenFlows { tables: Vec::new(), names: Vec::new(), features: Vec::new(), end: None };
        for report in reports {
            totals.add_all(report.totals);
            let (now, timeouts) = open.end.unwrap_or((report.now, report.timeouts));
            open.end = Some((now.max(report.now), timeouts));
            if report.names.is_on() {
                open.names.push(report.names);
            }
            if report.features.is_on() {
                open.features.push(report.features);
            }
            if !report.open.is_empty() {
                open.tables.push(report.open);
            }
        }
        if open.tables.len() > 1 {
            open.merge();
        }
        open.flows().for_each(|flow| totals.add_open(flow, || open.record(flow)));
        let metered = Self {
            total: totals.total,
            evicted: totals.evicted,
            kinds: totals.classes.by_frequency(),
            top: totals.top.into_records(),
            earliest: (totals.total > 0).then_some(WallTime::from_nanos(totals.earliest)),
        };
        (metered, open)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steerage::BucketId;

    use super::*;
    use crate::flow::Seen;
    use crate::key::Key;

    fn flow(n: u32, second: u64, hash: u32) -> Flow {
        let time = second * 1_000_000_000;
        let seen = Seen { time, hash, bytes: 100, ..Seen::of(Key::v4((n, 1), (9, 9), 17)) };
        let mut flow = Flow::begin(&seen, BucketId { group: 0, bucket: 0 });
        flow.add(&seen);
        flow
    }

    fn report(flows: &[Flow]) -> MeterReport {
        let mut open = HugeVec::with_capacity(flows.len() + 2);
        [&[Flow::vacant()], flows, &[Flow::vacant()]].concat().into_iter().for_each(|flow| open.push(flow));
        let timeouts = Timeouts::new(Duration::from_secs(300), false, Duration::from_secs(60));
        MeterReport {
            totals: Totals::new(10),
            open,
            names: Names::new(false, false),
            features: Features::new(false),
            now: 0,
            timeouts,
            handled_bytes: 0,
            part: None,
        }
    }

    #[test]
    fn parts_of_a_flow_on_several_cpus_are_one_record() {
        // The third flow shares its hash with another flow. The fourth is on one CPU only.
        let cpus = [
            report(&[flow(1, 5, 1), flow(2, 1, 2), flow(4, 9, 4)]),
            report(&[flow(3, 3, 2), flow(2, 2, 2), flow(1, 4, 1)]),
            report(&[flow(2, 7, 2)]),
        ];
        let (metered, open) = Metered::of(cpus, 10);
        assert_eq!(metered.total, 4);
        let packets = |record: &FlowRecord| (record.first().as_nanos() / 1_000_000_000, record.forth().packets);
        let records: Vec<_> = open.into_records().iter().map(packets).collect();
        assert_eq!(records, [(1, 3), (3, 1), (4, 2), (9, 1)]);
        assert_eq!(metered.top.iter().map(|record| record.bytes()).collect::<Vec<_>>(), [300, 200, 100, 100]);
    }
}
