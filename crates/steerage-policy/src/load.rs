//! The load meter measures how long CPUs are busy, and how much of this time each bucket takes.
//!
//! Three counters exist only for the meter: the time for receiving, measured in one of 16 rounds;
//! the time of a packet in the packet function, measured in one of 32 batches; and the bucket of
//! one packet per poll. The work of CPUs is measured completely, and decides whether buckets move.
//! The load of buckets is sampled, and decides only which buckets move.

use std::time::Duration;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::{BUCKETS, RECEIVE_TIMED_ONCE_IN};
use steerage_core::placement::View;
use steerage_flow::Timestamp;
use steerage_ledger::{DropReason, Ledgers, QueueLedger};

use crate::limits::{MIN_SAMPLES, REFINE_EVERY, Tuning};
use crate::others::OthersWant;
use crate::policy::CpuLoad;

#[derive(Clone, Copy, Debug, Default)]
struct CpuCounts {
    busy: u64,
    receive: u64,
    processed: u64,
    rounds: u64,
    full_rounds: u64,
    dropped: u64,
}

impl CpuCounts {
    fn read(ledgers: &Ledgers, cpu: usize, dropped: u64) -> Self {
        let ledger = &ledgers.cpus[cpu];
        Self {
            busy: ledger.busy_nanos.get(),
            receive: ledger.receive_nanos.get(),
            processed: ledger.processed.get(),
            full_rounds: ledger.full_rounds.get(),
            rounds: ledger.rounds.get(),
            dropped,
        }
    }
}

/// For each CPU, the number of packets that its full backlog refused. Only the rings of queues that
/// lost packets are read, because with 1,024 CPUs and 256 queues there are 262,144 rings.
#[derive(Debug, Default)]
struct Refused {
    by_queue: Vec<(u64, Vec<u64>)>,
    by_cpu: Vec<u64>,
}

impl Refused {
    fn read(&mut self, ledgers: &Ledgers) -> &[u64] {
        self.by_cpu.resize(ledgers.cpus.len(), 0);
        self.by_queue.resize_with(ledgers.queues.len(), Default::default);
        for (queue, (sum, known)) in ledgers.queues.iter().zip(&mut self.by_queue) {
            let now = queue.ledger.dropped.read().get(DropReason::BacklogFull);
            if std::mem::replace(sum, now) == now {
                continue;
            }
            known.resize(queue.rings.len(), 0);
            for ((ring, known), cpu) in queue.rings.iter().zip(known).zip(&mut self.by_cpu) {
                let now = ring.by_producer.backlog_full.get();
                *cpu += now - std::mem::replace(known, now);
            }
        }
        &self.by_cpu
    }
}

fn load_since(now: &CpuCounts, before: &CpuCounts, elapsed: Duration, packets: u64) -> CpuLoad {
    let nanos = elapsed.as_nanos().max(1) as f64;
    let processed = now.processed - before.processed;
    let wanted = (processed + now.dropped - before.dropped) as f64 / processed.max(1) as f64;
    let busy = (now.busy - before.busy) as f64 / nanos;
    let rounds = (now.rounds - before.rounds) as f64;
    let full = (now.full_rounds - before.full_rounds) as f64 / rounds.max(1.0);
    CpuLoad {
        full,
        timed: rounds / f64::from(RECEIVE_TIMED_ONCE_IN),
        busy: busy * wanted.max(1.0),
        receive: ((now.receive - before.receive) as f64 / nanos).min(busy),
        packets,
        others: 0.0,
        others_want: 0.0,
    }
}

#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    last: Timestamp,
    cpus: Vec<CpuCounts>,
    /// For each queue, the packets that each CPU has finished. Empty if one group has all queues.
    finished: Vec<Vec<u64>>,
    refused: Refused,
    window: Option<WindowStart>,
    changed: Timestamp,
}

