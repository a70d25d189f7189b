//! The rates between two snapshots of a run, and the run's events.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use steerage::Snapshot;
use steerage::stats::{CounterSnapshot, CpuSnapshot, OutputSnapshot, PoolSnapshot, QueueSnapshot};

use super::events::{self, Event};
use super::names::{Flow, FlowId};
use crate::report::{Document, Traffic};

/// The maximum number of events. No screen shows more.
const EVENTS_MAX: usize = 200;

/// A flow whose counts have not changed for this time has a rate of 0. A meter publishes the counts
/// of each flow several times per second.
const QUIET_AFTER: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) document: Document,
    pub(crate) traffic: Option<Traffic<Flow>>,
}

impl Seen {
    pub(crate) fn of(report: Value) -> Result<Self, String> {
        let (document, traffic) = Document::read(report)?;
        Ok(Self { document, traffic })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    before: Snapshot,
    pub(crate) seen: Seen,
    /// The active flows of the last report, which contains only the largest flows.
    pub(crate) flows: Vec<FlowRates>,
    /// The losses that have begun and not ended, each with its queue or CPU and its drop reason.
    dropping: BTreeSet<String>,
    /// The events, from the newest to the oldest.
    pub(crate) events: VecDeque<Event>,
    /// The buckets of the selected queue at the last reading.
    pub(crate) buckets: Vec<Bucket>,
    buckets_before: Vec<Bucket>,
    buckets_of: usize,
    pub(crate) gone: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) cpu: u16,
    /// The approximate number of the bucket's packets since the start of the run.
    pub(crate) packets: u64,
}

impl Model {
    /// Before the first report, the model contains a placeholder whose run began in 1970.
    pub(crate) fn has_report(&self) -> bool {
        self.seen.document.started != SystemTime::UNIX_EPOCH
    }

    pub(crate) fn now(&self) -> &Snapshot {
        &self.seen.document.snapshot
    }

    /// Takes a new report. If the report belongs to another run, or if counters have decreased,
    /// earlier rates are discarded.
    pub(crate) fn take(&mut self, seen: Seen) {
        let (started, is_first) = (self.seen.document.started, !self.has_report());
        let (old, new) = (self.now(), &seen.document.snapshot);
        let same = started == seen.document.started
            && old.elapsed <= new.elapsed
            && old.received() <= new.received()
            && old.cpus.len() == new.cpus.len()
            && old.queues.len() == new.queues.len();
        let was_gone = self.gone.take().is_some();
        let last = std::mem::replace(&mut self.seen, seen);
        self.take_flows(same);
        if same {
            self.before = last.document.snapshot;
            let new = events::between(&self.before, &self.seen.document.snapshot, &mut self.dropping);
            new.into_iter().for_each(|event| self.note(event));
            return;
        }
        // The rates of the first snapshot are averages since the start of the run.
        let mut before = Snapshot::default();
        before.queues.resize_with(self.now().queues.len(), QueueSnapshot::default);
        before.cpus.resize_with(self.now().cpus.len(), CpuSnapshot::default);
        before.outputs.resize_with(self.now().outputs.len(), OutputSnapshot::default);
        self.before = before;
        self.dropping.clear();
        if !is_first {
            let what = if was_gone { "a run is there again" } else { "another run" };
            self.note(Event { at: self.now().elapsed, what: what.to_owned(), is_bad: false });
        }
    }

    /// `same` is true if the report belongs to the same run as the previous report. If `same` is
    /// false, all flows count as new.
    fn take_flows(&mut self, same: bool) {
        let now = self.now().elapsed;
        let flows = self.seen.traffic.as_mut().and_then(|traffic| traffic.top.take()).unwrap_or_default();
        let before: HashMap<FlowId, FlowRates> =
            self.flows.drain(..).filter(|_| same).map(|of| (of.flow.id.clone(), of)).collect();
        let rates = |flow: Flow| FlowRates::of(before.get(&flow.id), flow, now);
        self.flows = flows.into_iter().map(rates).collect();
    }

    /// Stores the new values of the selected queue's buckets. If another queue was selected before,
    /// all packets of the buckets count as new.
    pub(crate) fn take_buckets(&mut self, queue: usize, buckets: Vec<Bucket>) {
        self.buckets_before = std::mem::replace(&mut self.buckets, buckets);
        if std::mem::replace(&mut self.buckets_of, queue) != queue {
            self.buckets_before.clear();
        }
    }

    /// Returns the CPU of each bucket of the selected queue, and the number of the bucket's packets
    /// between the last two readings.
    pub(crate) fn bucket_loads(&self) -> Vec<(u16, u64)> {
        let before = self.buckets_before.iter().map(|bucket| bucket.packets).chain(std::iter::repeat(0));
        let pairs = self.buckets.iter().zip(before);
        pairs.map(|(bucket, before)| (bucket.cpu, bucket.packets.saturating_sub(before))).collect()
    }

    pub(crate) fn lose(&mut self, why: String) {
        if self.gone.is_none() {
            self.note(Event { at: self.now().elapsed, what: "the run is gone".to_owned(), is_bad: false });
        }
        self.gone = Some(why);
    }

    pub(crate) fn note(&mut self, event: Event) {
        self.events.push_front(event);
        self.events.truncate(EVENTS_MAX);
    }

    pub(crate) fn interval(&self) -> Duration {
        self.now().elapsed.saturating_sub(self.before.elapsed)
    }

