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
//! waits for the packets. If less is received than before, polling and buckets return. A trial is
//! repeated after a hundred times its own duration, so trials take at most 1 % of the time.

use std::sync::atomic::Ordering;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::{BUCKETS, WATCH_EVERY};
use steerage_core::placement::{GroupView, View};
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
    from: CpuIndex,
    to: CpuIndex,
    /// The map and the packets per second before the change.
    map: Map,
    rate: f64,
}

/// The knowledge about the receiver of one queue.
#[derive(Clone, Debug, Default)]
struct Receiver {
    /// The time, the number of received packets and the busy time of the CPU at the start of the
    /// current measurement.
    window: Option<(Timestamp, u64, u64)>,
    trial: Option<Trial>,
    /// The earliest time of the next trial.
    not_before: Timestamp,
}

/// The receivers of all queues.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<Receiver>);

/// The constants of `Balance`, to which this module belongs.
const TUNING: Tuning = Tuning::DEFAULT;

impl Receivers {
    /// Checks the queues of all groups, and returns the first queue that another CPU should poll.
    /// Call it while no bucket moves.
    pub(crate) fn look(&mut self, now: Timestamp, view: &View, ledgers: &Ledgers) -> Option<Change> {
        self.0.resize_with(ledgers.queues.len(), Receiver::default);
        let queues = view.groups.iter().flat_map(|group| group.queues.iter().map(move |queue| (*queue, group)));
        let is_free = |queue: &usize| !ledgers.queues[*queue].owner_is_chosen.load(Ordering::Relaxed);
        for (queue, group) in queues.filter(|(queue, _)| is_free(queue)) {
            let owner = ledgers.queues[queue].owner();
            let (received, busy) =
                (ledgers.queues[queue].ledger.received.get(), ledgers.cpus[usize::from(owner)].busy_nanos.get());
            let change = self.0[queue].look(now, queue, owner, (received, busy), group, &view.others);
            if change.is_some() {
                return change;
            }
        }
        None
    }

    /// Restarts the measurements after buckets have moved, because the earlier values belong to
    /// another state.
    pub(crate) fn begin_anew(&mut self) {
        self.0.iter_mut().for_each(|receiver| receiver.window = None);
    }
}

impl Receiver {
    fn look(
        &mut self,
        now: Timestamp,
        queue: usize,
        owner: CpuIndex,
        (received, busy): (u64, u64),
        group: &GroupView,
        others: &[f64],
    ) -> Option<Change> {
        let (since, received_before, busy_before) = *self.window.get_or_insert((now, received, busy));
        let took = now.since(since);
        // The use by other programs is measured at this interval.
        if took < WATCH_EVERY {
            return None;
        }
        self.window = None;
        let rate = received.saturating_sub(received_before) as f64 / took.as_secs_f64();
        if let Some(Trial { from, to, map, rate: before }) = self.trial.take() {
            self.not_before = now + took.div_f64(TUNING.budget);
            // If the other CPU has not taken the queue, only the map must be undone, and the policy
            // does that.
            let is_worse = owner == to && rate < before * (1.0 - TUNING.noise);
            let is_possible = map.iter().all(|cpu| group.order.contains(cpu));
            return (is_worse && is_possible).then_some(Change { queue, from: to, to: from, map });
        }
        let time_left = |cpu: CpuIndex| 1.0 - others[usize::from(cpu)];
        let used = busy.saturating_sub(busy_before) as f64 / took.as_nanos() as f64 + others[usize::from(owner)];
        if now < self.not_before || rate == 0.0 || used < TUNING.fill {
            return None;
        }
        // Among equal CPUs, the first is chosen, because they are in the order in which CPUs join.
        let to = group.order.iter().copied().rev().max_by(|a, b| time_left(*a).total_cmp(&time_left(*b)))?;
        // A move must gain more time than the reserve for bursts.
        if time_left(to) < time_left(owner) + (1.0 - TUNING.fill) {
            return None;
        }
        self.trial = Some(Trial { from: owner, to, map: group.map.clone(), rate });
        Some(Change { queue, from: owner, to, map: without(&group.map, owner, to) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_of_a_slowed_cpu_go_to_those_that_have_some() {
        let count = |map: &Map, cpu| map.iter().filter(|owner| **owner == cpu).count();
        let mut map = [0; BUCKETS];
        assert_eq!(count(&without(&map, 0, 5), 5), BUCKETS, "it had all of them");
        map.iter_mut().enumerate().for_each(|(bucket, cpu)| *cpu = bucket as CpuIndex % 4);
        let spread = without(&map, 0, 5);
        assert_eq!([0, 1, 2, 3, 5].map(|cpu| count(&spread, cpu)), [0, 1280, 1280, 1280, 256]);
    }
}