#[derive(Debug)]
struct WindowStart {
    at: Timestamp,
    /// The number of slices (sets of buckets) that had moved before the window began. If buckets
    /// move during a window, two bucket maps were in effect, and the window's results are
    /// discarded.
    slices: u64,
    cpus: Vec<CpuCounts>,
    groups: Vec<GroupCounts>,
}

impl WindowStart {
    fn samples(&self) -> u64 {
        self.groups.iter().map(|group| group.samples).sum()
    }

    fn has_groups_of(&self, view: &View) -> bool {
        self.groups.len() == view.groups.len()
            && self.groups.iter().zip(&view.groups).all(|(then, now)| then.queues == now.queues)
    }
}

/// The sums of the counts over a group's queues. Separate counts for 256 queues would take 25 MB.
#[derive(Debug)]
struct GroupCounts {
    queues: Vec<usize>,
    samples: u64,
    packets: Vec<u64>,
    /// For each bucket, the nanoseconds and the number of its timed packets.
    timed: Vec<(u64, u64)>,
}

impl GroupCounts {
    fn read(ledgers: &Ledgers, queues: &[usize]) -> Self {
        let (mut samples, mut packets, mut timed) = (0, vec![0; BUCKETS], vec![(0, 0); BUCKETS]);
        for queue in queues {
            let ledger: &QueueLedger = &ledgers.queues[*queue].ledger;
            samples += ledger.samples.get();
            packets.iter_mut().zip(ledger.buckets.read()).for_each(|(sum, packets)| *sum += packets);
            timed.iter_mut().zip(ledger.timed.read()).for_each(|(sum, (nanos, count))| {
                sum.0 += nanos;
                sum.1 += count;
            });
        }
        Self { queues: queues.to_vec(), samples, packets, timed }
    }
}

/// The load of a group's buckets, from all windows that have ended, weighted by recency.
#[derive(Debug)]
pub(crate) struct BucketWork {
    packets: Vec<f64>,
    nanos: Vec<f64>,
    timed: Vec<f64>,
    pub(crate) samples: f64,
    begun: bool,
}

impl Default for BucketWork {
    fn default() -> Self {
        let zero = || vec![0.0; BUCKETS];
        Self { packets: zero(), nanos: zero(), timed: zero(), samples: 0.0, begun: false }
    }
}

const TUNING: Tuning = Tuning::DEFAULT;

impl BucketWork {
    fn take_in(&mut self, before: &GroupCounts, now: &GroupCounts, elapsed: Duration) {
        let weight = if std::mem::replace(&mut self.begun, true) { TUNING.recent } else { 1.0 };
        let seconds = elapsed.as_secs_f64();
        self.nanos.iter_mut().for_each(|nanos| *nanos *= 1.0 - TUNING.recent);
        self.timed.iter_mut().for_each(|timed| *timed *= 1.0 - TUNING.recent);
        let timed = self.nanos.iter_mut().zip(&mut self.timed).zip(now.timed.iter().zip(&before.timed));
        for ((nanos, count), (now, before)) in timed {
            // A CPU that was declared dead may still have written an older count.
            *nanos += now.0.saturating_sub(before.0) as f64;
            *count += now.1.saturating_sub(before.1) as f64;
        }
        for (known, (now, before)) in self.packets.iter_mut().zip(now.packets.iter().zip(&before.packets)) {
            *known += weight * ((now - before) as f64 / seconds - *known);
        }
        self.samples = self.samples * (1.0 - weight) + (now.samples - before.samples) as f64;
    }

    /// The work of each bucket per second: its packets, multiplied by the ratio of their mean time
    /// to the mean time of all packets. The fewer of a bucket's packets were timed, the closer its
    /// ratio is assumed to be to 1.
    pub(crate) fn work(&self) -> Vec<f64> {
        let timed: f64 = self.timed.iter().sum();
        let mean = if timed > 0.0 { self.nanos.iter().sum::<f64>() / timed } else { 1.0 };
        let known = self.nanos.iter().zip(&self.timed).zip(&self.packets);
        known
            .map(|((nanos, timed), packets)| {
                let longer = (nanos / mean.max(1.0) + f64::from(MIN_SAMPLES)) / (timed + f64::from(MIN_SAMPLES));
                packets * longer
            })
            .collect()
    }
}

