//! How packets were spread: the policy, and its findings.

use std::time::Duration;

use serde::Serialize;
use steerage::{
    CpuMask, Snapshot,
    stats::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate},
};

use super::private::{Form, Private};
use crate::units::{counted, grouped};

/// The text shows at most this many elephants; the JSON report has all of them.
const ELEPHANTS_SHOWN: usize = 3;

/// The lines of each steering group that has something to report. With `verbose`, a group also
/// reports if nothing changed, and the costs behind its choice.
pub(super) fn lines(snapshot: &Snapshot, verbose: bool) -> Vec<String> {
    let reports = |group: &&GroupSnapshot| {
        let found = &group.findings;
        let changed = found.joined > 0 || found.left > 0 || found.would_move.is_some();
        group.policy != "hash" && (verbose || changed || !group.elephants.is_empty())
    };
    snapshot.groups.iter().filter(reports).flat_map(|group| of(group, snapshot, verbose)).collect()
}

fn of(group: &GroupSnapshot, snapshot: &Snapshot, verbose: bool) -> Vec<String> {
    let Findings { joined, left, uneven, would_move, .. } = &group.findings;
    let mask = group.queues.first().map_or(0, |queue| snapshot.queues[*queue].rps_cpus.len());
    if mask < 2 {
        return Vec::new();
    }
    let active: CpuMask = group.active.iter().copied().collect();
    let mut line = format!("{} of {mask} CPUs ({active}) by {}", group.active.len(), group.policy);
    if *joined > 0 || *left > 0 {
        line += &format!(", {} added, {} removed", counted(*joined, "CPU"), grouped(*left));
    }
    if let Some(uneven) = uneven.filter(|_| group.active.len() > 1) {
        line += &format!(", busiest {uneven:.2} times the best possible");
    }
    if let Some(buckets) = would_move {
        line += &format!(", would move {}", counted(*buckets as u64, "bucket"));
    }
    let mut lines = vec![line];
    if verbose {
        lines.extend(regimes(&group.findings));
    }
    for Elephant { bucket, load, flow, .. } in group.elephants.iter().take(ELEPHANTS_SHOWN) {
        let share = load * 100.0;
        lines.push(match flow {
            Some(flow) => format!("{flow} takes {share:.0} % of a CPU: a flow cannot be spread"),
            None => format!("bucket {bucket} takes {share:.0} % of a CPU, with several flows"),
        });
    }
    lines
}

/// The values of the regimes, with the current one first, and the costs that explain them. The
/// values are missing until a CPU has been short of time.
fn regimes(found: &Findings) -> Vec<String> {
    let Some((present, others)) = found.regimes.split_first() else { return Vec::new() };
    let mega = |rate: f64| format!("{:.1}", rate / 1e6);
    let mut line = format!("{} over {}: {} Mpps", present.regime, present.cpus, mega(present.rate));
    for other in others {
        let name = if other.regime == "spread" { format!("spread over {}", other.cpus) } else { other.regime.into() };
        line += &format!(", {name} {}", mega(other.rate));
    }
    line += &format!(" ({})", found.reason);
    let cost = |cost: &CostEstimate| format!("{} {:.0} +- {:.0}", cost.step, cost.nanos, cost.deviation);
    let costs: Vec<String> = found.costs.iter().map(cost).collect();
    let apart = found.apart.map_or(String::new(), |apart| format!(" (CPUs are {} ns apart)", apart.as_nanos()));
    vec![line, format!("ns per packet: {}{apart}", costs.join(", "))]
}

/// A steering group in the JSON report.
#[derive(Serialize)]
pub(super) struct SteeringJson {
    policy: &'static str,
    /// The numbers of the group's queues, counted over all inputs.
    queues: Vec<usize>,
    active_list: String,
    joined: u64,
    left: u64,
    uneven: Option<f64>,
    apart_ns: Option<u64>,
    regime: Option<&'static str>,
    reason: Option<&'static str>,
    costs: Vec<CostJson>,
    regimes: Vec<RegimeJson>,
    elephants: Vec<ElephantJson>,
    would_move: Option<usize>,
}

#[derive(Serialize)]
struct CostJson {
    step: &'static str,
    ns: f64,
    deviation_ns: f64,
}

#[derive(Serialize)]
struct RegimeJson {
    regime: &'static str,
    cpus: usize,
    rate: f64,
    deviation: f64,
    predicted: f64,
}

#[derive(Serialize)]
struct ElephantJson {
    bucket: u16,
    load: f64,
    flow: Private<Option<String>>,
}

impl CostJson {
    fn of(cost: &CostEstimate) -> Self {
        Self { step: cost.step, ns: rounded(cost.nanos), deviation_ns: rounded(cost.deviation) }
    }
}

impl ElephantJson {
    fn of(elephant: &Elephant, form: &Form) -> Self {
        let flow = form.private("steering.elephants.flow", elephant.flow.map(|flow| flow.to_string()));
        Self { bucket: elephant.bucket, load: elephant.load, flow }
    }
}

impl RegimeJson {
    fn of(found: &RegimeEstimate) -> Self {
        let RegimeEstimate { regime, cpus, rate, deviation, predicted, .. } = *found;
        Self { regime, cpus, rate: rate.round(), deviation: deviation.round(), predicted: predicted.round() }
    }
}

/// Rounds to a tenth, since more digits would be noise.
fn rounded(nanos: f64) -> f64 {
    (nanos * 10.0).round() / 10.0
}

impl SteeringJson {
    pub(super) fn of(group: &GroupSnapshot, form: &Form) -> Self {
        let found = &group.findings;
        let nanos = |time: Duration| time.as_nanos() as u64;
        Self {
            policy: group.policy,
            queues: group.queues.clone(),
            active_list: group.active.iter().copied().collect::<CpuMask>().to_list(),
            joined: found.joined,
            left: found.left,
            uneven: found.uneven,
            apart_ns: found.apart.map(nanos),
            regime: Some(found.regime).filter(|name| !name.is_empty()),
            reason: Some(found.reason).filter(|reason| !reason.is_empty()),
            costs: found.costs.iter().map(CostJson::of).collect(),
            regimes: found.regimes.iter().map(RegimeJson::of).collect(),
            elephants: group.elephants.iter().map(|elephant| ElephantJson::of(elephant, form)).collect(),
            would_move: found.would_move,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use steerage::FlowKey;
    use steerage_control::Audience;

    use super::*;

    /// The addresses of the flow that fills a CPU are as private as those of the largest flows.
    #[test]
    fn the_flow_of_an_elephant_is_not_for_everybody() {
        let end = |text: &str| text.parse().unwrap();
        let flow = FlowKey::v4(end("192.0.2.1:1000"), end("198.51.100.2:443"), 6);
        let elephants = vec![Elephant::new(7, 0.9, Some(flow)), Elephant::new(8, 0.6, None)];
        let group = GroupSnapshot::new("balance", vec![0], Vec::new(), elephants, Findings::default());
        let shown = |audience| {
            let form = Form::of(audience);
            let json = serde_json::to_value(SteeringJson::of(&group, &form)).unwrap();
            (json["elephants"].clone(), form.withheld())
        };
        let (private, withheld) = shown(Audience::Private);
        assert_eq!((&private[0]["flow"], withheld), (&json!(flow.to_string()), vec![]));
        let (public, withheld) = shown(Audience::Public);
        assert_eq!((&public[0]["bucket"], &public[0]["flow"]), (&json!(7), &Value::Null));
        assert!(!public.to_string().contains("192.0.2.1"), "{public}");
        assert_eq!(withheld, ["steering.elephants.flow"]);
    }
}
