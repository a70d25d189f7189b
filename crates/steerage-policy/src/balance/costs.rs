//! Estimates of the costs of a packet in nanoseconds, updated by a Kalman filter without
//! covariances. An observation is a measured time: a weighted sum of costs. The difference from the
//! expected sum corrects each cost in proportion to its uncertainty.

use std::time::Duration;

use crate::distances::is_same;
use crate::limits::Tuning;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    /// The variance, which is infinite if nothing is known.
    pub(crate) var: f64,
}

impl Estimate {
    pub(crate) const UNKNOWN: Self = Self { mean: 0.0, var: f64::INFINITY };

    pub(crate) fn new(mean: f64, sd: f64) -> Self {
        Self { mean, var: sd * sd }
    }

    pub(crate) fn sd(self) -> f64 {
        self.var.sqrt()
    }

    pub(crate) fn is_known(self) -> bool {
        self.var.is_finite()
    }

    pub(crate) fn observe(&mut self, seen: f64, noise: f64) {
        observe(&mut [(self, 1.0)], seen, noise);
    }

    /// Combines two independent estimates of the same number, weighted by their inverse variances.
    pub(crate) fn with(self, other: Self) -> Self {
        match (self.is_known(), other.is_known()) {
            (_, false) => self,
            (false, true) => other,
            (true, true) => {
                let var = self.var + other.var;
                let weight = if var > 0.0 { self.var / var } else { 0.5 };
                Self { mean: self.mean + (other.mean - self.mean) * weight, var: self.var * (1.0 - weight) }
            }
        }
    }

    /// The relative deviation of an estimate grows with the square root of time.
    pub(crate) fn forget(&mut self, seconds: f64, drift: f64) {
        self.var += (self.mean * drift).powi(2) * seconds;
    }
}

/// Corrects the costs in `parts` by an observation of their weighted sum. The observed sum is
/// `seen`, with the standard deviation `noise`. Returns the difference between the observed and the
/// expected sum in standard deviations, or `None` if a cost was unknown.
pub(crate) fn observe(parts: &mut [(&mut Estimate, f64)], seen: f64, noise: f64) -> Option<f64> {
    let expected: f64 = parts.iter().map(|(part, weight)| part.mean * weight).sum();
    let error = seen - expected;
    let unknown = parts.iter().filter(|(part, weight)| !part.is_known() && *weight != 0.0).count() as f64;
    if unknown > 0.0 {
        let known: f64 = parts.iter().filter(|(part, _)| part.is_known()).map(|(part, a)| part.var * a * a).sum();
        for (part, weight) in parts.iter_mut().filter(|(part, weight)| !part.is_known() && *weight != 0.0) {
            part.mean = (error / unknown / *weight).max(0.0);
            part.var = (known + noise * noise) / (*weight * *weight);
        }
        return None;
    }
    let var: f64 = parts.iter().map(|(part, weight)| part.var * weight * weight).sum::<f64>() + noise * noise;
    if var <= 0.0 {
        return None;
    }
    for (part, weight) in parts.iter_mut() {
        let gain = part.var * *weight / var;
        part.mean += gain * error;
        part.var *= 1.0 - gain * *weight;
    }
    Some(error / var.sqrt())
}

