//! How packets were spread over CPUs: the policy, and what the policy found.

use steerage::{
    CpuMask, Snapshot,
    stats::{CostEstimate, Elephant, Findings, GroupSnapshot},
};
use steerage_text::{counted, grouped, printable};

/// The text shows at most this many elephants; the JSON report has all of them.
const ELEPHANTS_SHOWN: usize = 3;

/// The lines of each steering group that has something to report. With `verbose`, the lines also
/// say that nothing changed in a group, and list the costs that explain the group's choice.
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
    let mut lines = vec![line];
    let uneven = uneven.filter(|_| group.active.len() > 1);
    let shares: Vec<String> = [
        uneven.map(|uneven| format!("busiest {uneven:.2} times the best possible")),
        would_move.map(|buckets| format!("would move {}", counted(buckets as u64, "bucket"))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !shares.is_empty() {
        lines.push(shares.join(", "));
    }
    if verbose {
        lines.extend(regimes(&group.findings).into_iter().flat_map(|line| [line, costs(&group.findings)]));
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

/// The values of the regimes, with the current one first. Regimes have no values until a CPU has been
/// short of time.
pub(crate) fn regimes(found: &Findings) -> Option<String> {
    let (present, others) = found.regimes.split_first()?;
    let mega = |rate: f64| format!("{:.1}", rate / 1e6);
    let mut line = format!("{} over {}: {} Mpps", present.regime, present.cpus, mega(present.rate));
    for other in others {
        let cpus = if other.regime == "spread" { format!(" over {}", other.cpus) } else { String::new() };
        line += &format!(", {}{cpus} {}", other.regime, mega(other.rate));
    }
    if !found.reason.is_empty() {
        line += &format!(" ({})", found.reason);
    }
    Some(printable(&line))
}

/// The costs that explain the values of the regimes.
fn costs(found: &Findings) -> String {
    let cost = |cost: &CostEstimate| format!("{} {:.0} +- {:.0}", cost.step, cost.nanos, cost.deviation);
    let costs: Vec<String> = found.costs.iter().map(cost).collect();
    let apart = found.apart.map_or(String::new(), |apart| format!(" (CPUs are {} ns apart)", apart.as_nanos()));
    format!("ns per packet: {}{apart}", costs.join(", "))
}
