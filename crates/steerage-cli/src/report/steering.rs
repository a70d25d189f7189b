//! The part of the report about the steering policy and its findings.

use steerage::{
    CpuMask, Snapshot,
    stats::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate},
};
use steerage_text::{counted, grouped, printable};

/// The maximum number of elephants (very busy buckets) in the text report. The JSON report contains
/// all elephants.
const ELEPHANTS_SHOWN: usize = 3;

/// Returns lines about each steering group in which something happened. `verbose` adds the groups
/// in which nothing happened, and the costs that explain the choice of CPUs.
pub(super) fn lines(snapshot: &Snapshot, verbose: bool) -> Vec<String> {
    let reports = |group: &&GroupSnapshot| {
        let found = &group.findings;
        let changed = found.joined > 0 || found.left > 0 || found.would_move.is_some();
        group.policy != "hash" && (verbose || changed || !group.elephants.is_empty())
    };
    snapshot.groups.iter().filter(reports).flat_map(|group| of(group, snapshot, verbose)).collect()
}

fn of(group: &GroupSnapshot, snapshot: &Snapshot, verbose: bool) -> Vec<String> {
    let Findings { joined, left, uneven, would_move, reason, .. } = &group.findings;
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
        let reason = if reason.is_empty() { String::new() } else { printable(&format!(" ({reason})")) };
        lines.extend(regimes(&group.findings).into_iter().flat_map(|line| [line + &reason, costs(&group.findings)]));
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

/// Returns the packet rates that the CPUs can handle in each regime (a way to use CPUs), the
/// current regime first. The packet rates of regimes are known only after a CPU has had too little
/// time for its packets.
pub(crate) fn regimes(found: &Findings) -> Option<String> {
    if found.regimes.is_empty() {
        return None;
    }
    let way = |of: &RegimeEstimate| {
        let how = match &*of.regime {
            "spread" => format!("spread over {}", of.cpus),
            "inline" => "without steering".to_owned(),
            "collector" => "if one CPU only receives".to_owned(),
            other => other.to_owned(),
        };
        format!("{:.1} {how}", of.rate / 1e6)
    };
    Some(printable(&format!("Mpps: {}", found.regimes.iter().map(way).collect::<Vec<_>>().join(", "))))
}

/// Returns the measured costs, which explain the packet rates of the regimes.
fn costs(found: &Findings) -> String {
    let cost = |cost: &CostEstimate| format!("{} {:.0} +- {:.0}", cost.step, cost.nanos, cost.deviation);
    let costs: Vec<String> = found.costs.iter().map(cost).collect();
    let apart = found.apart.map_or(String::new(), |apart| format!(" (CPUs are {} ns apart)", apart.as_nanos()));
    format!("ns per packet: {}{apart}", costs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_plain_words_and_the_present_one_comes_first() {
        let mut found = Findings::default();
        assert_eq!(regimes(&found), None);
        let of = |regime: &'static str, cpus, rate| RegimeEstimate::new(regime, cpus, rate, 5.0, rate);
        found.regimes = vec![of("spread", 3, 18.2e6), of("inline", 1, 9.9e6), of("collector", 2, 10.4e6)];
        let line = "Mpps: 18.2 spread over 3, 9.9 without steering, 10.4 if one CPU only receives";
        assert_eq!(regimes(&found).as_deref(), Some(line));
        assert!(line.len() <= 80);
    }
}
