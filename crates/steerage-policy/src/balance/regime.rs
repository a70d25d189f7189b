//! The regimes, and the throughput that the costs predict for each.

use std::fmt;

use super::costs::{Costs, Estimate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The CPUs that receive do all work.
    Inline,
    /// Some CPUs only receive, and one other CPU has all buckets, so that packets are not hashed.
    Collector,
    /// Several CPUs have buckets.
    Spread,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Collector => "collector",
            Self::Spread => "spread",
        }
    }
}

/// A regime, with the CPUs that take part and own no queue, in the order in which they joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regime {
    pub(crate) kind: Kind,
    pub(crate) others: Vec<u16>,
}

impl Regime {
    pub(crate) fn inline() -> Self {
        Self { kind: Kind::Inline, others: Vec::new() }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:?}", self.kind.name(), self.others)
    }
}

/// Several CPUs that own no queue and have the same distance. The prediction treats them as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workers {
    /// The capacity of these CPUs in the time that other programs leave. 1 is the capacity of a
    /// whole CPU as fast as the owners.
    pub(crate) capacity: f64,
    pub(crate) class: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) rate: Estimate,
    pub(crate) kept: f64,
    /// The largest share that the owners may keep, given the uncertainty of costs.
    pub(crate) kept_most: f64,
}

/// The costs as plain numbers, which are varied one at a time.
struct Point<'a> {
    costs: &'a Costs,
    /// The index of the varied cost, in the order of [`Costs::all_mut`], and the amount.
    vary: Option<(usize, f64)>,
}

impl Point<'_> {
    fn cost(&self, nth: usize, cost: Estimate) -> f64 {
        let by = self.vary.filter(|(which, _)| *which == nth).map_or(0.0, |(_, by)| by);
        cost.mean + by
    }

    fn receive(&self) -> f64 {
        self.cost(0, self.costs.receive).max(0.0)
    }

    fn hash(&self) -> f64 {
        self.cost(1, self.costs.hash).max(0.0)
    }

    fn work(&self) -> f64 {
        self.cost(2, self.costs.work).max(0.0)
    }

    fn give(&self, class: usize) -> f64 {
        self.cost(3 + 2 * class, self.costs.crossings[class].give).max(0.0)
    }

    fn take(&self, class: usize) -> f64 {
        self.cost(4 + 2 * class, self.costs.crossings[class].take)
    }

    fn rate_of(&self, worker: Workers) -> f64 {
        worker.capacity / (self.work() + self.take(worker.class)).max(1.0)
    }

    /// The throughput, and the owners' share of packets, if the owners have the time of `owners`
    /// CPUs.
    fn rate(&self, kind: Kind, owners: f64, workers: &[Workers]) -> (f64, f64) {
        match kind {
            Kind::Inline => (owners / (self.receive() + self.work()).max(1.0), 1.0),
            Kind::Collector => {
                let worker = workers[0];
                let receives = owners / (self.receive() + self.give(worker.class)).max(1.0);
                (receives.min(self.rate_of(worker)), 0.0)
            }
            Kind::Spread => {
                let (rates, gives) = workers.iter().fold((0.0, 0.0), |(rates, gives), worker| {
                    let rate = self.rate_of(*worker);
                    (rates + rate, gives + rate * self.give(worker.class))
                });
                let receive = self.receive() + self.hash();
                // Each packet that another CPU takes saves the owners its work, and costs them the
                // hand-over.
                let all = (owners + rates * self.work() - gives) / (receive + self.work()).max(1.0);
                if all > rates {
                    return (all, 1.0 - rates / all);
                }
                // The owners have time only for receiving.
                let give = if rates > 0.0 { gives / rates } else { 0.0 };
                (rates.min(owners / (receive + give).max(1.0)), 0.0)
            }
        }
    }
}

