//! Decides which CPU polls a queue.
//!
//! A CPU that other programs, interrupts or guests of the hypervisor use has only the rest of its
//! time for receiving: `1 - others`. If the polling CPU has no time left, and another CPU of the
//! mask has more time for us, polling moves to that CPU. The buckets of the slowed CPU then go to
//! the CPUs that have buckets. So no work remains that competes with the other program, which is
//! often the source of the packets: the sender on a veth, or the softirq of the network card. If
//! CPUs are short of time afterwards, the policy decides whether the slowed CPU should help again.
//!
//! Whether that pays is measured, because the other program may follow, or may be the one that
//! waits for the packets. If all queues together receive less than before, polling and buckets
//! return. One queue may gain while the others lose more, so its own packets do not decide. After a
//! trial that failed, the next one waits a hundred times as long as the trial took, so such trials
//! take at most 1 % of the time. Bytes count, not packets, because the kernel merges more segments
//! of a connection if we have less time for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::{BUCKETS, WATCH_EVERY};
use steerage_core::placement::View;
use steerage_flow::Timestamp;
use steerage_ledger::Ledgers;

use crate::limits::Tuning;

/// A queue that another CPU should poll.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) queue: usize,
    pub(crate) from: CpuIndex,
    pub(crate) to: CpuIndex,
    /// The CPU of each bucket of the queue's group after the change.
    pub(crate) map: Map,
}

type Map = Box<[CpuIndex; BUCKETS]>;

/// A map without the CPU `from`. The buckets of `from` are divided equally among the other CPUs
/// with buckets and `to`.
fn without(map: &[CpuIndex; BUCKETS], from: CpuIndex, to: CpuIndex) -> Map {
    let mut cpus: Vec<CpuIndex> = map.iter().copied().filter(|cpu| *cpu != from).chain([to]).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let mut without = Box::new(*map);
    let left = without.iter_mut().filter(|cpu| **cpu == from);
    left.zip(cpus.into_iter().cycle()).for_each(|(left, cpu)| *left = cpu);
    without
}

/// A change that must prove that it pays.
#[derive(Clone, Debug)]
struct Trial {
    queue: usize,
    from: CpuIndex,
    to: CpuIndex,
    /// The map before the change, and the bytes that all queues received in a second.
    map: Map,
    rate: f64,
}

/// The counters of all queues and CPUs at one time.
#[derive(Clone, Debug)]
struct Counts {
    at: Timestamp,
    /// The received bytes, by queue.
    bytes: Vec<u64>,
    /// The CPU that polls each queue. `None` if polling may not move.
    owners: Vec<Option<CpuIndex>>,
    /// The busy time, by CPU.
    busy: Vec<u64>,
}

impl Counts {
    fn read(now: Timestamp, ledgers: &Ledgers) -> Self {
        Self {
            at: now,
            bytes: ledgers.queues.iter().map(|queue| queue.ledger.received_bytes.get()).collect(),
            owners: ledgers
                .queues
                .iter()
                .map(|queue| (!queue.owner_is_chosen.load(Ordering::Relaxed)).then(|| queue.owner()))
                .collect(),
            busy: ledgers.cpus.iter().map(|cpu| cpu.busy_nanos.get()).collect(),
        }
    }
}

/// The receivers of all queues.
#[derive(Debug, Default)]
pub(crate) struct Receivers {
    /// The start of the current measurement.
    window: Option<Counts>,
    /// The bytes that all queues received in a second, by the last measurement. `None` after a change.
    last: Option<f64>,
    trial: Option<Trial>,
    /// The earliest time of the next trial, by queue.
    not_before: Vec<Timestamp>,
}

/// The constants of `Balance`, to which this module belongs.
const TUNING: Tuning = Tuning::DEFAULT;

impl Receivers {
    /// Checks the queues of all groups, and returns the first queue that another CPU should poll.
    /// Call it while no bucket moves.
    pub(crate) fn look(&mut self, now: Timestamp, view: &View, ledgers: &Ledgers) -> Option<Change> {
        // The use by other programs is measured at this interval.
        if self.window.as_ref().is_some_and(|window| now.since(window.at) < WATCH_EVERY) {
            return None;
        }
        self.compare(Counts::read(now, ledgers), view)
    }

    /// Restarts the measurement after buckets have moved, because the earlier values belong to
    /// another state.
    pub(crate) fn begin_anew(&mut self) {
        self.window = None;
    }

