//! Lets another CPU poll a queue, or gives a heavy flow to the receiving CPU, if this pays.
//!
//! Other programs, interrupts or guests of the hypervisor leave only a share of a CPU's time for
//! receiving: `1 - others`. If the polling CPU has no time left, and another CPU of the mask has
//! more time for steerage, the other CPU takes over the polling. The buckets of the previous CPU
//! move to the remaining CPUs, so that steerage does not compete with other programs on the
//! previous CPU, which are often the source of the packets (the sender on a veth, or the softirq of
//! the network card). If CPUs are short of time after another CPU has taken over the polling, the
//! policy decides whether the previous CPU gets buckets again.
//!
//! If several CPUs poll, a heavy flow may cost less on the CPU that receives it, without a
//! hand-over: for super-frames of 64 KiB, a far CPU needs twice as long as the receiving CPU. If
//! the CPU that receives a heavy flow has time left, the flow's bucket moves to this CPU.
//!
//! A change of the CPU that polls a queue or handles a heavy flow is at first a trial. A trial may
//! not help, because the scheduler may move the competing program to the new CPU too, or because
//! the competing program may wait for the packets. If all queues together receive fewer bytes than
//! before, the change is reverted. (The queue that another CPU now polls may gain less than the
//! other queues lose.) After a failed trial, the next trial waits a hundred times as long as the
//! trial took, so that failed trials take at most 1 % of the time. Bytes are compared and not
//! packets, because the kernel merges more segments into one packet if steerage has less CPU time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::{BUCKETS, WATCH_EVERY};
use steerage_core::placement::View;
use steerage_flow::Timestamp;
use steerage_ledger::Ledgers;

use crate::limits::Tuning;
use crate::load::Heavy;
use crate::packing::members;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) queue: usize,
    pub(crate) polled_on: Option<CpuIndex>,
    pub(crate) map: Map,
}

type Map = Box<[CpuIndex; BUCKETS]>;

/// The buckets of `from` are divided equally among `to` and the other CPUs with buckets.
fn without(map: &[CpuIndex; BUCKETS], from: CpuIndex, to: CpuIndex) -> Map {
    let mut cpus: Vec<CpuIndex> = map.iter().copied().filter(|cpu| *cpu != from).chain([to]).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let mut without = Box::new(*map);
    let left = without.iter_mut().filter(|cpu| **cpu == from);
    left.zip(cpus.into_iter().cycle()).for_each(|(left, cpu)| *left = cpu);
    without
}

#[derive(Clone, Debug)]
struct Trial {
    queue: usize,
    from: CpuIndex,
    map: Map,
    to: CpuIndex,
    rate: f64,
}

#[derive(Clone, Debug)]
struct Counts {
    at: Timestamp,
    bytes: Vec<u64>,
    polled_on: Vec<CpuIndex>,
    is_free: Vec<bool>,
    busy: Vec<u64>,
}

