//! The regimes, and the throughput of each regime as predicted from the costs.

use std::fmt;

use super::costs::{Costs, Estimate};

/// A regime: the way in which the packets of a group are spread over CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegimeKind {
    /// The CPUs that receive packets do all work.
    Inline,
    /// The receiving CPUs only receive packets, and one other CPU handles all packets, without
    /// hashing.
    Collector,
    /// Several CPUs have buckets.
    Spread,
}

impl RegimeKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Collector => "collector",
            Self::Spread => "spread",
        }
    }
}

/// `others` are the CPUs that handle packets and own no queue, in the order in which they joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regime {
    pub(crate) kind: RegimeKind,
    pub(crate) others: Vec<u16>,
}

impl Regime {
    pub(crate) fn inline() -> Self {
        Self { kind: RegimeKind::Inline, others: Vec::new() }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:?}", self.kind.name(), self.others)
    }
}

/// CPUs that handle but do not receive packets, all at one distance from the receiving CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// The capacity that other programs leave, in CPUs that are as fast as the receiving CPUs.
    pub capacity: f64,
    /// The index of the [`Costs`] entry for the distance to the receiving CPUs.
    pub class: usize,
    /// The share of the packets whose buckets these workers have. With `None`, the workers take as
    /// many packets as they can. If `share` is set for all workers, the receiving CPUs keep the
    /// remaining packets.
    pub share: Option<f64>,
}

/// A predicted throughput.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// The throughput in packets per nanosecond.
    pub(crate) rate: Estimate,
    pub(crate) kept: f64,
    /// The largest share of packets that the owners may keep, given the uncertainty of the costs.
    pub(crate) kept_most: f64,
    /// True if the receiving CPUs limit the throughput, false if only another CPU does.
    pub is_limited_by_receiving: bool,
}

impl Prediction {
    /// Returns the throughput in packets per second, or 0 if a cost is not known.
    pub fn packets_per_second(&self) -> f64 {
        self.rate.mean * 1e9
    }
}

impl Costs {
    /// Predicts the throughput for exact costs. `owners` is the time of all CPUs that receive, as a
    /// number of CPUs.
    fn predict(&self, kind: RegimeKind, owners: f64, workers: &[Workers]) -> Prediction {
        let hash = if kind == RegimeKind::Spread { self.hash.mean.max(0.0) } else { 0.0 };
        let (receive, work) = (self.receive.mean.max(0.0) + hash, self.work.mean.max(0.0));
        let fixed: Option<f64> = workers.iter().map(|worker| worker.share).sum();
        let (mut all, mut gives, mut fullest) = (0.0, 0.0, 0.0_f64);
        for worker in workers {
            let crossing = &self.crossings[worker.class];
            let rate = worker.capacity / (work + crossing.take.mean).max(1.0);
            let weight = if fixed.is_some() { worker.share.unwrap_or(0.0) } else { rate };
            all += weight;
            gives += weight * crossing.give.mean.max(0.0);
            // `f64::max` ignores the result of 0 / 0, which is not a number.
            fullest = fullest.max(weight / rate);
        }
        // The packets that the workers take per nanosecond, and the cost of a hand-over.
        let (takes, give) = if all > 0.0 { (all / fullest, gives / all) } else { (0.0, 0.0) };
        let handed = match (kind, fixed) {
            (RegimeKind::Inline, _) => 0.0,
            (RegimeKind::Collector, _) => 1.0,
            (RegimeKind::Spread, Some(handed)) => handed,
            (RegimeKind::Spread, None) => {
                // For a packet that another CPU takes, owners save work and pay for the hand-over.
                let all = (owners + takes * (work - give)) / (receive + work).max(1.0);
                // If the workers can take all packets, the owners of queues only receive.
                if all > takes { takes / all } else { 1.0 }
            }
        };
        let owned = owners / (receive + handed * give + (1.0 - handed) * work).max(1.0);
        let others = if handed > 0.0 { takes / handed } else { f64::INFINITY };
        let (rate, kept) = (Estimate::new(owned.min(others), 0.0), 1.0 - handed);
        Prediction { rate, kept, kept_most: kept, is_limited_by_receiving: owned <= others }
    }
}

