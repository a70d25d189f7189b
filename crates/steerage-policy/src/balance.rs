//! The policy that steers by load: [`Balance`].
//!
//! A group of queues is always in one of three *regimes*, which are ways of spreading packets over
//! CPUs. In the regime `inline`, the CPUs that receive packets also do all other work. In the
//! regime `collector`, one other CPU handles all packets. In the regime `spread`, `k` other CPUs
//! handle the packets, and the receiving CPUs may handle a part. The policy estimates the cost of a
//! packet (`costs`), predicts the throughput of every regime from these costs (`regime`), and
//! measures the throughput of the current regime. The *value* of a regime is the mean of its
//! predicted and its measured throughput, weighted by the certainty of each (`learn`).
//! `lab/notes/balance.md` contains the formulas.
//!
//! While CPUs are short of time, the policy switches to the regime with the best value, if the gain
//! is certain and pays for the switch within a second. If a gain is possible but uncertain, the
//! policy probes the regime for a tenth of a second. Probes take at most 1 % of the time. CPUs
//! leave (give up their buckets) only if the remaining CPUs can handle the recent peak of the load
//! (`demand`).
//!
//! Within a regime, buckets move from the busiest to the least busy CPU (`place`).

mod costs;
mod demand;
mod learn;
mod place;
mod regime;
mod report;
mod seen;

use std::time::Duration;

use costs::Estimate;
pub use costs::{Costs, PathCosts};
use demand::Demand;
use learn::{Choice, Known};
use regime::Regime;
pub use regime::{Prediction, RegimeKind, Workers, predict};
use report::Reason;
use seen::Seen;

use crate::limits::{REFINE_EVERY, Tuning};
use crate::packing::members;
use crate::policy::{GroupLoad, GroupStart, MapRequest, Policy};
use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;
use steerage_core::placement::{Findings, Plan};
use steerage_flow::Timestamp;

/// Moves buckets between CPUs according to the load of the CPUs.
///
/// ```
/// use steerage_policy::{Balance, Policy};
///
/// assert_eq!(Balance::new().name(), "balance");
/// // Says what it would do, and moves nothing.
/// assert_eq!(Balance::dry_run().name(), "dry-run");
/// ```
#[derive(Clone, Debug)]
pub struct Balance {
    dry_run: bool,
    tuning: Tuning,
    known: Known,
    demand: Demand,
    /// The probe of another regime, while it lasts.
    probe: Option<Box<Probe>>,
    seen_since: Option<Timestamp>,
    /// The time at which the current regime began. `None` if the group has had only one regime.
    began: Option<Timestamp>,
    /// The time at which buckets last began to move. The load check after buckets have moved is
    /// ignored, because it measures a time in which two bucket maps were in effect.
    moving: Option<Timestamp>,
    switch: f64,
    budget: Duration,
    /// CPUs leave (give up their buckets) after they have been unnecessary for this time.
    patience: Duration,
    left: Option<Timestamp>,
    /// A regime whose throughput was lower in a probe, although the CPUs were not short of time.
    /// The throughput is recorded only if the CPUs are short of time immediately after the probe.
    doubt: Option<(Regime, f64)>,
    /// True if all CPUs had equal work in a measuring period after the regime's start and the last
    /// move. Until CPUs have equal work, the measured throughput shows the quality of the bucket
    /// map, and not that of the regime.
    is_even: bool,
    buckets: Vec<f64>,
    asked: usize,
    asks_distance: Option<u16>,
    reason: Reason,
    findings: Findings,
}

#[derive(Clone, Debug)]
struct Probe {
    /// The regime before the probe, its bucket map, and its value when the group left it.
    before: Regime,
    map: Box<[u16; BUCKETS]>,
    baseline: Estimate,
    arrived: Option<Timestamp>,
    /// The number of load checks that measured the throughput of the regime on trial. `less` has
    /// the throughputs of load checks at which CPUs had time left, but throughput was lower than
    /// before the probe.
    measured: u32,
    less: Vec<f64>,
}