/// Like [`observe`], for costs that may occur for the first time. If the observation differs by
/// more than `sure` standard deviations, the estimates of the new costs were wrong, and each cost
/// may change by up to its bound in `bounds` (with 0, not at all).
pub(crate) fn observe_new(parts: &mut [(&mut Estimate, f64)], bounds: &[f64], seen: f64, noise: f64, sure: f64) {
    let before: Vec<Estimate> = parts.iter().map(|(part, _)| **part).collect();
    let error = seen - before.iter().zip(parts.iter()).map(|(before, (_, weight))| before.mean * weight).sum::<f64>();
    if observe(parts, seen, noise).is_some_and(|off| off.abs() > sure) {
        for (((part, weight), before), bound) in parts.iter_mut().zip(before).zip(bounds) {
            let wrong = (error / *weight).abs().min(*bound);
            **part = Estimate { mean: before.mean, var: before.var.max(wrong * wrong) };
        }
        observe(parts, seen, noise);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// The time that a cache line takes from one CPU to the other, if measured.
    pub(crate) apart: Option<Duration>,
    pub(crate) prior: f64,
    pub(crate) give: Estimate,
    /// The additional time for a packet on the CPU that takes the packet over, compared with the
    /// queue's owner.
    pub(crate) take: Estimate,
}

/// The costs of a packet, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Costs {
    /// The cost of receiving, without hashing. (Packets are not hashed if one CPU has all buckets.)
    pub(crate) receive: Estimate,
    pub(crate) hash: Estimate,
    pub(crate) work: Estimate,
    /// The costs of hand-overs, by distance. The first entry is for unmeasured distances.
    pub(crate) crossings: Vec<Crossing>,
    /// For each CPU, the factor by which a packet takes longer than on the CPUs that receive
    /// packets. A CPU is slow if its sibling thread is busy or its clock frequency is lower.
    pub(crate) slowness: Vec<Estimate>,
}

impl Costs {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let mut costs = Self {
            receive: Estimate::UNKNOWN,
            hash: Estimate::UNKNOWN,
            work: Estimate::UNKNOWN,
            crossings: Vec::new(),
            slowness: Vec::new(),
        };
        costs.class(None, tuning);
        costs.hash = costs.crossings[0].give;
        costs
    }

    /// Creates exact costs, in nanoseconds: of receiving, of hashing (with several CPUs), and of
    /// the packet function. For each class of distances between CPUs, `crossings` has the cost of
    /// handing a packet over, and the cost of taking it on the other CPU.
    pub fn exact(receive: f64, hash: f64, work: f64, crossings: &[(f64, f64)]) -> Self {
        let [receive, hash, work] = [receive, hash, work].map(|cost| Estimate::new(cost, 0.0));
        let crossing = |(give, take): &(f64, f64)| {
            let (give, take) = (Estimate::new(*give, 0.0), Estimate::new(*take, 0.0));
            Crossing { apart: None, prior: give.mean, give, take }
        };
        Self { receive, hash, work, crossings: crossings.iter().map(crossing).collect(), slowness: Vec::new() }
    }

    pub(crate) fn class(&mut self, apart: Option<Duration>, tuning: &Tuning) -> usize {
        if let Some(known) = self.known_class(apart, tuning) {
            return known;
        }
        let nanos = apart.unwrap_or(tuning.line).as_nanos() as f64 * tuning.hand_over;
        let prior = Estimate::new(nanos, nanos);
        self.crossings.push(Crossing { apart, prior: nanos, give: prior, take: prior });
        self.crossings.len() - 1
    }

    pub(crate) fn known_class(&self, apart: Option<Duration>, tuning: &Tuning) -> Option<usize> {
        self.crossings.iter().position(|known| match (known.apart, apart) {
            (Some(known), Some(apart)) => is_same(known, apart, tuning.same),
            (known, apart) => known == apart,
        })
    }

    pub(crate) fn forget(&mut self, seconds: f64, drift: f64) {
        self.all_mut().for_each(|cost| cost.forget(seconds, drift));
        self.slowness.iter_mut().for_each(|slowness| slowness.forget(seconds, drift));
    }

    /// A CPU of unknown speed is assumed to be as fast as the owners of queues.
    pub(crate) fn cpus(&mut self, count: usize, tuning: &Tuning) {
        self.slowness.resize(count, Estimate::new(1.0, tuning.noise));
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Estimate> {
        let crossings = self.crossings.iter_mut().flat_map(|crossing| [&mut crossing.give, &mut crossing.take]);
        [&mut self.receive, &mut self.hash, &mut self.work].into_iter().chain(crossings)
    }
}

/// The costs of a packet on one machine, in nanoseconds, without the work of the packet function.
///
/// ```
/// use steerage_policy::{PathCosts, RegimeKind, predict};
///
/// // One CPU does everything, and the packet function takes 100 ns.
/// let costs = PathCosts::MEASURED.with_work(100.0);
/// assert!(predict(&costs, RegimeKind::Inline, 1.0, &[]).packets_per_second() > 9e6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathCosts {
    /// The cost of receiving a packet, without hashing.
    pub receive: f64,
    /// The cost of hashing a packet and choosing its CPU.
    pub hash: f64,
    /// The time to hand a packet over to a CPU that shares a cache, and to any other CPU.
    pub hand_over: [f64; 2],
    /// The time to take a packet over on a CPU that shares a cache with the receiving CPU, and on
    /// any other CPU.
    pub take_over: [f64; 2],
}