/// Predicts the throughput in a regime. `owners` is the number of receiving CPUs, less the time
/// that other programs take. `workers` has one entry for a collector, and none for inline. The
/// formulas are in `lab/notes/balance.md`.
///
/// ```
/// use steerage_policy::{Costs, RegimeKind, Workers, predict};
///
/// // Receiving takes 10 ns, hashing 5, work 100, and each side of a hand-over 20.
/// let costs = Costs::exact(10.0, 5.0, 100.0, &[(20.0, 20.0)]);
/// let inline = predict(&costs, RegimeKind::Inline, 1.0, &[]);
/// assert_eq!(inline.packets_per_second().round(), 9_090_909.0);
/// // Three more CPUs have a quarter of the packets each. The CPU that receives is full first.
/// let three = [Workers { capacity: 3.0, class: 0, share: Some(0.75) }];
/// let even = predict(&costs, RegimeKind::Spread, 1.0, &three);
/// assert_eq!((even.packets_per_second().round(), even.is_limited_by_receiving), (18_181_818.0, true));
/// // `Balance` gives it fewer.
/// let best = predict(&costs, RegimeKind::Spread, 1.0, &[Workers { share: None, ..three[0] }]);
/// assert!(best.packets_per_second() > 1.3 * even.packets_per_second());
/// ```
///
/// # Panics
///
/// Panics if `costs` has no entry for the distance class of a worker.
pub fn predict(costs: &Costs, kind: RegimeKind, owners: f64, workers: &[Workers]) -> Prediction {
    predict_relative(costs, kind, owners, workers, None)
}

