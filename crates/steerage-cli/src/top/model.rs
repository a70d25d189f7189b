//! The data behind the screen: rates between two snapshots, and events.

use std::collections::{BTreeSet, VecDeque};

use super::events::{self, Event};
use super::snapshot::{ByName, Cpu, Output, Queue, Snapshot};

/// The most events that are kept. No screen shows more.
const EVENTS_MAX: usize = 200;

/// The last two snapshots of a run, and its events.
#[derive(Debug, Default)]
pub(super) struct Model {
    before: Snapshot,
    pub(super) now: Snapshot,
    /// The places and reasons of drops that continue.
    dropping: BTreeSet<String>,
    /// The events, the newest first.
    pub(super) events: VecDeque<Event>,
    /// The buckets of the selected queue, from the last update and from the one before.
    pub(super) buckets: Vec<Bucket>,
    buckets_before: Vec<Bucket>,
    buckets_of: usize,
    /// Why there is no newer snapshot.
    pub(super) gone: Option<String>,
}

/// One of a queue's buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) cpu: u16,
    /// The approximate number of packets so far.
    pub(super) packets: u64,
}

impl Model {
    /// Takes the next snapshot. If it belongs to another run, or counters decreased, the model
    /// starts over.
    pub(super) fn take(&mut self, snapshot: Snapshot) {
        let is_first = self.now.started.is_empty();
        let same = self.now.started == snapshot.started
            && self.now.seconds <= snapshot.seconds
            && self.now.received <= snapshot.received
            && self.now.cpus.len() == snapshot.cpus.len()
            && self.now.queues.len() == snapshot.queues.len();
        let was_gone = self.gone.take().is_some();
        if same {
            self.before = std::mem::replace(&mut self.now, snapshot);
            let new = events::between(&self.before, &self.now, &mut self.dropping);
            new.into_iter().for_each(|event| self.note(event));
            return;
        }
        // Rates of the first snapshot are the average since the start of the run.
        self.before = Snapshot {
            queues: vec![Queue::default(); snapshot.queues.len()],
            cpus: vec![Cpu::default(); snapshot.cpus.len()],
            outputs: vec![Output::default(); snapshot.outputs.len()],
            ..Snapshot::default()
        };
        self.now = snapshot;
        self.dropping.clear();
        if !is_first {
            let what = if was_gone { "a run is there again" } else { "another run" };
            self.note(Event { seconds: self.now.seconds, what: what.to_owned(), is_bad: false });
        }
    }

    /// Takes the buckets of the selected queue. After a change of the selection, all packets so far
    /// count as new.
    pub(super) fn take_buckets(&mut self, queue: usize, buckets: Vec<Bucket>) {
        self.buckets_before = std::mem::replace(&mut self.buckets, buckets);
        if std::mem::replace(&mut self.buckets_of, queue) != queue {
            self.buckets_before.clear();
        }
    }

    /// The CPU of each bucket of the selected queue, and its packets between the last two updates.
    pub(super) fn bucket_loads(&self) -> Vec<(u16, u64)> {
        let before = self.buckets_before.iter().map(|bucket| bucket.packets).chain(std::iter::repeat(0));
        let pairs = self.buckets.iter().zip(before);
        pairs.map(|(bucket, before)| (bucket.cpu, bucket.packets.saturating_sub(before))).collect()
    }

    /// Records why there is no next snapshot.
    pub(super) fn lose(&mut self, why: String) {
        if self.gone.is_none() {
            self.note(Event { seconds: self.now.seconds, what: "the run is gone".to_owned(), is_bad: false });
        }
        self.gone = Some(why);
    }

    /// Adds an event.
    pub(super) fn note(&mut self, event: Event) {
        self.events.push_front(event);
        self.events.truncate(EVENTS_MAX);
    }

    /// The seconds between the two snapshots.
    pub(super) fn interval(&self) -> f64 {
        self.now.seconds - self.before.seconds
    }

    /// The rate of `count` per second.
    pub(super) fn rate(&self, count: impl Fn(&Snapshot) -> u64) -> f64 {
        self.a_second(count(&self.now), count(&self.before))
    }

    fn a_second(&self, now: u64, before: u64) -> f64 {
        let time = self.interval();
        if time > 0.0 { now.saturating_sub(before) as f64 / time } else { 0.0 }
    }

    /// The rates of each CPU.
    pub(super) fn cpus(&self) -> Vec<CpuRates> {
        let all = self.rate(|of| of.cpus.iter().map(|cpu| cpu.processed).sum());
        let pairs = self.now.cpus.iter().zip(&self.before.cpus);
        pairs.map(|(now, before)| self.cpu(now, before, all)).collect()
    }

    fn cpu(&self, now: &Cpu, before: &Cpu, all: f64) -> CpuRates {
        let rate = self.a_second(now.processed, before.processed);
        let handled = now.processed.saturating_sub(before.processed);
        let inline = now.inline.saturating_sub(before.inline);
        let busy = (now.busy_seconds - before.busy_seconds).max(0.0) / self.interval().max(f64::MIN_POSITIVE);
        CpuRates {
            cpu: now.cpu,
            rate,
            share: if all > 0.0 { rate / all } else { 0.0 },
            busy: busy.min(1.0),
            inline: (handled > 0).then(|| (inline as f64 / handled as f64).min(1.0)),
            backlog: now.backlog,
            wakes: self.a_second(now.wakes_received, before.wakes_received),
            drops: self.a_second(total(&now.dropped), total(&before.dropped)),
        }
    }

    /// The rates of each queue.
    pub(super) fn queues(&self) -> Vec<QueueRates<'_>> {
        let pairs = self.now.queues.iter().zip(&self.before.queues);
        pairs.map(|(now, before)| self.queue(now, before)).collect()
    }

    fn queue<'a>(&self, now: &'a Queue, before: &Queue) -> QueueRates<'a> {
        let wanted = now.pool.wanted().saturating_sub(before.pool.wanted());
        let fast = now.pool.alloc_fast.saturating_sub(before.pool.alloc_fast);
        QueueRates {
            queue: now,
            rate: self.a_second(now.received, before.received),
            drops: self.a_second(total(&now.dropped), total(&before.dropped)),
            cache_hits: (wanted > 0).then(|| fast as f64 / wanted as f64),
        }
    }

    /// Each output, and its packets, bytes and lost packets per second.
    pub(super) fn outputs<'a>(&'a self) -> Vec<(&'a Output, [f64; 3])> {
        let rates = |(now, before): (&'a Output, &Output)| {
            let lost = self.a_second(total(&now.dropped), total(&before.dropped));
            (now, [self.a_second(now.packets, before.packets), self.a_second(now.bytes, before.bytes), lost])
        };
        self.now.outputs.iter().zip(&self.before.outputs).map(rates).collect()
    }
}

/// The sum of all counts.
pub(super) fn total(counts: &ByName) -> u64 {
    counts.values().sum()
}

/// The rates of a CPU, per second. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CpuRates {
    pub(super) cpu: u16,
    pub(super) rate: f64,
    pub(super) share: f64,
    pub(super) busy: f64,
    /// `None` if there were no packets.
    pub(super) inline: Option<f64>,
    pub(super) backlog: u64,
    pub(super) wakes: f64,
    pub(super) drops: f64,
}

/// The rates of a queue, per second.
#[derive(Clone, Debug)]
pub(super) struct QueueRates<'a> {
    pub(super) queue: &'a Queue,
    pub(super) rate: f64,
    pub(super) drops: f64,
    /// `None` if no page was needed.
    pub(super) cache_hits: Option<f64>,
}
