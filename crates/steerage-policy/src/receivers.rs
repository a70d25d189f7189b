//! Which CPU polls a queue.
//!
//! A CPU that other programs, interrupts or guests of the hypervisor use has only the rest of its time for receiving: `1 - others`.
//! If the CPU that polls has no time left, and another one of the mask has more time for us, polling moves there, and both CPUs swap
//! their buckets. Whether that pays is measured, since the other program may follow, or may be the one that waits for the packets:
//! if less is received than before, both go back. A trial is repeated after a hundred times as long as it took, so that trials cost at
//! most 1 % of the time.

use std::sync::atomic::Ordering;

use steerage_core::ids::CpuIndex;
use steerage_core::limits::{BUCKETS, WATCH_EVERY};
use steerage_core::placement::View;
use steerage_flow::Timestamp;
use steerage_ledger::Ledgers;

use crate::limits::Tuning;

/// A queue that another CPU is to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) queue: usize,
    pub(crate) from: CpuIndex,
    pub(crate) to: CpuIndex,
}

impl Change {
    fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// The map with the buckets of both CPUs swapped, unless the CPU that is to poll has more of them already: it is the one with more
    /// time.
    pub(crate) fn swapped(self, map: &[CpuIndex; BUCKETS]) -> Box<[CpuIndex; BUCKETS]> {
        let mut swapped = Box::new(*map);
        let buckets_of = |cpu: CpuIndex| map.iter().filter(|owner| **owner == cpu).count();
        if buckets_of(self.to) >= buckets_of(self.from) {
            return swapped;
        }
        for cpu in &mut *swapped {
            *cpu = match *cpu {
                cpu if cpu == self.from => self.to,
                cpu if cpu == self.to => self.from,
                cpu => cpu,
            };
        }
        swapped
    }
}

/// What is known of one queue's receiver.
#[derive(Clone, Debug, Default)]
struct Receiver {
    /// The time, the packets received and the busy time of the CPU at the start of the present measurement.
    window: Option<(Timestamp, u64, u64)>,
    /// The change that is tried, and the packets per second before.
    trial: Option<(Change, f64)>,
    /// No trial begins before.
    not_before: Timestamp,
}

/// The receivers of all queues.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<Receiver>);

/// The constants of `Balance`, which this is a part of.
const TUNING: Tuning = Tuning::DEFAULT;

impl Receivers {
    /// Looks at the queues of all groups, and returns the first that another CPU should poll. Call it while no bucket moves.
    pub(crate) fn look(&mut self, now: Timestamp, view: &View, ledgers: &Ledgers) -> Option<Change> {
        self.0.resize_with(ledgers.queues.len(), Receiver::default);
        let queues = view.groups.iter().flat_map(|group| group.queues.iter().map(move |queue| (*queue, &group.order)));
        let is_free = |queue: &usize| !ledgers.queues[*queue].owner_is_chosen.load(Ordering::Relaxed);
        for (queue, order) in queues.filter(|(queue, _)| is_free(queue)) {
            let owner = ledgers.queues[queue].owner();
            let (received, busy) =
                (ledgers.queues[queue].ledger.received.get(), ledgers.cpus[usize::from(owner)].busy_nanos.get());
            let change = self.0[queue].look(now, queue, owner, (received, busy), order, &view.others);
            if change.is_some() {
                return change;
            }
        }
        None
    }

    /// Buckets have moved. What was measured so far is about another state.
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
        order: &[CpuIndex],
        others: &[f64],
    ) -> Option<Change> {
        let (since, received_before, busy_before) = *self.window.get_or_insert((now, received, busy));
        let took = now.since(since);
        // What others use is known so often.
        if took < WATCH_EVERY {
            return None;
        }
        self.window = None;
        let rate = received.saturating_sub(received_before) as f64 / took.as_secs_f64();
        if let Some((change, before)) = self.trial.take() {
            self.not_before = now + took.div_f64(TUNING.budget);
            // If the other CPU has not taken the queue, there is nothing to undo but the map, which the policy sees to.
            let worse = owner == change.to && rate < before * (1.0 - TUNING.noise);
            return worse.then(|| change.back());
        }
        let time_left = |cpu: CpuIndex| 1.0 - others[usize::from(cpu)];
        let used = busy.saturating_sub(busy_before) as f64 / took.as_nanos() as f64 + others[usize::from(owner)];
        if now < self.not_before || rate == 0.0 || used < TUNING.fill {
            return None;
        }
        // Of equals the first, since they are in the order in which CPUs join.
        let to = order.iter().copied().rev().max_by(|a, b| time_left(*a).total_cmp(&time_left(*b)))?;
        // A move has to bring more than what is left for bursts.
        if time_left(to) < time_left(owner) + (1.0 - TUNING.fill) {
            return None;
        }
        let change = Change { queue, from: owner, to };
        self.trial = Some((change, rate));
        Some(change)
    }
}