    /// Returns the increase of `count` per second between the last two snapshots.
    pub(crate) fn rate(&self, count: impl Fn(&Snapshot) -> u64) -> f64 {
        self.a_second(count(self.now()), count(&self.before))
    }

    fn a_second(&self, now: u64, before: u64) -> f64 {
        let time = self.interval().as_secs_f64();
        if time > 0.0 { now.saturating_sub(before) as f64 / time } else { 0.0 }
    }

    pub(crate) fn cpus(&self) -> Vec<CpuRates> {
        let all = self.rate(|of| of.cpus.iter().map(|cpu| cpu.processed).sum());
        let pairs = self.now().cpus.iter().zip(&self.before.cpus);
        pairs.map(|(now, before)| self.cpu(now, before, all)).collect()
    }

    fn cpu(&self, now: &CpuSnapshot, before: &CpuSnapshot, all: f64) -> CpuRates {
        let rate = self.a_second(now.processed, before.processed);
        let handled = now.processed.saturating_sub(before.processed);
        let inline = now.inline.saturating_sub(before.inline);
        let busy = now.busy.saturating_sub(before.busy).as_secs_f64();
        let busy = busy / self.interval().as_secs_f64().max(f64::MIN_POSITIVE);
        CpuRates {
            cpu: now.cpu.0,
            rate,
            share: if all > 0.0 { rate / all } else { 0.0 },
            busy: busy.min(1.0),
            own: (handled > 0).then(|| (inline as f64 / handled as f64).min(1.0)),
            backlog: now.backlog,
            wakes: self.a_second(now.wakes_received, before.wakes_received),
            drops: self.a_second(now.dropped.total(), before.dropped.total()),
        }
    }

    pub(crate) fn queues(&self) -> Vec<QueueRates<'_>> {
        let pairs = self.now().queues.iter().zip(&self.before.queues);
        pairs.map(|(now, before)| self.queue(now, before)).collect()
    }

    fn queue<'a>(&self, now: &'a QueueSnapshot, before: &QueueSnapshot) -> QueueRates<'a> {
        let wanted = wanted(&now.pool).saturating_sub(wanted(&before.pool));
        let fast = now.pool.alloc_fast.saturating_sub(before.pool.alloc_fast);
        QueueRates {
            queue: now,
            rate: self.a_second(now.received, before.received),
            drops: self.a_second(now.dropped.total(), before.dropped.total()),
            cache_hits: (wanted > 0).then(|| fast as f64 / wanted as f64),
        }
    }

    /// Returns each output with its rates: packets, bytes and lost packets per second.
    pub(crate) fn outputs<'a>(&'a self) -> Vec<(&'a OutputSnapshot, [f64; 3])> {
        let rates = |(now, before): (&'a OutputSnapshot, &OutputSnapshot)| {
            let lost = self.a_second(now.dropped.total(), before.dropped.total());
            (now, [self.a_second(now.packets, before.packets), self.a_second(now.bytes, before.bytes), lost])
        };
        self.now().outputs.iter().zip(&self.before.outputs).map(rates).collect()
    }

    pub(crate) fn counters(&self) -> Vec<(&CounterSnapshot, f64)> {
        let rate = |now: &CounterSnapshot| {
            let before = self.before.counters.iter().find(|before| before.name == now.name);
            self.a_second(now.total, before.map_or(0, |before| before.total))
        };
        self.now().counters.iter().map(|now| (now, rate(now))).collect()
    }
}

fn wanted(pool: &PoolSnapshot) -> u64 {
    pool.alloc_fast + pool.alloc_slow + pool.alloc_empty
}

/// A CPU's rates per second, and its shares of time or packets from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CpuRates {
    pub(crate) cpu: u16,
    pub(crate) rate: f64,
    pub(crate) share: f64,
    pub(crate) busy: f64,
    /// The share of the handled packets that this CPU had received itself. `None` if the CPU
    /// handled no packets.
    pub(crate) own: Option<f64>,
    pub(crate) backlog: u64,
    pub(crate) wakes: f64,
    pub(crate) drops: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct FlowRates {
    pub(crate) flow: Flow,
    pub(crate) duration: Duration,
    /// Bytes per second and packets per second, in both directions together.
    pub(crate) rates: [f64; 2],
    /// The time from the start of the run to the last change of the flow's counts.
    changed: Duration,
}

impl FlowRates {
    /// The rates of a new flow are averages since its first packet.
    fn of(before: Option<&Self>, flow: Flow, now: Duration) -> Self {
        let duration = flow.duration();
        let over = |bytes: u64, packets: u64, time: Duration| {
            [bytes, packets].map(|count| count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE))
        };
        let (rates, changed) = match before {
            None => (over(flow.bytes(), flow.packets(), duration.max(Duration::from_secs(1))), now),
            Some(old) => {
                let bytes = flow.bytes().saturating_sub(old.flow.bytes());
                let packets = flow.packets().saturating_sub(old.flow.packets());
                let time = now.saturating_sub(old.changed);
                match packets {
                    1.. if !time.is_zero() => (over(bytes, packets, time), now),
                    _ if time > QUIET_AFTER => ([0.0; 2], old.changed),
                    _ => (old.rates, old.changed),
                }
            }
        };
        Self { flow, duration, rates, changed }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct QueueRates<'a> {
    pub(crate) queue: &'a QueueSnapshot,
    pub(crate) rate: f64,
    pub(crate) drops: f64,
    /// The share of the queue's pages that came from the local page cache. `None` if the queue
    /// needed no page.
    pub(crate) cache_hits: Option<f64>,
}
