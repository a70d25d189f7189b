//! Learns the costs of a packet and the throughput of the tried regimes (ways of spreading
//! packets), and derives the value (estimated throughput) of each regime.

use std::time::Duration;

use super::costs::{Costs, Estimate, observe, observe_new};
use super::regime::{Prediction, Regime, RegimeKind, Workers, predict, predict_relative};
use super::seen::Seen;
use crate::limits::{JOIN_AT_ONCE, MIN_SAMPLES, Tuning};
use crate::packing::members;

#[derive(Clone, Debug, PartialEq)]
struct RegimeKey {
    kind: RegimeKind,
    /// The CPUs without a queue, in ascending order, with the index of their entry in `crossings`.
    others: Vec<(u16, usize)>,
}

#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) regime: Regime,
    pub(super) value: Estimate,
    /// True if `value` and its error were predicted relative to the current throughput.
    pub(super) is_relative: bool,
    pub(super) predicted: Estimate,
    /// The share of the packets for all owners of queues together, and the shares of
    /// `Regime::others`.
    pub(super) shares: (f64, Vec<f64>),
}

#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) costs: Costs,
    measured: Vec<(RegimeKey, Estimate)>,
    /// The regime of the last failed probe, which the group enters again only in another probe.
    refuted: Option<RegimeKey>,
    /// The number of consecutive load checks whose throughput differed from the prediction by more
    /// than random error.
    surprises: u32,
}

impl Known {
    pub(super) fn new(tuning: &Tuning) -> Self {
        Self { costs: Costs::new(tuning), measured: Vec::new(), refuted: None, surprises: 0 }
    }

    pub(super) fn forget(&mut self, time: Duration, tuning: &Tuning) {
        let seconds = time.as_secs_f64();
        self.costs.forget(seconds, tuning.drift);
        self.measured.iter_mut().for_each(|(_, rate)| rate.forget(seconds, tuning.drift));
        // An estimate whose standard deviation is as large as its mean is worthless.
        self.measured.retain(|(_, rate)| rate.sd() < rate.mean);
    }

    /// Forgets the measured throughputs, and assumes that every cost may be wrong.
    pub(super) fn start_over(&mut self) {
        self.measured.clear();
        self.refuted = None;
        self.surprises = 0;
        self.costs.slowness.clear();
        let scale = self.costs.receive.mean + self.costs.work.mean;
        self.costs.all_mut().filter(|cost| cost.is_known()).for_each(|cost| cost.var = scale * scale);
    }

    pub(super) fn measure_anew(&mut self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) {
        *self.measured(seen, regime, tuning) = Estimate::UNKNOWN;
    }

    pub(super) fn refute(&mut self, seen: &Seen<'_>, tuning: &Tuning) {
        self.refuted = Some(self.key(seen, &seen.regime, tuning));
    }

    pub(super) fn is_refuted(&self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) -> bool {
        self.refuted.as_ref().is_some_and(|refuted| *refuted == self.known_key(seen, regime, tuning))
    }

