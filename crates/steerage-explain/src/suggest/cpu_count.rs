use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;
use steerage::policy::{Costs, PathCosts, RegimeKind, Workers, predict};
use steerage::{CpuId, CpuMask, limits::BUCKETS};

use crate::analysis::Volume;
use crate::candidates::CandidateCpus;
use crate::shares::Shares;

/// The highest average load of the busiest CPU, which leaves time for bursts. With random arrivals
/// (M/M/1), a queue holds 2.3 packets on average at a load of 70 %, and nine at 90 %.
pub(super) const BUSY_MAX: f64 = 0.7;

/// If the rate is unknown or too high, the advice is the smallest number of CPUs whose throughput
/// reaches this fraction of the highest throughput.
const NEAR_THE_MOST: f64 = 0.9;

/// With AF_PACKET, one CPU receives a million packets in 0.07 to 0.08 s.
const LIVE_NS: f64 = 75.0;

/// The assumed times in nanoseconds for steering a packet. The policy `balance` and the simulator
/// use the same times.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct AssumedCosts {
    #[serde(skip)]
    pub(super) path: PathCosts,
    /// The time in which the receiving CPU receives and hashes a packet.
    pub(super) receive_ns: f64,
    /// The receiving CPU's time for handing a packet over to a CPU that shares a cache with it.
    /// `far` is the time if the two CPUs share no cache.
    pub(super) hand_over_ns: f64,
    pub(super) hand_over_far_ns: f64,
    /// The handling CPU's time for taking a packet over from a CPU that shares a cache with it.
    /// `far` is the time if the two CPUs share no cache.
    pub(super) take_over_ns: f64,
    pub(super) take_over_far_ns: f64,
}

impl AssumedCosts {
    pub(super) fn of(is_live: bool) -> Self {
        let measured = PathCosts::MEASURED;
        let path = PathCosts { receive: if is_live { LIVE_NS } else { measured.receive }, ..measured };
        let ([hand_over_ns, hand_over_far_ns], [take_over_ns, take_over_far_ns]) = (path.hand_over, path.take_over);
        let receive_ns = path.receive + path.hash;
        Self { path, receive_ns, hand_over_ns, hand_over_far_ns, take_over_ns, take_over_far_ns }
    }

    /// Adds the packet function's time per packet to the assumed costs. CPUs that share no cache
    /// with the receiver are class 1.
    pub(super) fn with_work(&self, work_ns: f64) -> Costs {
        self.path.with_work(work_ns)
    }
}

/// A way to assign packets to CPUs, with its predicted load.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    /// The CPUs that receive or handle packets.
    pub(super) cpus: CpuMask,
    /// The CPUs over which packets are spread, or no CPUs if one CPU handles all packets without
    /// steering.
    pub(super) mask: CpuMask,
    /// The number of CPUs over which packets are spread, or 1 without steering.
    pub(super) spread: usize,
    /// The busiest CPU's share of the packets if the CPUs have equal shares of the buckets, as in
    /// the kernel's RPS.
    pub(super) busiest: f64,
    /// The busiest CPU's share of the packets after the policy has balanced the buckets.
    pub(super) balanced: f64,
    /// The packets per second that the CPUs can handle.
    pub(super) throughput: f64,
    pub(super) receiver_is_busiest: bool,
}

impl Assignment {
    /// Returns the load of the busiest CPU at `rate` packets per second.
    pub(super) fn load(&self, rate: Option<f64>) -> Option<f64> {
        rate.map(|rate| rate / self.throughput)
    }
}

#[derive(Debug)]
pub(super) struct Choice {
    pub(super) best: Assignment,
    /// The assignment with one CPU that receives and handles all packets.
    pub(super) one: Assignment,
    /// The assignment with one CPU that only receives and one that handles packets, if there are
    /// two CPUs.
    pub(super) collector: Option<Assignment>,
    /// True if the CPUs can handle the packet rate. `None` if the packet rate is not known.
    pub(super) is_enough: Option<bool>,
    /// The highest load that the busiest CPU may have.
    pub(super) busy_max: f64,
}

