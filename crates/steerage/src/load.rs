//! What CPUs and buckets have to do, from the counters of the path: now and then, for the policies.

use std::time::Duration;

use crate::ledger::MoveCause;
use crate::ledger::QueueLedger;
use crate::limits::{
    BUCKETS, TIMED_PRIOR, WINDOW_FIRST, WINDOW_MAX, WINDOW_MIN, WINDOW_PART, WINDOW_SAMPLES, WINDOW_WEIGHT,
};
use crate::moves::State;
use crate::platform::Timestamp;
use crate::policy::{CpuLoad, GroupLoad, Window};
use crate::rps_map::CpuIndex;
use crate::shared::Core;

/// A CPU's counters at one time.
#[derive(Clone, Copy, Debug, Default)]
struct CpuCounts {
    busy: u64,
    receive: u64,
    processed: u64,
    rounds: u64,
    full_rounds: u64,
    /// For want of its time.
    dropped: u64,
}

impl CpuCounts {
    fn read(core: &Core, cpu: usize) -> Self {
        let ledger = &core.cpu_ledgers[cpu];
        Self {
            busy: ledger.busy_nanos.get(),
            receive: ledger.receive_nanos.get(),
            processed: ledger.processed.get(),
            full_rounds: ledger.full_rounds.get(),
            rounds: ledger.rounds.get(),
            dropped: core.queues.iter().map(|queue| queue.rings[cpu].by_producer.backlog_full.get()).sum(),
        }
    }

    fn load_since(&self, before: &Self, elapsed: Duration, packets: u64) -> CpuLoad {
        let nanos = elapsed.as_nanos().max(1) as f64;
        let processed = self.processed - before.processed;
        let wanted = (processed + self.dropped - before.dropped) as f64 / processed.max(1) as f64;
        let busy = (self.busy - before.busy) as f64 / nanos;
        let full = (self.full_rounds - before.full_rounds) as f64 / (self.rounds - before.rounds).max(1) as f64;
        CpuLoad {
            full,
            busy: busy * wanted.max(1.0),
            receive: ((self.receive - before.receive) as f64 / nanos).min(busy),
            packets,
            others: 0.0,
        }
    }
}

/// What the last look saw, and what the window under way began with.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    next: Timestamp,
    last: Timestamp,
    cpus: Vec<CpuCounts>,
    /// By queue, by CPU.
    finished: Vec<Vec<u64>>,
    window: Option<WindowStart>,
    /// When CPUs joined or left.
    changed: Timestamp,
}

#[derive(Debug)]
struct WindowStart {
    at: Timestamp,
    /// The slices that had moved by then: with one more, it is of two maps.
    slices: u64,
    cpus: Vec<CpuCounts>,
    queues: Vec<QueueCounts>,
}

/// A queue's counters by bucket, at one time.
#[derive(Debug)]
struct QueueCounts {
    samples: u64,
    packets: Vec<u64>,
    timed: Vec<(u64, u64)>,
}

impl QueueCounts {
    fn read(ledger: &QueueLedger) -> Self {
        Self {
            samples: ledger.samples.get(),
            packets: ledger.buckets.read().collect(),
            timed: ledger.timed.read().collect(),
        }
    }
}

/// What is known of a group's buckets, from all windows so far, the later ones more.
#[derive(Debug)]
pub(crate) struct BucketWork {
    /// Packets a second.
    packets: Vec<f64>,
    /// Time of timed packets, in nanoseconds, and how many.
    nanos: Vec<f64>,
    timed: Vec<f64>,
    samples: f64,
    begun: bool,
}

impl Default for BucketWork {
    fn default() -> Self {
        let zero = || vec![0.0; BUCKETS];
        Self { packets: zero(), nanos: zero(), timed: zero(), samples: 0.0, begun: false }
    }
}

