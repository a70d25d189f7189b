use super::Balance;
use super::learn::Choice;
use super::regime::RegimeKind;
use super::seen::Seen;
use steerage_core::placement::{CostEstimate, RegimeEstimate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Start,
    /// The predicted gain over the previous regime was certain.
    Predicted,
    Measured,
    /// A probe of another regime has shown no improvement.
    ProbeFailed,
    /// Fewer CPUs are enough for the recent peak load.
    Quiet,
}

impl Reason {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Predicted => "predicted",
            Self::Measured => "measured",
            Self::ProbeFailed => "probe-failed",
            Self::Quiet => "quiet",
        }
    }
}

impl Balance {
    /// Shows the current regime, the regimes inline and collector, and the regime spread with its
    /// best number of CPUs.
    pub(super) fn report(&mut self, seen: &Seen<'_>) {
        let estimate = |choice: &Choice| {
            let per_second = |rate: f64| rate * 1e9;
            RegimeEstimate::new(
                choice.regime.kind.name(),
                seen.owners.len() + choice.regime.others.len(),
                per_second(choice.value.mean),
                per_second(choice.value.sd()),
                per_second(choice.predicted.mean),
            )
        };
        self.findings.regime = seen.regime.kind.name().into();
        self.findings.reason = self.reason.name().into();
        let present = self.known.choice(seen, seen.regime.clone(), &self.tuning);
        let choices = self.known.choices(seen, &self.tuning);
        let others = choices.into_iter().filter(|choice| choice.regime != seen.regime);
        let (spread, single): (Vec<Choice>, Vec<Choice>) =
            others.partition(|choice| choice.regime.kind == RegimeKind::Spread);
        let best = spread.into_iter().max_by(|a, b| a.value.mean.total_cmp(&b.value.mean));
        let shown = [present].into_iter().chain(single).chain(best);
        self.findings.regimes =
            shown.filter(|choice| choice.value.is_known()).map(|choice| estimate(&choice)).collect();
        let costs = &self.known.costs;
        // The hand-over costs to the first of the CPUs that have joined, or else to the next CPU
        // that would join.
        let cpu = seen.regime.others.first().or(seen.load.order.get(seen.owners.len()));
        let apart = cpu.and_then(|cpu| seen.load.apart[usize::from(*cpu)]);
        self.findings.apart = apart;
        let crossing = &costs.crossings[self.known.class_of(apart, &self.tuning)];
        let steps = [
            ("receive", costs.receive),
            ("hash", costs.hash),
            ("work", costs.work),
            ("give", crossing.give),
            ("take", crossing.take),
        ];
        let known = steps.into_iter().filter(|(_, cost)| costs.work.is_known() && cost.is_known());
        self.findings.costs = known.map(|(step, cost)| CostEstimate::new(step, cost.mean, cost.sd())).collect();
    }
}