impl Choice {
    /// Chooses the smallest number of CPUs that handles the packet rate, or whose throughput comes
    /// near the highest.
    pub(super) fn make(
        buckets: &[Volume; BUCKETS],
        candidates: &CandidateCpus,
        costs: &Costs,
        rate: Option<f64>,
        busy_max: f64,
    ) -> Self {
        let work = Work { buckets, candidates, costs };
        let way = |cpus: usize| {
            let (along, apart) = (work.way(cpus, true), work.way(cpus, false));
            if apart.throughput > along.throughput { apart } else { along }
        };
        let ways: Vec<Assignment> = (1..=candidates.order.len()).map(way).collect();
        let one = work.way(1, true);
        let most = ways.iter().map(|way| way.throughput).fold(0.0, f64::max);
        let keeps_up = |way: &&Assignment| way.load(rate).is_some_and(|load| load <= busy_max);
        let is_near = |way: &&Assignment| way.throughput >= most * NEAR_THE_MOST;
        let enough = ways.iter().find(keeps_up);
        let best = enough.or_else(|| ways.iter().find(is_near)).unwrap_or(&one).clone();
        let collector = (ways.len() > 1).then(|| work.way(2, false));
        Self { is_enough: rate.map(|_| enough.is_some()), best, one, collector, busy_max }
    }
}

struct Work<'a> {
    buckets: &'a [Volume; BUCKETS],
    candidates: &'a CandidateCpus,
    costs: &'a Costs,
}

impl Work<'_> {
    /// Returns the assignment to the first `cpus` candidate CPUs. With `works_along`, the receiving
    /// CPU handles packets too.
    fn way(&self, cpus: usize, works_along: bool) -> Assignment {
        let order = &self.candidates.order[..cpus];
        let receiver = order[0];
        let spread: &[CpuId] = if works_along || cpus == 1 { order } else { &order[1..] };
        let mask: CpuMask = spread.iter().copied().collect();
        let shares = Shares::even(self.buckets, spread.len());
        // With an even map, each CPU has a range of buckets of equal size, in the order of the
        // CPUs' numbers.
        let others = mask.iter().zip(shares.each()).filter(|(cpu, _)| *cpu != receiver);
        let class = |cpu| usize::from(self.candidates.distances.far.contains(cpu));
        let others = others.map(|(cpu, share)| Workers { capacity: 1.0, class: class(cpu), share: Some(share) });
        // If one CPU has all buckets, no packet is hashed.
        let kind = match (works_along, spread.len()) {
            (_, 1) if cpus == 1 => RegimeKind::Inline,
            (false, 1) => RegimeKind::Collector,
            _ => RegimeKind::Spread,
        };
        let predicted = predict(self.costs, kind, 1.0, &others.collect::<Vec<_>>());
        Assignment {
            cpus: order.iter().copied().collect(),
            spread: mask.len(),
            balanced: self.balanced(mask.len()),
            busiest: shares.busiest(),
            mask: if cpus == 1 { CpuMask::new() } else { mask },
            throughput: predicted.packets_per_second(),
            receiver_is_busiest: predicted.is_limited_by_receiving,
        }
    }

    /// Assigns each bucket, the largest first, to the CPU with the least load. The busiest CPU gets
    /// at most a third more than in the best assignment (Graham, 1969), and usually much less.
    fn balanced(&self, cpus: usize) -> f64 {
        let mut buckets: Vec<u64> = self.buckets.iter().map(|weight| weight.packets).collect();
        let all: u64 = buckets.iter().sum();
        buckets.sort_unstable_by_key(|packets| Reverse(*packets));
        let mut loads: BinaryHeap<Reverse<u64>> = std::iter::repeat_n(Reverse(0), cpus).collect();
        for packets in buckets {
            if let Some(mut least) = loads.peek_mut() {
                least.0 += packets;
            }
        }
        loads.into_iter().map(|load| load.0).max().unwrap_or(0) as f64 / all as f64
    }
}