impl BucketWork {
    fn take_in(&mut self, before: &[(&QueueCounts, QueueCounts)], elapsed: Duration) {
        let weight = if std::mem::replace(&mut self.begun, true) { WINDOW_WEIGHT } else { 1.0 };
        let seconds = elapsed.as_secs_f64();
        let mut samples = 0;
        let mut packets = vec![0u64; BUCKETS];
        self.nanos.iter_mut().for_each(|nanos| *nanos *= 1.0 - WINDOW_WEIGHT);
        self.timed.iter_mut().for_each(|timed| *timed *= 1.0 - WINDOW_WEIGHT);
        for (before, now) in before {
            samples += now.samples - before.samples;
            for (sum, (now, before)) in packets.iter_mut().zip(now.packets.iter().zip(&before.packets)) {
                *sum += now - before;
            }
            let timed = self.nanos.iter_mut().zip(&mut self.timed).zip(now.timed.iter().zip(&before.timed));
            for ((nanos, count), (now, before)) in timed {
                // A CPU that was declared dead and does not know it yet may have put an older count back.
                *nanos += now.0.saturating_sub(before.0) as f64;
                *count += now.1.saturating_sub(before.1) as f64;
            }
        }
        for (known, packets) in self.packets.iter_mut().zip(packets) {
            *known += weight * (packets as f64 / seconds - *known);
        }
        self.samples = self.samples * (1.0 - weight) + samples as f64;
    }

    /// Work in a second, in units that all buckets share: packets times how much longer than the average one takes. Where few
    /// were timed, that is not far from 1.
    fn work(&self) -> Vec<f64> {
        let timed: f64 = self.timed.iter().sum();
        let mean = if timed > 0.0 { self.nanos.iter().sum::<f64>() / timed } else { 1.0 };
        let known = self.nanos.iter().zip(&self.timed).zip(&self.packets);
        known
            .map(|((nanos, timed), packets)| {
                let longer = (nanos / mean.max(1.0) + TIMED_PRIOR) / (timed + TIMED_PRIOR);
                packets * longer
            })
            .collect()
    }
}

impl<M> State<M> {
    /// When load is to be looked at next: never, if no policy wants to.
    pub(crate) fn next_look(&self) -> Timestamp {
        if self.look_every().is_some() { self.load.next } else { Timestamp::from_nanos(u64::MAX) }
    }

    /// Has the policies look at the load, if it is time, and begins to move what they wish moved.
    pub(crate) fn look(&mut self, core: &Core, now: Timestamp) {
        let Some(every) = self.look_every().filter(|_| now >= self.load.next) else { return };
        self.load.next = now + every;
        let elapsed = now.since(std::mem::replace(&mut self.load.last, now));
        let cpus: Vec<CpuCounts> = (0..core.cpus.len()).map(|cpu| CpuCounts::read(core, cpu)).collect();
        let finished: Vec<Vec<u64>> =
            core.queues.iter().map(|q| q.rings.iter().map(|ring| ring.gauge.read().1).collect()).collect();
        let before = std::mem::replace(&mut self.load.cpus, cpus);
        let finished_before = std::mem::replace(&mut self.load.finished, finished);
        if before.is_empty() || !self.is_settled() {
            self.load.window = None;
            return;
        }
        let window = self.close_window(core, now);
        let window_closed = window.is_some();
        let mut to_measure = Vec::new();
        for group in 0..self.groups.len() {
            let queues = self.open_queues_of(group);
            if queues.is_empty() {
                continue;
            }
            let packets =
                |cpu: usize| queues.iter().map(|q| self.load.finished[*q][cpu] - finished_before[*q][cpu]).sum::<u64>();
            let cpus: Vec<CpuLoad> = (0..before.len())
                .map(|cpu| {
                    let load = self.load.cpus[cpu].load_since(&before[cpu], elapsed, packets(cpu));
                    CpuLoad { others: self.others[cpu], ..load }
                })
                .collect();
            let (order, owners) = self.order_of(group);
            let window = window.as_ref().map(|(cpus, buckets)| Window {
                cpus,
                buckets: &buckets[group],
                samples: self.groups[group].work.samples as u64,
            });
            let apart: Vec<Option<Duration>> =
                (0..before.len()).map(|cpu| self.distances.between(order[0], cpu as CpuIndex)).collect();
            let group = &mut self.groups[group];
            let map = &group.map.0;
            let load = GroupLoad { now, elapsed, order: &order, owners, map, cpus: &cpus, apart: &apart, window };
            let wish = group.policy.look(&load);
            to_measure.extend(group.policy.asks_distance().map(|cpu| (order[0], cpu)));
            let Some(wish) = wish else { continue };
            if wish.map.iter().all(|cpu| order.contains(cpu)) {
                if wish.cause != MoveCause::Balance {
                    self.load.changed = now;
                }
                (group.want.0, group.cause) = (wish.map, wish.cause);
            } else {
                tracing::error!(policy = group.policy.name(), "a policy wished for a CPU that it cannot have");
            }
        }
        if window_closed {
            self.look_for_elephants();
        }
        self.begin_slice();
        // One pair at a time, and not while a move keeps them busy.
        if self.is_settled() {
            to_measure.into_iter().any(|(asks, answers)| self.have_measured(asks, answers, now));
        }
    }