impl Default for Balance {
    fn default() -> Self {
        Self::with(Tuning::default(), false)
    }
}

impl Balance {
    /// Creates a policy that has not measured anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a policy that places buckets as [`Hash`](super::Hash) does, and reports the moves
    /// that [`Balance::new`] would request.
    pub fn dry_run() -> Self {
        Self::with(Tuning::default(), true)
    }

    pub(crate) fn with(tuning: Tuning, dry_run: bool) -> Self {
        Self {
            dry_run,
            tuning,
            known: Known::new(&tuning),
            demand: Demand::default(),
            probe: None,
            seen_since: None,
            began: None,
            moving: None,
            switch: REFINE_EVERY.as_nanos() as f64,
            budget: tuning.probe,
            patience: tuning.dwell,
            left: None,
            doubt: None,
            is_even: false,
            buckets: Vec::new(),
            asked: 0,
            asks_distance: None,
            reason: Reason::Start,
            findings: Findings::default(),
        }
    }

    fn switch(&mut self, seen: &Seen<'_>, to: &Regime, map: Box<[u16; BUCKETS]>) -> MapRequest {
        let now = seen.load.now;
        let cause = match to.others.len().cmp(&seen.regime.others.len()) {
            std::cmp::Ordering::Greater => MoveCause::Joined,
            std::cmp::Ordering::Less => MoveCause::Left,
            std::cmp::Ordering::Equal => MoveCause::Balance,
        };
        tracing::debug!(
            from = %seen.regime,
            %to,
            why = self.reason.name(),
            mpps = format_args!("{:.1}", seen.rate * 1e3),
            short = seen.is_short,
            budget_ms = self.budget.as_millis(),
            "another regime"
        );
        self.findings.joined += u64::from(cause == MoveCause::Joined);
        self.findings.left += u64::from(cause == MoveCause::Left);
        self.began = Some(now);
        if seen.regime.kind == RegimeKind::Spread && !self.is_even {
            self.known.measure_anew(seen, &seen.regime, &self.tuning);
        }
        self.is_even = false;
        MapRequest { map, cause }
    }

    fn enter(&mut self, seen: &Seen<'_>, choice: &Choice, baseline: Estimate) -> Option<MapRequest> {
        let now = seen.load.now;
        let map = self.place(seen, choice);
        if map[..] == seen.load.map[..] {
            return None;
        }
        if self.left.take().is_some_and(|left| now.since(left) < self.patience * 2) {
            self.patience *= 2;
        }
        if self.began.is_none() {
            // The group's first switch of the regime uses up the time budget for probes, even if
            // the gain seems certain.
            self.budget = Duration::ZERO;
        }
        self.probe = Some(Box::new(Probe {
            before: seen.regime.clone(),
            map: Box::new(*seen.load.map),
            baseline,
            arrived: None,
            measured: 0,
            less: Vec::new(),
        }));
        Some(self.switch(seen, &choice.regime, map))
    }

    fn has_settled(&self, now: Timestamp, time: Duration) -> bool {
        self.began.is_none_or(|began| now.since(began) >= time)
    }

    fn decide(&mut self, seen: &Seen<'_>, is_pressed: bool) -> Option<MapRequest> {
        if is_pressed {
            return self.improve(seen);
        }
        let is_early = self.seen_since.is_none_or(|since| seen.load.now.since(since) < self.patience);
        if seen.is_short || seen.regime.others.is_empty() || is_early || !self.has_settled(seen.load.now, self.patience)
        {
            return None;
        }
        // CPUs join until there is room for one step of load growth, and leave only if room for two
        // steps remains, so that a CPU that has left does not have to join again immediately.
        let wanted = self.demand.peak() * self.tuning.growth.powi(2) / self.tuning.fill;
        let is_enough =
            |choice: &Choice| choice.regime.others.len() < seen.regime.others.len() && choice.value.mean >= wanted;
        let choice = self.known.choices(seen, &self.tuning).into_iter().find(is_enough)?;
        self.left = Some(seen.load.now);
        self.reason = Reason::Quiet;
        let map = self.place(seen, &choice);
        Some(self.switch(seen, &choice.regime, map))
    }