pub(crate) struct Interval {
    pub(crate) elapsed: Duration,
    before: Vec<CpuCounts>,
    finished_before: Vec<Vec<u64>>,
    pub(crate) window: Option<ClosedWindow>,
}

pub(crate) struct ClosedWindow {
    pub(crate) cpus: Vec<CpuLoad>,
    pub(crate) shares: Vec<Vec<f64>>,
    pub(crate) heavy: Vec<Heavy>,
}

/// A bucket that takes more than half of a CPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heavy {
    pub(crate) group: usize,
    pub(crate) bucket: u16,
    /// The CPU that polls the queue from which most of the bucket's work comes.
    pub(crate) home: CpuIndex,
}

impl LoadMeter {
    /// Returns `None` at first, and while a bucket moves. `work` is updated at the end of a window.
    pub(crate) fn check(
        &mut self,
        now: Timestamp,
        ledgers: &Ledgers,
        view: &View,
        work: &mut [&mut BucketWork],
    ) -> Option<Interval> {
        let elapsed = now.since(std::mem::replace(&mut self.last, now));
        let dropped = self.refused.read(ledgers).iter().enumerate();
        let cpus: Vec<CpuCounts> = dropped.map(|(cpu, dropped)| CpuCounts::read(ledgers, cpu, *dropped)).collect();
        let has_several_groups = view.groups.iter().filter(|group| !group.queues.is_empty()).count() > 1;
        let queues = ledgers.queues.iter().filter(|_| has_several_groups);
        let finished: Vec<Vec<u64>> =
            queues.map(|q| q.rings.iter().map(|ring| ring.by_consumer.finished.get()).collect()).collect();
        let before = std::mem::replace(&mut self.cpus, cpus);
        let finished_before = std::mem::replace(&mut self.finished, finished);
        if before.is_empty() || !view.is_settled {
            self.window = None;
            return None;
        }
        let window = self.close_window(ledgers, view, work);
        Some(Interval { elapsed, before, finished_before, window })
    }

    /// The load of each CPU since the last load check, counting only the packets from `queues`.
    pub(crate) fn loads(
        &self,
        interval: &Interval,
        queues: &[usize],
        others: &[f64],
        want: &OthersWant,
    ) -> Vec<CpuLoad> {
        let packets = |cpu: usize| {
            let by_queue = self.finished.iter().zip(&interval.finished_before).enumerate();
            match self.finished.is_empty() || interval.finished_before.is_empty() {
                true => self.cpus[cpu].processed - interval.before[cpu].processed,
                false => {
                    by_queue.filter(|(q, _)| queues.contains(q)).map(|(_, (now, before))| now[cpu] - before[cpu]).sum()
                }
            }
        };
        let cpus = (0..interval.before.len()).map(|cpu| {
            let load = load_since(&self.cpus[cpu], &interval.before[cpu], interval.elapsed, packets(cpu));
            CpuLoad { others: others[cpu], others_want: want.of(cpu), ..load }
        });
        cpus.collect()
    }

    pub(crate) fn cpus_changed(&mut self, now: Timestamp) {
        self.changed = now;
    }