/// Like [`predict`], but if `than` has workers, returns the ratio to the throughput with those
/// workers. The error is that of the logarithm (delta method), because a little-known cost may be a
/// fraction or a multiple of its mean.
pub(crate) fn predict_relative(
    costs: &Costs,
    kind: RegimeKind,
    owners: f64,
    workers: &[Workers],
    than: Option<&[Workers]>,
) -> Prediction {
    let at = |costs: &Costs| {
        let mut here = costs.predict(kind, owners, workers);
        here.rate.mean /= than.map_or(1.0, |than| costs.predict(kind, owners, than).rate.mean);
        here
    };
    let mut predicted = at(costs);
    let mean = predicted.rate.mean;
    if !(costs.receive.is_known() && costs.work.is_known() && mean > 0.0 && mean.is_finite()) {
        return Prediction { rate: Estimate::UNKNOWN, ..predicted };
    }
    let (mut varied, mut var) = (costs.clone(), 0.0);
    let all: Vec<Estimate> = varied.all_mut().map(|cost| *cost).collect();
    for (nth, cost) in all.into_iter().enumerate() {
        let mut with = |mean| {
            varied.all_mut().skip(nth).take(1).for_each(|cost| cost.mean = mean);
            at(&varied)
        };
        // With a small change of a cost, the prediction would miss the point at which another CPU
        // becomes the limit.
        let (less, more) = (with(cost.mean - cost.sd()), with(cost.mean + cost.sd()));
        with(cost.mean);
        var += ((more.rate.mean / less.rate.mean).ln() / 2.0).powi(2);
        if than.is_none() {
            predicted.kept_most = predicted.kept_most.max(less.kept);
        }
    }
    predicted.rate.var = var * mean * mean;
    predicted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(receive: f64, hash: f64, work: f64, give: f64, take: f64) -> Costs {
        Costs::exact(receive, hash, work, &[(give, take)])
    }

    fn workers(count: usize) -> Vec<Workers> {
        vec![Workers { capacity: count as f64, class: 0, share: None }]
    }

    #[track_caller]
    fn assert_near(is: f64, should_be: f64) {
        assert!((is / should_be - 1.0).abs() < 1e-9, "{is}, not {should_be}");
    }

    #[test]
    fn two_cpus_gain_by_the_formula() {
        let rate = |costs: &Costs, kind, count| predict(costs, kind, 1.0, &workers(count)).rate.mean;
        let (r, w, h, c) = (100.0, 100.0, 20.0, 20.0);
        let even = costs(r, 0.0, w, h, c);
        assert_near(rate(&even, RegimeKind::Inline, 0), 1.0 / (r + w));
        assert_near(
            rate(&even, RegimeKind::Collector, 1) / rate(&even, RegimeKind::Inline, 0),
            2.0 * (r + w) / (r + w + h + c),
        );
        assert_near(rate(&even, RegimeKind::Spread, 1), rate(&even, RegimeKind::Collector, 1));
        let (r, w) = (20.0, 200.0);
        let cheap = predict(&costs(r, 10.0, w, h, c), RegimeKind::Spread, 1.0, &workers(1));
        let handed = 1.0 - cheap.kept;
        assert_near(cheap.rate.mean, 1.0 / (r + 10.0 + cheap.kept * w + handed * h));
        assert_near(cheap.rate.mean, 1.0 / (handed * (w + c)));
    }

    #[test]
    fn the_receiver_limits_many_cpus() {
        let costs = costs(50.0, 10.0, 1000.0, 20.0, 30.0);
        let spread = |count| predict(&costs, RegimeKind::Spread, 1.0, &workers(count));
        assert!(spread(8).kept > 0.0 && spread(16).kept == 0.0);
        assert_near(spread(16).rate.mean, 1.0 / 80.0);
        assert_near(spread(64).rate.mean, 1.0 / 80.0);
        assert_near(predict(&costs, RegimeKind::Spread, 2.0, &workers(62)).rate.mean, 2.0 / 80.0);
    }

    #[test]
    fn no_map_is_faster_than_the_best_one() {
        let costs = Costs::exact(20.0, 5.0, 200.0, &[(10.0, 20.0), (40.0, 60.0)]);
        let map = |near, far| {
            let worker = |(class, share)| Workers { capacity: 1.0, class, share };
            predict(&costs, RegimeKind::Spread, 1.0, &[(0, near), (1, far)].map(worker))
        };
        let best = map(None, None);
        let near = (1.0 - best.kept) * 260.0 / (260.0 + 220.0);
        let far = 1.0 - best.kept - near;
        assert_near(map(Some(near), Some(far)).rate.mean, best.rate.mean);
        for (more, fewer, receiving) in [(0.1, 0.0, false), (0.0, -0.1, true), (-0.1, 0.1, false)] {
            let other = map(Some(near + more), Some(far + fewer));
            assert!(other.rate.mean < 0.95 * best.rate.mean, "{other:?}, {best:?}");
            assert_eq!(other.is_limited_by_receiving, receiving, "{other:?}");
        }
        assert_near(map(Some(0.0), Some(1.0)).rate.mean, 1.0 / 260.0);
        assert_near(map(Some(0.0), Some(0.0)).rate.mean, 1.0 / 225.0);
    }

    #[test]
    fn a_cpu_that_others_use_counts_by_what_they_leave() {
        let costs = costs(100.0, 0.0, 1000.0, 0.0, 0.0);
        let half = [Workers { capacity: 0.5, class: 0, share: None }];
        assert_near(predict(&costs, RegimeKind::Spread, 1.0, &half).rate.mean, 1.5 / 1100.0);
        assert_near(predict(&costs, RegimeKind::Collector, 1.0, &half).rate.mean, 0.5 / 1000.0);
    }

    #[test]
    fn the_uncertainty_of_costs_is_that_of_the_prediction() {
        let mut costs = costs(100.0, 0.0, 100.0, 20.0, 20.0);
        costs.work = Estimate::new(100.0, 10.0);
        let inline = predict(&costs, RegimeKind::Inline, 1.0, &[]).rate;
        assert!((inline.sd() / inline.mean - 0.05).abs() < 0.001, "{inline:?}");
        costs.receive = Estimate::UNKNOWN;
        assert!(!predict(&costs, RegimeKind::Inline, 1.0, &[]).rate.is_known());
    }
}