    /// Ends the window under way, if it has been long enough; and begins another. By CPU what it had to do, by group each
    /// bucket's share of a CPU's time.
    fn close_window(&mut self, core: &Core, now: Timestamp) -> Option<(Vec<CpuLoad>, Vec<Vec<f64>>)> {
        let slices = self.counts.slices;
        let fresh = |load: &LoadMeter| WindowStart {
            at: now,
            slices,
            cpus: load.cpus.clone(),
            queues: core.queues.iter().map(|queue| QueueCounts::read(&queue.ledger)).collect(),
        };
        let Some(start) = self.load.window.take().filter(|start| start.slices == slices) else {
            self.load.window = Some(fresh(&self.load));
            return None;
        };
        let elapsed = now.since(start.at);
        let samples: u64 =
            core.queues.iter().zip(&start.queues).map(|(q, then)| q.ledger.samples.get() - then.samples).sum();
        // Where one CPU has all, nothing is hashed and so nothing sampled: there is nothing to wait for.
        let active = self.active_cpus();
        let enough = active == 1 || samples >= WINDOW_SAMPLES * active as u64;
        let least = (now.since(self.load.changed) / WINDOW_PART).clamp(WINDOW_FIRST, WINDOW_MIN);
        if elapsed < least || (!enough && elapsed < WINDOW_MAX) {
            self.load.window = Some(start);
            return None;
        }
        let cpus: Vec<CpuLoad> = self
            .load
            .cpus
            .iter()
            .zip(&start.cpus)
            .map(|(now, then)| now.load_since(then, elapsed, now.processed - then.processed))
            .collect();
        for group in 0..self.groups.len() {
            let queues = self.open_queues_of(group);
            let counts: Vec<_> =
                queues.iter().map(|q| (&start.queues[*q], QueueCounts::read(&core.queues[*q].ledger))).collect();
            self.groups[group].work.take_in(&counts, elapsed);
        }
        self.load.window = Some(fresh(&self.load));
        let shares = self.shares(&cpus);
        Some((cpus, shares))
    }

    /// For each group and bucket, its share of its CPU's time: in all, what that CPU was busy with besides receiving.
    fn shares(&self, cpus: &[CpuLoad]) -> Vec<Vec<f64>> {
        let mut shares: Vec<Vec<f64>> = self.groups.iter().map(|group| group.work.work()).collect();
        let mut of_cpu = vec![0.0; cpus.len()];
        let mut held = vec![0.0; cpus.len()];
        for (group, work) in self.groups.iter().zip(&shares) {
            for (cpu, work) in group.map.0.iter().zip(work) {
                of_cpu[usize::from(*cpu)] += work;
                held[usize::from(*cpu)] += 1.0;
            }
        }
        for (group, shares) in self.groups.iter().zip(&mut shares) {
            for (cpu, share) in group.map.0.iter().zip(shares) {
                let cpu = usize::from(*cpu);
                let handling = cpus[cpu].busy - cpus[cpu].receive;
                // Where one CPU has all, nothing was sampled: in equal parts.
                *share = if of_cpu[cpu] > 0.0 { *share * handling / of_cpu[cpu] } else { handling / held[cpu] };
            }
        }
        shares
    }
}