    fn improve(&mut self, seen: &Seen<'_>) -> Option<MapRequest> {
        let (tuning, now) = (self.tuning, seen.load.now);
        if let Some((regime, rate)) = self.doubt.take() {
            // The demand is as high as before, so the regime on trial caused the lower throughput.
            self.known.measured(seen, &regime, &tuning).observe(rate, rate * tuning.noise);
        }
        let measured = *self.known.measured(seen, &seen.regime, &tuning);
        let here = if measured.is_known() { measured } else { Estimate::new(seen.rate, seen.rate * tuning.noise) };
        let wanted = self.demand.peak() / tuning.fill;
        // A gain must exceed the cost of switching the regime.
        let least = self.switch / tuning.dwell.as_nanos() as f64;
        let is_settled = self.has_settled(now, tuning.dwell);
        // CPUs may join immediately. A switch without a joining CPU has to wait until the current
        // regime has lasted for `dwell`. A first regime that was chosen by a measured distance may
        // be wrong, and may be replaced earlier. The gain must then pay for a probe if the load
        // lasts as long again as it has lasted so far.
        let joins = |choice: &Choice| choice.regime.others.len() > seen.regime.others.len();
        let needed = |choice: &Choice| match self.began {
            _ if is_settled || joins(choice) && seen.regime.kind != RegimeKind::Inline => least,
            Some(began) if self.began == self.seen_since => {
                tuning.probe.as_nanos() as f64 / now.since(began).as_nanos().max(1) as f64
            }
            _ if joins(choice) => least,
            _ => f64::INFINITY,
        };
        let gains: Vec<(Gain, f64, Choice)> = self
            .known
            .choices(seen, &tuning)
            .into_iter()
            .filter(|choice| choice.regime != seen.regime && choice.value.is_known())
            .map(|choice| {
                let var = if choice.is_relative { 0.0 } else { here.var };
                (Gain::of(choice.value, Estimate { var, ..here }, wanted, tuning.sure), needed(&choice), choice)
            })
            .collect();
        let is_refuted = |choice: &Choice| self.known.is_refuted(seen, &choice.regime, &tuning);
        let sure = gains.iter().filter(|(gain, needed, choice)| gain.low > *needed && !is_refuted(choice));
        let sure = sure.map(|(gain, _, choice)| (gain, choice));
        if let Some(best) = sure.clone().map(|(gain, _)| gain.mean).max_by(f64::total_cmp) {
            // Prefer few CPUs among the regimes that are about as good as the best regime.
            let good = sure.filter(|(gain, _)| gain.mean >= best - least).map(|(_, choice)| choice);
            let fewest = good.clone().map(|choice| choice.regime.others.len()).min()?;
            let good = good.filter(|choice| choice.regime.others.len() == fewest);
            let choice = good.max_by(|a, b| a.value.mean.total_cmp(&b.value.mean))?;
            self.reason = Reason::Predicted;
            return self.enter(seen, choice, here);
        }
        if self.budget < tuning.probe || !is_settled {
            return None;
        }
        let possible = gains.iter().filter(|(gain, _, _)| gain.high > 2.0 * least || gain.low > least);
        let (_, _, choice) = possible.max_by(|a, b| a.0.promise().total_cmp(&b.0.promise()))?;
        let request = self.enter(seen, choice, here)?;
        self.budget = self.budget.saturating_sub(tuning.probe);
        Some(request)
    }

