//! The `path` experiment in short: one line for each row of the table of aims in
//! docs/performance.md.

use std::fmt::Write;

use crate::compare::{compare, times};
use crate::experiments::path_series as series;
use crate::placement::Placement;
use crate::report::{Experiment, Pair};
use crate::stats::{Spread, groups, placements};

/// An aim of the receive path.
struct Row {
    what: &'static str,
    series: &'static str,
    metric: &'static str,
    aim: Aim,
}

/// How good a row should be.
enum Aim {
    /// At most this many times as long as another series in the same round.
    Times(&'static str, f64),
    /// At most this many nanoseconds if the CPUs are near, and if they are far. The figures are
    /// from one machine each, so that other machines can only compare with them.
    Nanos(Option<f64>, Option<f64>),
    /// Better than a program that only `peers/run` starts.
    Peer(&'static str),
}

const RECEIVE: &str = "receive_ns";

const ROWS: [Row; 9] = [
    Row { what: "1 target", series: series::ONE_TARGET, metric: RECEIVE, aim: Aim::Times(series::BARE, 1.2) },
    Row { what: "2 targets", series: series::TWO_TARGETS, metric: RECEIVE, aim: Aim::Times(series::BARE, 1.3) },
    Row { what: "16 targets", series: series::SIXTEEN_TARGETS, metric: RECEIVE, aim: Aim::Times(series::BARE, 1.6) },
    Row { what: "our hash", series: series::OUR_HASH, metric: RECEIVE, aim: Aim::Nanos(Some(17.0), Some(35.0)) },
    Row { what: "mixed traffic", series: series::MIXED, metric: RECEIVE, aim: Aim::Times(series::OUR_HASH, 1.3) },
    Row { what: "worker", series: series::ONE_TARGET, metric: "work_ns", aim: Aim::Nanos(Some(9.0), None) },
    Row { what: "page home", series: series::PAGES, metric: RECEIVE, aim: Aim::Peer("rte_mempool") },
    Row { what: "one CPU", series: series::INLINE, metric: RECEIVE, aim: Aim::Peer("DPDK run to completion") },
    Row { what: "1 target, far", series: series::ONE_TARGET, metric: RECEIVE, aim: Aim::Nanos(None, Some(25.0)) },
];

/// The text for the row that requires interfaces, and so is not part of this experiment.
const ELSEWHERE: &str = "forward by AF_XDP: it needs interfaces; measure it with peers/run --only forward\n";

/// The text for the rows about far CPUs, if there were none.
const NEVER_FAR: &str = "far   1 target, our hash: the CPUs were not far from each other in any run\n";

/// The summary of the `path` experiment: for each placement and row, the median of the runs, and
/// how far it is from the aim.
pub fn summary(experiment: &Experiment) -> String {
    let mut text = String::new();
    let groups = groups(experiment);
    for placement in placements(experiment) {
        for row in &ROWS {
            let group = groups.iter().find(|group| group.series == row.series && group.placement == placement);
            let Some(spread) = group.and_then(|group| group.spread(row.metric)) else { continue };
            if let Some(aim) = beside(row, &spread, placement, experiment) {
                let Spread { median, least, most, .. } = spread;
                let place = placement.to_string();
                let _ = writeln!(text, "{place:<6}{:<15}{median:6.1} [{least:.1}..{most:.1}] ns; {aim}", row.what);
            }
        }
    }
    if !placements(experiment).contains(&Placement::Far) {
        text += NEVER_FAR;
    }
    text + ELSEWHERE
}

/// A row's result compared with its aim. `None` if the aim is about another placement.
fn beside(row: &Row, spread: &Spread, placement: Placement, experiment: &Experiment) -> Option<String> {
    let verdict = |is_met: bool| if is_met { "met" } else { "missed" };
    match row.aim {
        Aim::Times(over, most) => {
            // Lower is better, so the gain of the other series says how many times as long this
            // series takes.
            let (of, metric, published) = (over.to_owned(), row.metric.to_owned(), Vec::new());
            let pair = Pair { of, over: row.series.to_owned(), metric, published };
            let found = compare(experiment, &pair).into_iter().find(|one| one.placement == placement)?;
            let (ratio, low, high) = (times(found.ratio), times(found.low), times(found.high));
            let verdict = verdict(found.ratio <= most);
            Some(format!("{ratio} [{low}..{high}] times {over}, aim {most}: {verdict}"))
        }
        Aim::Nanos(near, far) => {
            let aim = if placement == Placement::Far { far } else { near }?;
            Some(format!("aim {aim} ns: {}", verdict(spread.median <= aim)))
        }
        Aim::Peer(peer) => Some(format!("aim: ahead of {peer}, see peers/run")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::benchmark::{Benchmark, Description, Settings};
    use crate::report::Sample;

    const DESCRIPTION: Description =
        Description { name: "path", title: "", question: "", published: None, x: "", rounds: 3 };

    fn experiment(nanos: &[(&str, f64, f64)], placement: Placement) -> Experiment {
        let benchmark = Benchmark::new(DESCRIPTION, &Settings::quick(vec![0]));
        let mut experiment = benchmark.metric(RECEIVE, "", "ns", false).metric("work_ns", "", "ns", false).experiment;
        for round in 0..3 {
            for (series, receive, work) in nanos {
                // The machine is slower in each round, which changes no ratio.
                let slower = 1.0 + 0.1 * round as f64;
                let values = BTreeMap::from([(RECEIVE.into(), receive * slower), ("work_ns".into(), work * slower)]);
                experiment.samples.push(Sample {
                    experiment: "path".into(),
                    series: (*series).into(),
                    x: None,
                    round,
                    placement,
                    apart_ns: None,
                    values,
                    latencies: Vec::new(),
                });
            }
        }
        experiment
    }

    #[test]
    fn each_row_has_its_figures_and_its_aim() {
        let nanos = [
            (series::BARE, 10.0, 5.0),
            (series::ONE_TARGET, 11.0, 10.0),
            (series::TWO_TARGETS, 14.0, 10.0),
            (series::OUR_HASH, 15.0, 1.0),
            (series::MIXED, 21.0, 1.0),
        ];
        let expected = format!(
            "\
near  1 target         12.1 [11.0..13.2] ns; 1.10 [1.10..1.10] times bare loop with prefetch, aim 1.2: met
near  2 targets        15.4 [14.0..16.8] ns; 1.40 [1.40..1.40] times bare loop with prefetch, aim 1.3: missed
near  our hash         16.5 [15.0..18.0] ns; aim 17 ns: met
near  mixed traffic    23.1 [21.0..25.2] ns; 1.40 [1.40..1.40] times our hash, 2 targets, aim 1.3: missed
near  worker           11.0 [10.0..12.0] ns; aim 9 ns: missed
{NEVER_FAR}{ELSEWHERE}"
        );
        assert_eq!(summary(&experiment(&nanos, Placement::Near)), expected);
        let far = summary(&experiment(&[(series::ONE_TARGET, 20.0, 20.0)], Placement::Far));
        assert_eq!(far, format!("far   1 target, far    22.0 [20.0..24.0] ns; aim 25 ns: met\n{ELSEWHERE}"));
    }
}