    /// Ends the measurement, if there is one, and begins the next.
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
        let received: Vec<u64> = counts.bytes.iter().zip(&before.bytes).map(|(now, then)| now - then).collect();
        let rate = received.iter().sum::<u64>() as f64 / took.as_secs_f64();
        self.not_before.resize(received.len(), Timestamp::ZERO);
        let last = self.last.replace(rate);
        if self.trial.is_some() && last.is_none() {
            // The other program needs this long to get used to its CPU, and TCP to its rate.
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
        // A rate that grows or falls by itself says nothing about a trial.
        let last = last.filter(|last| (rate - last).abs() < rate * reserve)?;
        let others = |cpu: CpuIndex| view.others[usize::from(cpu)];
        let queues = view.groups.iter().flat_map(|group| group.queues.iter().map(move |queue| (*queue, group)));
        for (queue, group) in queues.filter(|(queue, _)| received[*queue] > 0) {
            let Some(owner) = counts.owners[queue].filter(|_| counts.at >= self.not_before[queue]) else { continue };
            if busy(owner) + others(owner) < TUNING.fill {
                continue;
            }
            // A move must gain more time than the reserve for bursts. Among equal CPUs, the first is chosen, because they are in
            // the order in which CPUs join.
            let gains = |to: &CpuIndex| others(*to) + reserve <= others(owner);
            let to = group.order.iter().copied().filter(gains).min_by(|a, b| others(*a).total_cmp(&others(*b)));
            if let Some(to) = to {
                let rate = (rate + last) / 2.0;
                self.trial = Some(Trial { queue, from: owner, to, map: group.map.clone(), rate });
                self.last = None;
                return Some(Change { queue, from: owner, to, map: without(&group.map, owner, to) });
            }
        }
        None
    }

    /// Ends a trial. Returns the way back if less is received than before.
    fn judge(&mut self, trial: Trial, rate: f64, counts: &Counts, took: Duration, view: &View) -> Option<Change> {
        let Trial { queue, from, to, map, rate: before } = trial;
        let next = counts.at + took.div_f64(TUNING.budget);
        self.not_before[queue] = next;
        if rate >= before * (1.0 - TUNING.noise) {
            return None;
        }
        self.not_before.fill(next);
        self.last = None;
        // If the other CPU has not taken the queue, only the map must be undone, and the policy does that.
        let group = view.groups.iter().find(|group| group.queues.contains(&queue))?;
        let is_possible = counts.owners[queue] == Some(to) && map.iter().all(|cpu| group.order.contains(cpu));
        is_possible.then_some(Change { queue, from: to, to: from, map })
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

    /// Two queues of one group, polled by CPUs 0 and 1. Both CPUs are busy, and others take half of CPU 1.
    fn two_queues(millis: u64, received: [u64; 2], owners: [CpuIndex; 2]) -> (Counts, View) {
        let at = Timestamp::ZERO + Duration::from_millis(millis);
        let busy = vec![at.as_nanos(); 2];
        let counts = Counts { at, bytes: received.to_vec(), owners: owners.map(Some).to_vec(), busy };
        let mut map = Box::new([0; BUCKETS]);
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = bucket as CpuIndex % 2);
        let queues = vec![0, 1];
        let group = GroupView { version: GroupVersion::default(), order: vec![0, 1], owners: 2, map, queues };
        (counts, View { is_settled: true, slices: 0, others: vec![0.0, 0.5], groups: vec![group] })
    }

    fn compare(receivers: &mut Receivers, millis: u64, received: [u64; 2], owners: [CpuIndex; 2]) -> Option<Change> {
        let (counts, view) = two_queues(millis, received, owners);
        receivers.compare(counts, &view)
    }

    /// A trial in which the queue that moves receives `moved` bytes, and the other one `stayed`. Before, each received 1,000.
    fn ends_with(moved: u64, stayed: u64) -> Option<Change> {
        let mut receivers = Receivers::default();
        let mut at = |millis, received, owners| compare(&mut receivers, millis, received, owners);
        assert_eq!([at(0, [0, 0], [0, 1]), at(250, [1000, 1000], [0, 1])], [None, None]);
        let begun = at(500, [2000, 2000], [0, 1]).expect("CPU 1 is slowed by others");
        assert_eq!((begun.queue, begun.from, begun.to), (1, 1, 0));
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
        assert_eq!((back.queue, back.from, back.to), (1, 0, 1));
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
}