impl Counts {
    fn read(now: Timestamp, ledgers: &Ledgers) -> Self {
        Self {
            at: now,
            bytes: ledgers.queues.iter().map(|queue| queue.ledger.received_bytes.get()).collect(),
            polled_on: ledgers.queues.iter().map(|queue| queue.owner()).collect(),
            is_free: ledgers.queues.iter().map(|queue| !queue.owner_is_chosen.load(Ordering::Relaxed)).collect(),
            busy: ledgers.cpus.iter().map(|cpu| cpu.busy_nanos.get()).collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Receivers {
    window: Option<Counts>,
    /// The bytes per second of all queues in the last measurement. `None` after a change.
    last: Option<f64>,
    trial: Option<Trial>,
    not_before: Vec<Timestamp>,
    heavy: Vec<Heavy>,
    home_not_before: Timestamp,
}

const TUNING: Tuning = Tuning::DEFAULT;

impl Receivers {
    /// Returns the change that begins or reverts a trial. To be called while no bucket moves.
    pub(crate) fn check(&mut self, now: Timestamp, view: &View, ledgers: &Ledgers) -> Option<Change> {
        // The time that other programs take is measured only once per `WATCH_EVERY`.
        if self.window.as_ref().is_some_and(|window| now.since(window.at) < WATCH_EVERY) {
            return None;
        }
        self.compare(Counts::read(now, ledgers), view)
    }

    pub(crate) fn begin_anew(&mut self) {
        self.window = None;
    }

    pub(crate) fn note_heavy(&mut self, heavy: &[Heavy]) {
        self.heavy.clear();
        self.heavy.extend_from_slice(heavy);
    }

    fn compare(&mut self, counts: Counts, view: &View) -> Option<Change> {
        let before = self.window.take().filter(|before| before.bytes.len() == counts.bytes.len());
        let change = before.and_then(|before| self.decide(&before, &counts, view));
        if change.is_none() {
            self.window = Some(counts);
        }
        change
    }

    fn decide(&mut self, before: &Counts, counts: &Counts, view: &View) -> Option<Change> {
        let took = counts.at.since(before.at);
        let received: Vec<u64> =
            counts.bytes.iter().zip(&before.bytes).map(|(now, then)| now.saturating_sub(*then)).collect();
        let rate = received.iter().sum::<u64>() as f64 / took.as_secs_f64();
        self.not_before.resize(received.len(), Timestamp::ZERO);
        let last = self.last.replace(rate);
        if self.trial.is_some() && last.is_none() {
            // After a change of the receiving CPU, programs that compete for this CPU adapt, and
            // TCP adapts its rate.
            return None;
        }
        if let Some(trial) = self.trial.take() {
            return self.judge(trial, rate, counts, 2 * took, view);
        }
        let busy = |cpu: CpuIndex| {
            let cpu = usize::from(cpu);
            counts.busy[cpu].saturating_sub(before.busy[cpu]) as f64 / took.as_nanos() as f64
        };
        let reserve = 1.0 - TUNING.fill;
        // A rate that changes by itself cannot be used to judge a trial.
        let last = last.filter(|last| (rate - last).abs() < rate * reserve)?;
        let rate = (rate + last) / 2.0;
        let others = |cpu: CpuIndex| view.others[usize::from(cpu)];
        let idle = |cpu: CpuIndex| 1.0 - busy(cpu) - others(cpu);
        let queues = view.groups.iter().flat_map(|group| group.queues.iter().map(move |queue| (*queue, group)));
        for (queue, group) in queues.filter(|(queue, _)| received[*queue] > 0) {
            let from = counts.polled_on[queue];
            if idle(from) > reserve || !counts.is_free[queue] || counts.at < self.not_before[queue] {
                continue;
            }
            // Other programs must leave the CPU `to` more time than the CPU `from`, by at least the
            // reserve for bursts. Of equally good CPUs, the first in the group's order is chosen.
            let gains = |to: &CpuIndex| others(*to) + reserve <= others(from);
            let to = group.order.iter().copied().filter(gains).min_by(|a, b| others(*a).total_cmp(&others(*b)));
            if let Some(to) = to {
                self.begin(Trial { queue, from, to, map: group.map.clone(), rate });
                return Some(Change { queue, polled_on: Some(to), map: without(&group.map, from, to) });
            }
        }
        for Heavy { group, bucket, home } in self.heavy.iter().filter(|_| counts.at >= self.home_not_before) {
            let Some(group) = view.groups.get(*group).filter(|group| group.owners > 1) else { continue };
            let at = group.map[usize::from(*bucket)];
            let helps = at != *home && group.order.contains(home) && idle(at) <= reserve && idle(*home) > reserve;
            if let (true, Some(queue)) = (helps, group.queues.first()) {
                let mut map = group.map.clone();
                map[usize::from(*bucket)] = *home;
                let owner = counts.polled_on[*queue];
                self.begin(Trial { queue: *queue, from: owner, to: owner, map: group.map.clone(), rate });
                return Some(Change { queue: *queue, polled_on: None, map });
            }
        }
        None
    }

    fn begin(&mut self, trial: Trial) {
        self.trial = Some(trial);
        self.last = None;
    }

    fn judge(&mut self, trial: Trial, rate: f64, counts: &Counts, took: Duration, view: &View) -> Option<Change> {
        let Trial { queue, from, to, map, rate: before } = trial;
        let next = counts.at + took.div_f64(TUNING.budget);
        let is_home = from == to;
        *if is_home { &mut self.home_not_before } else { &mut self.not_before[queue] } = next;
        if rate >= before * (1.0 - TUNING.noise) {
            return None;
        }
        self.not_before.fill(next);
        self.home_not_before = next;
        self.last = None;
        // If `to` does not poll the queue yet, the bucket map is left to the policy.
        let group = view.groups.iter().find(|group| group.queues.contains(&queue))?;
        let is_possible = counts.polled_on[queue] == to && map.iter().all(members(&group.order));
        is_possible.then_some(Change { queue, polled_on: (!is_home).then_some(from), map })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steerage_core::placement::{GroupVersion, GroupView};

    #[test]
    fn the_buckets_of_a_slowed_cpu_go_to_those_that_have_some() {
        let count = |map: &Map, cpu| map.iter().filter(|owner| **owner == cpu).count();
        let mut map = [0; BUCKETS];
        assert_eq!(count(&without(&map, 0, 5), 5), BUCKETS, "it had all of them");
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = bucket as CpuIndex % 4);
        let spread = without(&map, 0, 5);
        assert_eq!([0, 1, 2, 3, 5].map(|cpu| count(&spread, cpu)), [0, 1280, 1280, 1280, 256]);
    }

    fn two_queues(millis: u64, received: [u64; 2], polled_on: [CpuIndex; 2]) -> (Counts, View) {
        let at = Timestamp::ZERO + Duration::from_millis(millis);
        let busy = vec![at.as_nanos(); 2];
        let counts =
            Counts { at, bytes: received.to_vec(), polled_on: polled_on.to_vec(), is_free: vec![true; 2], busy };
        let mut map = Box::new([0; BUCKETS]);
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = bucket as CpuIndex % 2);
        let queues = vec![0, 1];
        let group = GroupView { version: GroupVersion::default(), order: vec![0, 1], owners: 2, map, queues };
        (counts, View { is_settled: true, slices: 0, others: vec![0.0, 0.5], groups: vec![group] })
    }

    fn compare(receivers: &mut Receivers, millis: u64, received: [u64; 2], polled_on: [CpuIndex; 2]) -> Option<Change> {
        let (counts, view) = two_queues(millis, received, polled_on);
        receivers.compare(counts, &view)
    }

    fn ends_with(moved: u64, stayed: u64) -> Option<Change> {
        let mut receivers = Receivers::default();
        let mut at = |millis, received, polled_on| compare(&mut receivers, millis, received, polled_on);
        assert_eq!([at(0, [0, 0], [0, 1]), at(250, [1000, 1000], [0, 1])], [None, None]);
        let begun = at(500, [2000, 2000], [0, 1]).expect("CPU 1 is slowed by others");
        assert_eq!((begun.queue, begun.polled_on), (1, Some(0)));
        assert_eq!(at(550, [2300, 2300], [0, 0]), None, "a new measurement begins");
        assert_eq!(at(800, [2300, 2300], [0, 0]), None, "the first quarter of a second says nothing");
        let ended = at(1050, [2300 + stayed, 2300 + moved], [0, 0]);
        assert_eq!([at(1100, [5000, 5000], [0, 1]), at(1350, [6000, 6000], [0, 1])], [None, None]);
        assert_eq!(at(1600, [7000, 7000], [0, 1]), None, "the next trial waits for 50 s");
        ended
    }

    #[test]
    fn a_trial_is_judged_by_all_queues() {
        assert_eq!(ends_with(1100, 850), None, "0.975 of all bytes is within noise");
        let back = ends_with(1100, 700).expect("the queue that moved gained, and the other one lost more");
        assert_eq!((back.queue, back.polled_on), (1, Some(1)));
        assert_eq!(back.map[..4], [0, 1, 0, 1]);
    }

    #[test]
    fn a_trial_waits_until_the_rate_is_steady() {
        let begins = |first: u64| {
            let mut receivers = Receivers::default();
            let mut at = |millis, received| compare(&mut receivers, millis, received, [0, 1]);
            assert_eq!([at(0, [0, 0]), at(250, [first, first])], [None, None]);
            at(500, [first + 1000, first + 1000]).is_some()
        };
        assert!(begins(950) && begins(1050) && !begins(800) && !begins(1200));
    }

    #[test]
    fn a_heavy_bucket_goes_home_if_its_cpu_is_full() {
        let begins = |home: CpuIndex, busy_at_home: f64| {
            let mut receivers = Receivers::default();
            receivers.note_heavy(&[Heavy { group: 0, bucket: 1, home }]);
            let mut at = |millis, received| {
                let (mut counts, mut view) = two_queues(millis, received, [0, 1]);
                counts.busy[0] = (counts.at.as_nanos() as f64 * busy_at_home) as u64;
                view.others = vec![0.1, 0.0];
                receivers.compare(counts, &view)
            };
            assert_eq!([at(0, [0, 0]), at(250, [1000, 1000])], [None, None]);
            let begun = at(500, [2000, 2000])?;
            assert_eq!([at(550, [2000, 2000]), at(800, [2800, 2800])], [None, None]);
            let back = at(1050, [3600, 3600]).expect("0.8 is less than before");
            assert_eq!((back.polled_on, back.map[..2].to_vec()), (None, vec![0, 1]));
            Some(begun)
        };
        let begun = begins(0, 0.1).expect("CPU 0 has time");
        assert_eq!((begun.polled_on, begun.map[..4].to_vec()), (None, vec![0, 0, 0, 1]));
        assert_eq!([begins(0, 0.8), begins(1, 0.1)], [None, None], "no time at home, or it is at home");
    }
}