/// The throughput of a regime whose owners have the time of `owners` CPUs. The variance of the
/// throughput is that of its logarithm, by the delta method, because the true value of an uncertain
/// cost may be a fraction or a multiple of the mean. With `than`, the result is the throughput as a
/// multiple of the throughput with these other CPUs.
pub(crate) fn predict(
    costs: &Costs,
    kind: Kind,
    owners: f64,
    workers: &[Workers],
    than: Option<&[Workers]>,
) -> Prediction {
    let at = |vary| {
        let point = Point { costs, vary };
        let (rate, kept) = point.rate(kind, owners, workers);
        (rate / than.map_or(1.0, |than| point.rate(kind, owners, than).0), kept)
    };
    let (mean, kept) = at(None);
    let mut kept_most = kept;
    let is_known = costs.receive.is_known() && costs.work.is_known() && mean > 0.0 && mean.is_finite();
    if !is_known {
        return Prediction { rate: Estimate::UNKNOWN, kept, kept_most };
    }
    let mut classes: Vec<usize> = workers.iter().chain(than.unwrap_or_default()).map(|worker| worker.class).collect();
    classes.sort_unstable();
    classes.dedup();
    let own = [(0, costs.receive), (1, costs.hash), (2, costs.work)];
    let crossings = classes.into_iter().flat_map(|class| {
        let crossing = &costs.crossings[class];
        [(3 + 2 * class, crossing.give), (4 + 2 * class, crossing.take)]
    });
    let mut var = 0.0;
    for (nth, cost) in own.into_iter().chain(crossings) {
        // A whole deviation is a wide step. But the throughput has a kink where the limiting CPU
        // changes, and a small step would miss the kink.
        let ((less, kept_more), (more, _)) = (at(Some((nth, -cost.sd()))), at(Some((nth, cost.sd()))));
        var += ((more / less).ln() / 2.0).powi(2);
        if than.is_none() {
            kept_most = kept_most.max(kept_more);
        }
    }
    Prediction { rate: Estimate { mean, var: var * mean * mean }, kept, kept_most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Tuning;

    /// Costs that are known exactly: receiving, hashing, work, and both sides of a hand-over.
    fn costs(receive: f64, hash: f64, work: f64, give: f64, take: f64) -> Costs {
        let mut costs = Costs::new(&Tuning::default());
        for (cost, mean) in costs.all_mut().zip([receive, hash, work, give, take]) {
            *cost = Estimate::new(mean, 0.0);
        }
        costs
    }

    fn workers(count: usize) -> Vec<Workers> {
        vec![Workers { capacity: count as f64, class: 0 }]
    }

    #[track_caller]
    fn assert_near(is: f64, should_be: f64) {
        assert!((is / should_be - 1.0).abs() < 1e-9, "{is}, not {should_be}");
    }

    #[test]
    fn two_cpus_gain_by_the_formula() {
        let rate = |costs: &Costs, kind, count| predict(costs, kind, 1.0, &workers(count), None).rate.mean;
        // Both CPUs are full: receiving and hand-over take one CPU as long as the work takes the
        // other CPU.
        let (r, w, h, c) = (100.0, 100.0, 20.0, 20.0);
        let even = costs(r, 0.0, w, h, c);
        assert_near(rate(&even, Kind::Inline, 0), 1.0 / (r + w));
        assert_near(rate(&even, Kind::Collector, 1) / rate(&even, Kind::Inline, 0), 2.0 * (r + w) / (r + w + h + c));
        assert_near(rate(&even, Kind::Spread, 1), rate(&even, Kind::Collector, 1));
        // Receiving is cheap, so the owner handles packets too, and both CPUs are full.
        let (r, w) = (20.0, 200.0);
        let cheap = predict(&costs(r, 10.0, w, h, c), Kind::Spread, 1.0, &workers(1), None);
        let handed = 1.0 - cheap.kept;
        assert_near(cheap.rate.mean, 1.0 / (r + 10.0 + cheap.kept * w + handed * h));
        assert_near(cheap.rate.mean, 1.0 / (handed * (w + c)));
    }

    #[test]
    fn the_receiver_limits_many_cpus() {
        let costs = costs(50.0, 10.0, 1000.0, 20.0, 30.0);
        let spread = |count| predict(&costs, Kind::Spread, 1.0, &workers(count), None);
        assert!(spread(8).kept > 0.0 && spread(16).kept == 0.0);
        assert_near(spread(16).rate.mean, 1.0 / 80.0);
        assert_near(spread(64).rate.mean, 1.0 / 80.0);
        // Two CPUs that receive have twice the time for receiving.
        assert_near(predict(&costs, Kind::Spread, 2.0, &workers(62), None).rate.mean, 2.0 / 80.0);
    }

    #[test]
    fn a_cpu_that_others_use_counts_by_what_they_leave() {
        let costs = costs(100.0, 0.0, 1000.0, 0.0, 0.0);
        let half = [Workers { capacity: 0.5, class: 0 }];
        assert_near(predict(&costs, Kind::Spread, 1.0, &half, None).rate.mean, 1.5 / 1100.0);
        assert_near(predict(&costs, Kind::Collector, 1.0, &half, None).rate.mean, 0.5 / 1000.0);
    }

    #[test]
    fn the_uncertainty_of_costs_is_that_of_the_prediction() {
        let mut costs = costs(100.0, 0.0, 100.0, 20.0, 20.0);
        costs.work = Estimate::new(100.0, 10.0);
        let inline = predict(&costs, Kind::Inline, 1.0, &[], None).rate;
        assert!((inline.sd() / inline.mean - 0.05).abs() < 0.001, "{inline:?}");
        costs.receive = Estimate::UNKNOWN;
        assert!(!predict(&costs, Kind::Inline, 1.0, &[], None).rate.is_known());
    }
}