    fn close_window(&mut self, ledgers: &Ledgers, view: &View, work: &mut [&mut BucketWork]) -> Option<ClosedWindow> {
        let now = self.last;
        let fresh = |cpus: &[CpuCounts]| WindowStart {
            at: now,
            slices: view.slices,
            cpus: cpus.to_vec(),
            groups: view.groups.iter().map(|group| GroupCounts::read(ledgers, &group.queues)).collect(),
        };
        let is_same = |start: &WindowStart| start.slices == view.slices && start.has_groups_of(view);
        let Some(start) = self.window.take().filter(is_same) else {
            self.window = Some(fresh(&self.cpus));
            return None;
        };
        let elapsed = now.since(start.at);
        let queues = view.groups.iter().flat_map(|group| &group.queues);
        let samples = queues.map(|queue| ledgers.queues[*queue].ledger.samples.get()).sum::<u64>() - start.samples();
        // While one CPU has all buckets, packets are not sampled.
        let active = active_cpus(view, ledgers.cpus.len());
        let enough = active == 1 || samples as f64 >= TUNING.samples() * active as f64;
        // The first windows are short, because the first placement of buckets was a guess. Later
        // windows are long, so that a program that takes a CPU for a moment has little effect.
        let least = now.since(self.changed).mul_f64(TUNING.recent).clamp(2 * REFINE_EVERY, TUNING.probe);
        if elapsed < least || (!enough && elapsed < TUNING.dwell) {
            self.window = Some(start);
            return None;
        }
        let cpus: Vec<CpuLoad> = self
            .cpus
            .iter()
            .zip(&start.cpus)
            .map(|(now, then)| load_since(now, then, elapsed, now.processed - then.processed))
            .collect();
        let end = fresh(&self.cpus);
        for ((before, now), work) in start.groups.iter().zip(&end.groups).zip(work.iter_mut()) {
            work.take_in(before, now, elapsed);
        }
        let work: Vec<&BucketWork> = work.iter().map(|work| &**work).collect();
        let shares = shares(view, &work, &cpus);
        // The time of a bucket's timed packets shows from which queue most of its work comes.
        let heavy = heavy(view, &shares, |queue, bucket| {
            let timed = ledgers.queues[queue].ledger.timed.read().nth(bucket);
            (timed.map_or(0, |(nanos, _)| nanos), ledgers.queues[queue].owner())
        });
        self.window = Some(end);
        Some(ClosedWindow { cpus, shares, heavy })
    }
}

/// `work_from` returns how much time a queue took for a bucket, and which CPU polls the queue.
fn heavy(view: &View, shares: &[Vec<f64>], work_from: impl Fn(usize, usize) -> (u64, CpuIndex)) -> Vec<Heavy> {
    let mut heavy = Vec::new();
    for (group, (seen, shares)) in view.groups.iter().zip(shares).enumerate() {
        for (bucket, _) in shares.iter().enumerate().filter(|(_, share)| **share > 0.5) {
            let from = seen.queues.iter().map(|queue| work_from(*queue, bucket)).max_by_key(|(nanos, _)| *nanos);
            heavy.extend(from.map(|(_, home)| Heavy { group, bucket: bucket as u16, home }));
        }
    }
    heavy
}

fn active_cpus(view: &View, cpus: usize) -> usize {
    let mut has = vec![false; cpus];
    view.groups.iter().flat_map(|group| group.map.iter()).for_each(|cpu| has[usize::from(*cpu)] = true);
    has.into_iter().filter(|has| *has).count()
}

/// Returns the share of CPU time of each group's buckets, without the time for receiving.
fn shares(view: &View, work: &[&BucketWork], cpus: &[CpuLoad]) -> Vec<Vec<f64>> {
    let mut shares: Vec<Vec<f64>> = work.iter().map(|work| work.work()).collect();
    let mut of_cpu = vec![0.0; cpus.len()];
    let mut held = vec![0.0; cpus.len()];
    for (group, work) in view.groups.iter().zip(&shares) {
        for (cpu, work) in group.map.iter().zip(work) {
            of_cpu[usize::from(*cpu)] += work;
            held[usize::from(*cpu)] += 1.0;
        }
    }
    for (group, shares) in view.groups.iter().zip(&mut shares) {
        for (cpu, share) in group.map.iter().zip(shares) {
            let cpu = usize::from(*cpu);
            let handling = cpus[cpu].busy - cpus[cpu].receive;
            *share = if of_cpu[cpu] > 0.0 { *share * handling / of_cpu[cpu] } else { handling / held[cpu] };
        }
    }
    shares
}
