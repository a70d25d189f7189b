//! What comes of metering: totals, and the flows with the most bytes.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use steerage::WallTime;

use super::flow::{Flow, FlowEnd};
use super::key::Key;
use super::record::{Classes, FlowRecord};
use super::timeouts::Timeouts;

/// The records with the most bytes of all that were offered, so many at most. The least of them is at the heap's top.
#[derive(Clone, Debug)]
struct Top {
    most: usize,
    heap: BinaryHeap<Ranked>,
}

#[derive(Clone, Copy, Debug)]
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
    fn new(most: usize) -> Self {
        Self { most, heap: BinaryHeap::with_capacity(most) }
    }

    fn offer(&mut self, record: &FlowRecord) {
        if self.heap.len() < self.most {
            self.heap.push(Ranked(*record));
            return;
        }
        if let Some(mut least) = self.heap.peek_mut() {
            if Ranked(*record) < *least {
                *least = Ranked(*record);
            }
        }
    }

    fn into_records(self) -> Vec<FlowRecord> {
        self.heap.into_sorted_vec().into_iter().map(|ranked| ranked.0).collect()
    }
}

/// What one CPU counted of records that have ended.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    total: u64,
    evicted: u64,
    pub(super) lost: u64,
    classes: Classes,
    top: Top,
    earliest: u64,
}

impl Totals {
    pub(super) fn new(top: usize) -> Self {
        let top = Top::new(top);
        Self { total: 0, evicted: 0, lost: 0, classes: Classes::NONE, top, earliest: u64::MAX }
    }

    pub(super) fn add(&mut self, record: &FlowRecord) {
        self.total += 1;
        self.evicted += u64::from(record.end() == FlowEnd::Resources);
        self.classes.add(record.class());
        self.earliest = self.earliest.min(record.flow().first);
        self.top.offer(record);
    }

    fn add_all(&mut self, more: Self) {
        self.total += more.total;
        self.evicted += more.evicted;
        self.lost += more.lost;
        self.classes.add_all(&more.classes);
        self.earliest = self.earliest.min(more.earliest);
        more.top.into_records().iter().for_each(|record| self.top.offer(record));
    }
}

/// What one CPU has to say at the end: what it counted, and its flows that go on.
#[derive(Debug)]
pub struct MeterReport {
    pub(super) totals: Totals,
    pub(super) open: Vec<Flow>,
    /// What time it was by the packets.
    pub(super) now: u64,
    pub(super) timeouts: Timeouts,
    /// Bytes of packets as they were handled, which a capture may have cut.
    pub handled_bytes: u64,
}

/// What all CPUs metered.
#[derive(Clone, Debug)]
pub struct Metered {
    /// Records, those of flows that the end cut off among them.
    pub total: u64,
    /// Of these, records of flows that had to make room.
    pub evicted: u64,
    /// Records that could not be written in time and are only counted. None where the source can wait.
    pub lost: u64,
    /// Records by [kind](FlowRecord::kind), the most frequent first.
    pub kinds: Vec<(Cow<'static, str>, u64)>,
    /// The records with the most bytes, of both directions together.
    pub top: Vec<FlowRecord>,
    /// The time of the earliest packet.
    pub earliest: Option<WallTime>,
}

impl Metered {
    /// Puts together what the CPUs say. The records of flows that the end cut off, or that had said their last word, are
    /// returned as well: nobody has written them yet.
    ///
    /// `top` is how many of the records with the most bytes are wanted, as the CPUs were told. They are exactly those: one
    /// that is among them is among those of its CPU, or goes on.
    pub fn of(reports: impl IntoIterator<Item = MeterReport>, top: usize) -> (Self, Vec<FlowRecord>) {
        let (mut totals, mut open) = (Totals::new(top), Vec::new());
        let (mut cpus, mut end) = (0, None);
        for report in reports {
            totals.add_all(report.totals);
            // Whoever had the last packet knows how late it was.
            let (now, timeouts) = end.unwrap_or((report.now, report.timeouts));
            end = Some((now.max(report.now), timeouts));
            cpus += usize::from(!report.open.is_empty());
            open.extend(report.open);
        }
        if cpus > 1 {
            open = merged(open);
        }
        let last = |flow: &Flow| {
            let why = end.map_or(FlowEnd::Forced, |(now, timeouts)| flow.reason_at_the_end(now, &timeouts));
            FlowRecord::new(*flow, why)
        };
        let mut rest: Vec<FlowRecord> = open.iter().map(last).collect();
        rest.sort_unstable_by_key(|record| (record.flow().first, record.flow().key));
        rest.iter().for_each(|record| totals.add(record));
        let metered = Self {
            total: totals.total,
            evicted: totals.evicted,
            lost: totals.lost,
            kinds: totals.classes.by_frequency(),
            top: totals.top.into_records(),
            earliest: (totals.total > 0).then_some(WallTime::from_nanos(totals.earliest)),
        };
        (metered, rest)
    }
}

/// Queues of different masks, and a CPU that was declared dead, can leave a flow in parts.
fn merged(flows: Vec<Flow>) -> Vec<Flow> {
    let mut whole: HashMap<Key, Flow> = HashMap::with_capacity(flows.len());
    for flow in flows {
        whole.entry(flow.key).and_modify(|known| known.merge(&flow)).or_insert(flow);
    }
    whole.into_values().collect()
}