    pub(super) fn measured(&mut self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) -> &mut Estimate {
        let key = self.key(seen, regime, tuning);
        let at = self.measured.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.measured.push((key, Estimate::UNKNOWN));
            self.measured.len() - 1
        });
        &mut self.measured[at].1
    }

    fn class(&mut self, seen: &Seen<'_>, cpu: u16, tuning: &Tuning) -> usize {
        self.costs.class(seen.load.apart[usize::from(cpu)], tuning)
    }

    pub(super) fn class_of(&self, apart: Option<Duration>, tuning: &Tuning) -> usize {
        self.costs.known_class(apart, tuning).unwrap_or(0)
    }

    /// Makes an entry in `crossings` for each distance of the regime that has none.
    fn key(&mut self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) -> RegimeKey {
        for cpu in &regime.others {
            self.class(seen, *cpu, tuning);
        }
        self.known_key(seen, regime, tuning)
    }

    fn known_key(&self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) -> RegimeKey {
        let class = |cpu: &u16| (*cpu, self.class_of(seen.load.apart[usize::from(*cpu)], tuning));
        let mut others: Vec<(u16, usize)> = regime.others.iter().map(class).collect();
        others.sort_unstable();
        RegimeKey { kind: regime.kind, others }
    }

    pub(super) fn learn_rate(&mut self, seen: &Seen<'_>, tuning: &Tuning) -> bool {
        let measured = self.measured(seen, &seen.regime, tuning);
        let surprise = observe(&mut [(measured, 1.0)], seen.rate, tuning.noise * seen.rate);
        // A difference of many standard deviations is no random error and, if the next load check
        // repeats it, no short disturbance.
        let is_surprise = surprise.is_some_and(|surprise| surprise.abs() > tuning.sure * tuning.sure);
        self.surprises = if is_surprise { self.surprises + 1 } else { 0 };
        self.surprises > 1
    }

    /// After a surprising load check, decisions wait for the next load check.
    pub(super) fn is_surprised(&self) -> bool {
        self.surprises > 0
    }

    /// While CPUs have time left, a measured throughput counts only if it is above the estimate.
    pub(super) fn learn_enough(&mut self, seen: &Seen<'_>, tuning: &Tuning) {
        let value = self.choice(seen, seen.regime.clone(), tuning).value;
        if value.is_known() && seen.rate > value.mean {
            self.measured(seen, &seen.regime, tuning).observe(seen.rate, tuning.noise * seen.rate);
        }
    }

    pub(super) fn learn_costs(&mut self, seen: &Seen<'_>, tuning: &Tuning) {
        let total = seen.offered;
        if total <= 0.0 {
            return;
        }
        let regime = &seen.regime;
        let classes: Vec<usize> = regime.others.iter().map(|cpu| self.class(seen, *cpu, tuning)).collect();
        // In small batches, each packet costs more time, so an observation of small batches counts
        // only while little is known. `noise` returns the standard deviation of the observed cost
        // `seen`. Only some rounds are timed, which adds the deviation `timed`.
        let noise = |is_full: bool, seen: f64, timed: f64, known: &[Estimate]| {
            let is_vague =
                known.iter().any(|cost| !cost.is_known() || cost.sd() > cost.mean * tuning.noise * tuning.sure);
            (is_full || is_vague).then(|| (seen * if is_full { tuning.noise } else { 1.0 }).hypot(timed))
        };
        // At a new distance, only the costs of a hand-over can be far from their estimates.
        let measured = *self.measured(seen, &seen.regime, tuning);
        let is_new = !measured.is_known() || measured.sd() * tuning.sure > measured.mean * tuning.noise;
        let sure = if is_new { tuning.sure * tuning.sure } else { f64::INFINITY };
        let is_full = seen.is_full(seen.owners, tuning);
        let Costs { receive, hash, work, crossings, slowness } = &mut self.costs;
        let received = seen.time(seen.owners, |cpu| cpu.receive) / total;
        let busy = seen.time(seen.owners, |cpu| cpu.busy) / total;
        let likely = received.max(receive.mean);
        let timed = if likely > 0.0 { likely.min(busy) } else { busy } / seen.timed(seen.owners);
        if let Some(noise) = noise(is_full, received, timed, &[*receive]) {
            let mut given = vec![0.0; crossings.len()];
            for (cpu, class) in regime.others.iter().zip(&classes) {
                let cpu_offered = seen.rate_of(&[*cpu]) * seen.cpu(*cpu).busy.max(1.0);
                given[*class] += cpu_offered / total;
            }
            let given = crossings.iter_mut().zip(given).filter(|(_, share)| *share > 0.0);
            let mut parts: Vec<(&mut Estimate, f64)> = vec![(receive, 1.0)];
            if regime.kind == RegimeKind::Spread {
                parts.push((hash, 1.0));
            }
            let mut bounds = vec![0.0; parts.len()];
            parts.extend(given.map(|(crossing, share)| (&mut crossing.give, share)));
            bounds.resize(parts.len(), f64::INFINITY);
            observe_new(&mut parts, &bounds, received, noise, sure);
        }
        let own = seen.rate_of(seen.owners);
        if own > total * tuning.noise {
            let worked = seen.time(seen.owners, |cpu| cpu.busy - cpu.receive) / own;
            if let Some(noise) = noise(is_full, worked, timed * total / own, &[*work]) {
                work.observe(worked, noise);
            }
        }
        for (cpu, class) in regime.others.iter().zip(&classes) {
            let rate = seen.rate_of(&[*cpu]);
            if rate <= 0.0 {
                continue;
            }
            let is_full = seen.is_full(&[*cpu], tuning);
            let worked = seen.time(&[*cpu], |cpu| cpu.busy) / rate;
            let prior = crossings[*class].prior;
            let (take, slowness) = (&mut crossings[*class].take, &mut slowness[usize::from(*cpu)]);
            let known = [*work, Estimate { mean: work.mean, ..*take }];
            if let Some(noise) = noise(is_full, worked, 0.0, &known) {
                // A CPU's time per packet is a cost times its slowness, linearised at the current
                // values of both.
                let (factor, cost) = (slowness.mean, work.mean + take.mean);
                let parts = &mut [(&mut *work, factor), (take, factor), (slowness, cost)];
                // A hand-over may cost a few times as much as assumed. A greater difference is the
                // slowness of the CPU.
                let bounds = [0.0, prior * tuning.sure * tuning.sure, f64::INFINITY];
                observe_new(parts, &bounds, worked + factor * cost, noise, sure);
            }
        }
        // A single observation corrects all uncertain costs, which can make an estimated cost
        // negative.
        self.costs.all_mut().for_each(|cost| cost.mean = cost.mean.max(0.0));
    }

    fn capacity(&self, seen: &Seen<'_>, cpu: u16, tuning: &Tuning) -> f64 {
        seen.capacity(cpu, tuning) / self.costs.slowness[usize::from(cpu)].mean.max(f64::MIN_POSITIVE)
    }

    /// The capacity of the other CPUs for each class of distances, and the relative variance of the
    /// total capacity.
    fn workers(&mut self, seen: &Seen<'_>, regime: &Regime, tuning: &Tuning) -> (Vec<Workers>, f64) {
        let mut workers: Vec<Workers> = Vec::new();
        let (mut all, mut var) = (0.0, 0.0);
        for cpu in &regime.others {
            let class = self.class(seen, *cpu, tuning);
            let capacity = self.capacity(seen, *cpu, tuning);
            all += capacity;
            let slowness = self.costs.slowness[usize::from(*cpu)];
            var += capacity.powi(2) * slowness.var / slowness.mean.powi(2);
            match workers.iter_mut().find(|workers| workers.class == class) {
                Some(workers) => workers.capacity += capacity,
                None => workers.push(Workers { capacity, class, share: None }),
            }
        }
        (workers, if all > 0.0 { var / (all * all) } else { 0.0 })
    }

    pub(super) fn choice(&mut self, seen: &Seen<'_>, regime: Regime, tuning: &Tuning) -> Choice {
        let (workers, slowness_var) = self.workers(seen, &regime, tuning);
        let owners = seen.owners.iter().map(|cpu| seen.capacity(*cpu, tuning)).sum();
        let Prediction { mut rate, kept, kept_most, .. } = predict(&self.costs, regime.kind, owners, &workers);
        // The model does not include caches or threads that share a core, which adds to the error.
        rate.var += rate.mean.powi(2) * (tuning.noise.powi(2) + slowness_var);
        let predicted = rate;
        let here = *self.measured(seen, &seen.regime, tuning);
        let mut is_relative = false;
        if [regime.kind, seen.regime.kind] == [RegimeKind::Spread; 2] && here.is_known() && rate.is_known() {
            // Uneven buckets, a flow that fills a CPU, and little-known costs affect any number of
            // CPUs, so only the ratio to the current throughput is predicted. If the number of CPUs
            // doubles, an additional error of `noise` is assumed for this ratio.
            let (now, _) = self.workers(seen, &seen.regime, tuning);
            let ratio = predict_relative(&self.costs, RegimeKind::Spread, owners, &workers, Some(&now)).rate;
            let cpus = |others: usize| (seen.owners.len() + others) as f64;
            let off = (cpus(regime.others.len()) / cpus(seen.regime.others.len())).log2() * tuning.noise;
            let var = ratio.var / ratio.mean.powi(2) + off * off;
            let mean = here.mean * ratio.mean;
            rate = Estimate { mean, var: var * mean * mean };
            is_relative = true;
        }
        let key = self.key(seen, &regime, tuning);
        let measured = self.measured.iter().find(|(known, _)| *known == key).map(|(_, rate)| *rate);
        let measured = measured.unwrap_or(Estimate::UNKNOWN);
        let value = rate.with(measured);
        is_relative &= !measured.is_known();
        // If one other CPU takes all packets, spreading only adds hashing to the work of a
        // collector. Spreading over the owners of queues and one other CPU is worth a try only if
        // the owners may have time for a part of the work.
        let kept = if regime.others.len() == 1 { kept_most } else { kept };
        let mut shares = Vec::new();
        for cpu in &regime.others {
            let class = self.class(seen, *cpu, tuning);
            let cost = self.costs.work.mean + self.costs.crossings[class].take.mean;
            shares.push(self.capacity(seen, *cpu, tuning) / cost.max(1.0));
        }
        let all: f64 = shares.iter().sum();
        let even = 1.0 / shares.len().max(1) as f64;
        shares.iter_mut().for_each(|share| *share = (1.0 - kept) * if all > 0.0 { *share / all } else { even });
        Choice { regime, value, is_relative, predicted, shares: (kept, shares) }
    }

    /// All possible regimes, fewest CPUs first, each with the best set of CPUs.
    pub(super) fn choices(&mut self, seen: &Seen<'_>, tuning: &Tuning) -> Vec<Choice> {
        let candidates = self.candidates(seen, tuning);
        let mut regimes = vec![Regime::inline()];
        regimes.extend(candidates.first().map(|cpu| Regime { kind: RegimeKind::Collector, others: vec![*cpu] }));
        let spread = |count| Regime { kind: RegimeKind::Spread, others: candidates[..count].to_vec() };
        // If too many CPUs join at once, the first of them sleeps again before the last is woken.
        let now = seen.regime.others.len();
        let most = candidates.len().min(now + seen.owners.len() * JOIN_AT_ONCE);
        regimes.extend(counts(most, now).map(spread));
        let choices = regimes.into_iter().map(|regime| self.choice(seen, regime, tuning));
        let is_spread = |choice: &Choice| choice.regime.kind == RegimeKind::Spread;
        choices.filter(|choice| !is_spread(choice) || choice.regime.others.len() > 1 || choice.shares.0 > 0.0).collect()
    }

    /// The CPUs that own no queue. The CPU that can take over the most packets is first. A CPU that
    /// has buckets keeps its place unless another CPU can take over more packets by a factor of 1 +
    /// `noise`.
    fn candidates(&mut self, seen: &Seen<'_>, tuning: &Tuning) -> Vec<u16> {
        let (mut candidates, takes_part): (Vec<(f64, u16)>, _) = (Vec::new(), members(&seen.regime.others));
        for cpu in &seen.load.order[seen.owners.len()..] {
            let class = self.class(seen, *cpu, tuning);
            let (crossing, work) = (&self.costs.crossings[class], self.costs.work.mean);
            let stays = if takes_part(cpu) { 1.0 + tuning.noise } else { 1.0 };
            let cost = (work + crossing.take.mean + crossing.give.mean).max(1.0);
            candidates.push((self.capacity(seen, *cpu, tuning) * stays / cost, *cpu));
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        candidates.into_iter().map(|(_, cpu)| cpu).collect()
    }
}

/// The numbers of CPUs to consider: all small numbers, and large numbers in steps of an eighth,
/// because adding one CPU to many hardly matters.
fn counts(most: usize, now: usize) -> impl Iterator<Item = usize> {
    let step = |count: &usize| Some(count + 1 + count / MIN_SAMPLES as usize);
    let steps = std::iter::successors(Some(1), step).take_while(move |count| *count < most);
    let mut counts: Vec<usize> = steps.chain([most, now]).filter(|count| (1..=most).contains(count)).collect();
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If all numbers of CPUs up to 1,024 were considered, a load check would take longer than 10
    /// ms.
    #[test]
    fn few_numbers_of_cpus_are_considered() {
        for now in [0, 1, 500, 1023] {
            let all: Vec<usize> = counts(1023, now).collect();
            assert!(all.len() <= 50, "{}", all.len());
            assert!(all.contains(&1) && all.contains(&1023) && (now == 0 || all.contains(&now)));
            assert!(all.windows(2).all(|pair| pair[1] <= pair[0] + 1 + pair[0] / 8), "{all:?}");
        }
    }
}
