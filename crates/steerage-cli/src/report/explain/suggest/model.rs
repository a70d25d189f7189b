//! How many CPUs pay: what each would have to do for each packet that comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;
use steerage::{BUCKETS, CpuId, CpuMask};
use steerage_apps::Weight;

use super::Machine;
use crate::report::explain::Shares;

/// How busy the busiest CPU may be on average: packets come in bursts, and the rest of its time is for them. At 70 % a queue that
/// is filled by chance holds 2.3 packets on average, at 90 % nine (M/M/1).
pub(super) const BUSY_MAX: f64 = 0.7;

/// Where nothing says how much has to be done, or all of it cannot be: the fewest CPUs that come so near to the most that can.
const NEAR_THE_MOST: f64 = 0.9;

/// What a packet costs besides the work on it, in ns: docs/performance.md, 2026-11-21.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Costs {
    /// Receiving and hashing, on the CPU that receives.
    pub(super) receive_ns: f64,
    /// Handing over, on the same CPU; and what it takes to a CPU that shares no cache.
    pub(super) hand_over_ns: f64,
    pub(super) hand_over_far_ns: f64,
    /// Taking over, on the other.
    pub(super) take_over_ns: f64,
    pub(super) take_over_far_ns: f64,
}

impl Costs {
    /// "The receive path", our hash, 2 targets: 20.2 ns near and 41.1 far for who receives, with what the frame takes to be written;
    /// 12.8 and 26.8 for the worker. AF_PACKET on one CPU: 0.07 to 0.08 s for a million.
    pub(super) fn of(is_live: bool) -> Self {
        Self {
            receive_ns: if is_live { 75.0 } else { 10.0 },
            hand_over_ns: 10.0,
            hand_over_far_ns: 31.0,
            take_over_ns: 13.0,
            take_over_far_ns: 27.0,
        }
    }
}

/// One way to do it.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// All that have something to do.
    pub(super) cpus: CpuMask,
    /// Those that packets are spread over; empty for no steering.
    pub(super) mask: CpuMask,
    /// How many these are, or one.
    pub(super) spread: usize,
    /// The largest share of the packets that one of them has of an even map: the kernel's, and where ours begins.
    pub(super) busiest: f64,
    /// The same once buckets were balanced.
    pub(super) balanced: f64,
    /// What the CPU that has most to do, does for each packet that comes.
    pub(super) load_ns: f64,
    /// Whether that is the one that receives.
    pub(super) receiver_is_busiest: bool,
}

impl Way {
    /// How busy the CPU with most to do is, where so many packets come a second.
    pub(super) fn load(&self, rate: Option<f64>) -> Option<f64> {
        rate.map(|rate| rate * self.load_ns / 1e9)
    }
}

/// What was chosen, and beside what.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) best: Way,
    /// One CPU that does all.
    pub(super) one: Way,
    /// Whether the rate would be kept up with; `None` where there is none.
    pub(super) is_enough: Option<bool>,
}

impl Choice {
    /// The fewest CPUs that keep up with the rate; where none do or there is no rate, the fewest that come near the most.
    pub(super) fn make(
        buckets: &[Weight; BUCKETS],
        machine: &Machine,
        costs: &Costs,
        work_ns: f64,
        rate: Option<f64>,
    ) -> Self {
        let all: u64 = buckets.iter().map(|weight| weight.packets).sum();
        let work = Work { buckets, all: all as f64, machine, costs, work_ns };
        let way = |cpus: usize| {
            let (along, apart) = (work.way(cpus, true), work.way(cpus, false));
            if apart.load_ns < along.load_ns { apart } else { along }
        };
        let ways: Vec<Way> = (1..=machine.order.len()).map(way).collect();
        let one = work.way(1, true);
        let least_ns = ways.iter().map(|way| way.load_ns).fold(f64::INFINITY, f64::min);
        let keeps_up = |way: &&Way| way.load(rate).is_some_and(|load| load <= BUSY_MAX);
        let is_near = |way: &&Way| way.load_ns <= least_ns / NEAR_THE_MOST;
        let enough = ways.iter().find(keeps_up);
        let best = enough.or_else(|| ways.iter().find(is_near)).unwrap_or(&one).clone();
        Self { is_enough: rate.map(|_| enough.is_some()), best, one }
    }
}

struct Work<'a> {
    buckets: &'a [Weight; BUCKETS],
    all: f64,
    machine: &'a Machine,
    costs: &'a Costs,
    work_ns: f64,
}

impl Work<'_> {
    /// The first `cpus` of the machine's; the one that receives works along, or leaves it to the others.
    fn way(&self, cpus: usize, works_along: bool) -> Way {
        let order = &self.machine.order[..cpus];
        let receiver = order[0];
        let spread: &[CpuId] = if works_along || cpus == 1 { order } else { &order[1..] };
        let mask: CpuMask = spread.iter().copied().collect();
        let shares = Shares::even(self.buckets, spread.len());
        let far = |cpu: CpuId, far: f64, near: f64| if self.machine.far.contains(cpu) { far } else { near };
        let (mut receives, mut most) = (self.costs.receive_ns, 0.0_f64);
        // An even map gives its stretches to the CPUs in the order of their numbers.
        for (cpu, share) in mask.iter().zip(shares.each()) {
            if cpu == receiver {
                receives += share * self.work_ns;
            } else {
                receives += share * far(cpu, self.costs.hand_over_far_ns, self.costs.hand_over_ns);
                let takes = far(cpu, self.costs.take_over_far_ns, self.costs.take_over_ns);
                most = most.max(share * (self.work_ns + takes));
            }
        }
        Way {
            cpus: order.iter().copied().collect(),
            spread: mask.len(),
            balanced: self.balanced(mask.len()),
            busiest: shares.busiest(),
            mask: if cpus == 1 { CpuMask::new() } else { mask },
            load_ns: receives.max(most),
            receiver_is_busiest: receives >= most,
        }
    }

    /// The largest bucket to whoever has least, and so on: within a third of the best (Graham, 1969), and with so many buckets
    /// much nearer.
    fn balanced(&self, cpus: usize) -> f64 {
        let mut buckets: Vec<u64> = self.buckets.iter().map(|weight| weight.packets).collect();
        buckets.sort_unstable_by_key(|packets| Reverse(*packets));
        let mut loads: BinaryHeap<Reverse<u64>> = std::iter::repeat_n(Reverse(0), cpus).collect();
        for packets in buckets {
            if let Some(mut least) = loads.peek_mut() {
                least.0 += packets;
            }
        }
        loads.into_iter().map(|load| load.0).max().unwrap_or(0) as f64 / self.all
    }
}