    fn judge(&mut self, seen: &Seen<'_>, mut probe: Box<Probe>) -> Option<MapRequest> {
        let (tuning, now) = (self.tuning, seen.load.now);
        let arrived = *probe.arrived.get_or_insert(now);
        let is_as_much = seen.rate >= probe.baseline.mean * (1.0 - tuning.noise);
        if seen.is_short || is_as_much {
            probe.measured += 1;
        } else if seen.rate > 0.0 {
            probe.less.push(seen.rate);
        }
        let value = *self.known.measured(seen, &seen.regime, &tuning);
        let gain = Gain::of(value, probe.baseline, f64::INFINITY, tuning.sure);
        // If the CPUs are no longer short of time, the regime on trial is sufficient for the load,
        // although its maximum throughput is not known.
        let is_enough = is_as_much && !seen.is_short;
        let is_better = probe.measured > 0 && value.is_known() && gain.low > 0.0 || is_enough;
        if !is_better && now.since(arrived) < tuning.probe {
            self.probe = Some(probe);
            return None;
        }
        if is_better || (probe.measured > 0 && gain.mean > 0.0) {
            self.reason = Reason::Measured;
            return None;
        }
        if probe.measured == 0 && !probe.less.is_empty() {
            let mean = probe.less.iter().sum::<f64>() / probe.less.len() as f64;
            self.doubt = Some((seen.regime.clone(), mean));
        }
        if !probe.map.iter().all(members(seen.load.order)) {
            return None;
        }
        self.reason = Reason::ProbeFailed;
        self.known.refute(seen, &tuning);
        Some(self.switch(seen, &probe.before, probe.map))
    }

    /// At each call, requests the distance of another of the CPUs that do not receive. Distances
    /// matter only if CPUs are short of time and the packet function takes little time.
    fn ask_distance(&mut self, seen: &Seen<'_>) {
        let costs = &self.known.costs;
        let handing_over = 2.0 * self.tuning.hand_over * self.tuning.line.as_nanos() as f64;
        let matters = handing_over > self.tuning.noise * (costs.receive.mean + costs.work.mean);
        let candidates = &seen.load.order[seen.owners.len()..];
        self.asks_distance = None;
        if seen.is_short && matters && !candidates.is_empty() {
            self.asked = (self.asked + 1) % candidates.len();
            self.asks_distance = Some(candidates[self.asked]);
        }
    }
}

/// How much better a regime is than the current regime, as a fraction of the current throughput.
#[derive(Clone, Copy, Debug)]
struct Gain {
    low: f64,
    mean: f64,
    high: f64,
    deviation: f64,
}

impl Gain {
    /// Throughput above `wanted` is no gain. The bounds `low` and `high` are computed for the
    /// logarithm of the gain.
    fn of(value: Estimate, here: Estimate, wanted: f64, sure: f64) -> Self {
        let by = sure * (value.var / value.mean.powi(2) + here.var / here.mean.powi(2)).sqrt();
        let part = |rate: f64| (rate.min(wanted) - here.mean.min(wanted)) / here.mean;
        let (low, mean, high) = (value.mean * (-by).exp(), value.mean, value.mean * by.exp());
        let deviation = by / sure * value.mean / here.mean;
        Self { low: part(low), mean: part(mean), high: part(high), deviation }
    }

    /// The expected gain of a probe, with negative gains as zero. A regime about which little is
    /// known may have as large an expected gain as a regime that is good on average.
    fn promise(self) -> f64 {
        let z = self.mean / self.deviation.max(f64::MIN_POSITIVE);
        let density = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
        // This logistic function differs by less than 0.01 from the cumulative normal distribution.
        let probability = 1.0 / (1.0 + (-1.702 * z).exp());
        self.deviation * density + self.mean * probability
    }
}