impl PathCosts {
    /// The costs on the machine of docs/performance.md, derived in `lab/scale/zen5.toml`.
    pub const MEASURED: Self = Self { receive: 4.9, hash: 2.8, hand_over: [2.1, 8.1], take_over: [2.4, 8.0] };

    /// Adds the cost of a packet function, `work`. CPUs that share a cache with the receiving CPU
    /// are in class 0, and all other CPUs are in class 1.
    pub fn with_work(&self, work: f64) -> Costs {
        let [near, far] = [0, 1].map(|class| (self.hand_over[class], self.take_over[class]));
        Costs::exact(self.receive, self.hash, work, &[near, far])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uncertain_part_of_a_sum_takes_the_error() {
        let (mut sure, mut vague) = (Estimate::new(100.0, 1.0), Estimate::new(20.0, 20.0));
        let surprise = observe(&mut [(&mut sure, 1.0), (&mut vague, 0.5)], 140.0, 1.0).unwrap();
        assert!((sure.mean - 100.0).abs() < 0.5, "{sure:?}");
        assert!((vague.mean - 79.0).abs() < 2.0 && vague.sd() < 4.0, "{vague:?}");
        assert!((surprise - 30.0 / 102.0_f64.sqrt()).abs() < 0.01, "{surprise}");
    }

    #[test]
    fn a_new_cost_that_is_wrong_altogether_takes_the_whole_error() {
        let (mut old, mut new) = (Estimate::new(1000.0, 30.0), Estimate::new(15.0, 15.0));
        observe_new(&mut [(&mut old, 1.0), (&mut new, 1.0)], &[0.0, f64::INFINITY], 4000.0, 200.0, 4.0);
        assert!((old.mean - 1000.0).abs() < 5.0 && (new.mean - 3000.0).abs() < 30.0, "{old:?} {new:?}");
    }

    #[test]
    fn the_first_observation_of_an_unknown_cost_is_taken_as_it_is() {
        let (mut receive, mut give) = (Estimate::UNKNOWN, Estimate::new(20.0, 10.0));
        assert_eq!(observe(&mut [(&mut receive, 1.0), (&mut give, 1.0)], 100.0, 5.0), None);
        assert_eq!((receive.mean, receive.var), (80.0, 125.0));
        assert_eq!(give, Estimate::new(20.0, 10.0));
    }

    #[test]
    fn many_observations_make_it_certain_and_time_makes_it_uncertain() {
        let mut estimate = Estimate::UNKNOWN;
        (0..25).for_each(|_| estimate.observe(50.0, 2.5));
        assert!((estimate.sd() - 0.5).abs() < 0.01, "{estimate:?}");
        estimate.forget(100.0, 0.02);
        assert!((estimate.sd() - 10.0).abs() < 0.1, "{estimate:?}");
        let both = estimate.with(Estimate::new(40.0, 10.0));
        assert!((both.mean - 45.0).abs() < 0.1 && (both.sd() - 10.0 / 2.0_f64.sqrt()).abs() < 0.1, "{both:?}");
        assert_eq!(estimate.with(Estimate::UNKNOWN), estimate);
        assert_eq!(Estimate::UNKNOWN.with(estimate), estimate);
    }

    #[test]
    fn each_distance_has_costs_of_its_own() {
        let (tuning, nanos) = (Tuning::default(), Duration::from_nanos);
        let mut costs = Costs::new(&tuning);
        let near = costs.class(Some(nanos(50)), &tuning);
        let far = costs.class(Some(nanos(200)), &tuning);
        assert_eq!([costs.class(None, &tuning), near, far], [0, 1, 2]);
        assert_eq!(costs.class(Some(nanos(60)), &tuning), near);
        assert!(costs.crossings[far].give.mean > 3.0 * costs.crossings[near].give.mean);
    }
}
