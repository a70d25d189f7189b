//! How packets were spread: the policy, and its findings.

use std::time::Duration;

use serde::Serialize;
use steerage::{
    CpuMask, Snapshot,
    stats::{Elephant, Findings, GroupSnapshot},
};

use crate::units::{counted, grouped};

/// The text shows at most this many elephants; the JSON report has all of them.
const ELEPHANTS_SHOWN: usize = 3;

/// The lines of each steering group that has something to report.
pub(super) fn lines(snapshot: &Snapshot) -> Vec<String> {
    snapshot.groups.iter().filter(|group| group.policy != "hash").flat_map(|group| of(group, snapshot)).collect()
}

fn of(group: &GroupSnapshot, snapshot: &Snapshot) -> Vec<String> {
    let Findings { joined, left, uneven, apart, pays_at, fails_at, would_move, .. } = &group.findings;
    let mask = group.queues.first().map_or(0, |queue| snapshot.queues[*queue].rps_cpus.len());
    if mask < 2 {
        return Vec::new();
    }
    let active: CpuMask = group.active.iter().copied().collect();
    let mut line = format!("{} of {mask} CPUs ({active}) by {}", group.active.len(), group.policy);
    if *joined > 0 {
        line += &format!(", {} joined, {} left", grouped(*joined), grouped(*left));
    }
    if let Some(uneven) = uneven.filter(|_| group.active.len() > 1) {
        line += &format!(", busiest {uneven:.2} of the best");
    }
    if let Some(buckets) = would_move {
        line += &format!(", would move {}", counted(*buckets as u64, "bucket"));
    }
    let mut lines = vec![line];
    let learned = match (pays_at, fails_at) {
        (Some(pays), Some(fails)) => {
            Some(format!("handing over paid at {} of work a packet, not at {}", nanos(*pays), nanos(*fails)))
        }
        (Some(pays), None) => Some(format!("handing over paid at {} of work a packet", nanos(*pays))),
        (None, Some(fails)) => Some(format!("handing over did not pay at {} of work a packet", nanos(*fails))),
        (None, None) => None,
    };
    let apart = apart.map_or(String::new(), |apart| format!(", where a cache line takes {}", nanos(apart)));
    lines.extend(learned.map(|learned| learned + &apart));
    for Elephant { bucket, load, flow, .. } in group.elephants.iter().take(ELEPHANTS_SHOWN) {
        let share = load * 100.0;
        lines.push(match flow {
            Some(flow) => format!("{flow} takes {share:.0} % of a CPU: a flow cannot be spread"),
            None => format!("bucket {bucket} takes {share:.0} % of a CPU, by several flows"),
        });
    }
    lines
}

fn nanos(time: Duration) -> String {
    format!("{} ns", grouped(time.as_nanos() as u64))
}

/// A steering group in the JSON report.
#[derive(Serialize)]
pub(super) struct SteeringJson {
    policy: &'static str,
    /// The numbers of its queues, counted over all inputs.
    queues: Vec<usize>,
    active_list: String,
    joined: u64,
    left: u64,
    uneven: Option<f64>,
    apart_ns: Option<u64>,
    pays_at_ns: Option<u64>,
    fails_at_ns: Option<u64>,
    elephants: Vec<ElephantJson>,
    would_move: Option<usize>,
}

#[derive(Serialize)]
struct ElephantJson {
    bucket: u16,
    load: f64,
    flow: Option<String>,
}

impl SteeringJson {
    pub(super) fn of(group: &GroupSnapshot) -> Self {
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
            pays_at_ns: found.pays_at.map(nanos),
            fails_at_ns: found.fails_at.map(nanos),
            elephants: group
                .elephants
                .iter()
                .map(|e| ElephantJson { bucket: e.bucket, load: e.load, flow: e.flow.map(|flow| flow.to_string()) })
                .collect(),
            would_move: found.would_move,
        }
    }
}