impl Policy for Balance {
    fn name(&self) -> &'static str {
        if self.dry_run { "dry-run" } else { "balance" }
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(Self::with(self.tuning, self.dry_run))
    }

    /// A group begins in the regime inline (the receiving CPUs do all work). It begins in the
    /// regime collector (the next CPU handles all packets) if only one CPU receives, the devices
    /// can wait for room, as files can, and the next CPU is near. At the start, nothing is known
    /// about the packets. If the collector is a bad choice, it costs little, because handing
    /// packets to a near CPU is cheap. If the collector is a good choice, the group handles up to
    /// twice as many packets, and the handlers' state (such as a flow table) grows on the CPU that
    /// will keep the packets.
    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        if self.dry_run {
            return Plan::all();
        }
        let is_near = group.apart.is_some_and(|apart| apart < self.tuning.line);
        let first: Vec<u16> = match (group.active, group.order) {
            ([], [owner, next, ..]) if group.owners == 1 && group.can_wait && is_near => {
                return Plan { order: vec![*next, *owner], active: 1 };
            }
            ([], order) => order[..group.owners.min(order.len())].to_vec(),
            (active, order) => order.iter().copied().filter(|cpu| active.contains(cpu)).collect(),
        };
        Plan { active: first.len(), order: first }
    }

    fn cpus_changed(&mut self) {
        // Measurements before the change of CPUs cannot be compared with those after it.
        self.probe = None;
        self.budget = self.tuning.probe;
        self.is_even = false;
        self.known.start_over();
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        let tuning = self.tuning;
        let seen = Seen::of(load, &tuning);
        if self.dry_run {
            if let Some(window) = &load.window {
                let request = self.even_out(&seen, window);
                let moves =
                    |request: MapRequest| request.map.iter().zip(load.map).filter(|(new, old)| new != old).count();
                self.findings.would_move = Some(request.map_or(0, moves));
            }
            return None;
        }
        if self.seen_since.is_none() {
            self.seen_since = Some(load.now);
            // If devices can wait for room, the measured distance may have decided the first
            // regime: see `plan`.
            let next = load.order.get(load.owners).and_then(|next| load.apart[usize::from(*next)]);
            let is_far = next.is_some_and(|apart| apart >= tuning.line);
            let is_decided =
                seen.regime.kind == RegimeKind::Collector || seen.regime.kind == RegimeKind::Inline && is_far;
            self.began = (load.can_wait && is_decided).then_some(load.now);
        }
        self.known.costs.cpus(load.cpus.len(), &tuning);
        self.known.forget(load.elapsed, &tuning);
        self.budget = (self.budget + load.elapsed.mul_f64(tuning.budget)).min(tuning.probe);
        if let Some(window) = &load.window {
            self.buckets.clear();
            self.buckets.extend_from_slice(window.buckets);
        }
        let offered = seen.offered * if seen.is_short { tuning.growth } else { 1.0 };
        let is_late = load.elapsed >= 2 * REFINE_EVERY;
        let is_pressed = self.demand.note(load.now, offered, seen.is_short, is_late, self.patience);
        self.ask_distance(&seen);
        if let Some(since) = self.moving.take() {
            let took = load.now.since(since).min(tuning.probe).as_nanos() as f64;
            self.switch += (took - self.switch) * tuning.recent;
            return None;
        }
        let request = match self.probe.take() {
            Some(probe) => {
                self.known.learn_costs(&seen, &tuning);
                if seen.is_short && self.known.learn_rate(&seen, &tuning) {
                    self.known.measure_anew(&seen, &seen.regime, &tuning);
                }
                self.judge(&seen, probe)
            }
            None => {
                if !seen.is_short {
                    self.known.learn_enough(&seen, &tuning);
                } else if self.known.learn_rate(&seen, &tuning) {
                    self.known.start_over();
                    self.known.costs.cpus(load.cpus.len(), &tuning);
                    self.known.learn_rate(&seen, &tuning);
                }
                self.known.learn_costs(&seen, &tuning);
                if self.known.is_surprised() { None } else { self.decide(&seen, is_pressed) }
            }
        };
        self.report(&seen);
        let request = request.or_else(|| {
            let request = self.even_out(&seen, load.window.as_ref()?);
            self.is_even = request.is_none();
            let request = request?;
            self.known.measure_anew(&seen, &seen.regime, &tuning);
            Some(request)
        });
        if load.window.is_some() || request.is_some() {
            self.report(&seen);
        }
        self.moving = request.is_some().then_some(load.now);
        request
    }

    fn moves_receivers(&self) -> bool {
        !self.dry_run
    }

    fn asks_distance(&self) -> Option<u16> {
        self.asks_distance
    }

    fn findings(&self) -> Findings {
        self.findings.clone()
    }
}
