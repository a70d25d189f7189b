//! The report that tests are about.

use std::collections::BTreeMap;

use crate::placement::Placement;
use crate::report::{Chart, ChartKind, Experiment, Machine, Metric, Pair, PublishedRatio, Report, SCHEMA, Sample};

/// Text that must be escaped in a page and on a terminal.
pub(crate) const EVIL: &str = "</text><script>alert(\"1\")</script>&'\u{1b}\u{0}\u{ffff}]]>";

/// Points that are decades apart.
pub(crate) const POINTS: [Option<f64>; 3] = [Some(0.0), Some(20.0), Some(2000.0)];

/// A report of two series at these points: three rounds near, three rounds far, one run during which the CPUs moved, and
/// latencies.
pub(crate) fn report(xs: &[Option<f64>], kinds: &[ChartKind]) -> Report {
    let mut samples = Vec::new();
    for round in 0..6 {
        let placement = if round % 2 == 0 { Placement::Near } else { Placement::Far };
        for (at, x) in xs.iter().enumerate() {
            for (series, part) in [("plain", 1.0), ("ours", 0.5 + 0.5 * at as f64)] {
                let values = BTreeMap::from([("v".into(), part * (10.0 + 0.1 * round as f64))]);
                let latencies = vec![(100, 900), (2000, 99), (30_000, 1)];
                samples.push(Sample {
                    experiment: "e".into(),
                    series: series.into(),
                    x: *x,
                    round,
                    placement,
                    apart_ns: None,
                    values,
                    latencies,
                });
            }
        }
    }
    let moved = Sample { placement: Placement::Moved, ..samples[0].clone() };
    samples.push(moved);
    let chart =
        |kind: &ChartKind| Chart { title: "a chart".into(), kind: *kind, metric: "v".into(), series: Vec::new() };
    let published = PublishedRatio { x: Some(200.0), ratio: 1.27, set_up: "a card, 8 CPUs".into() };
    let experiment = Experiment {
        name: "e".into(),
        title: "an experiment".into(),
        question: "why?".into(),
        published: "elsewhere".into(),
        metrics: vec![Metric { name: "v".into(), title: "value".into(), unit: "Mpps".into(), more_is_better: true }],
        x: "work, ns".into(),
        compared: vec![Pair {
            of: "ours".into(),
            over: "plain".into(),
            metric: "v".into(),
            published: vec![published],
        }],
        charts: kinds.iter().map(chart).collect(),
        samples,
        skipped: vec!["what could not be".into()],
    };
    let machine = Machine {
        cpu: "a CPU".into(),
        cpus: 2,
        kernel: "6.1".into(),
        version: "0.1".into(),
        command: "bench e\nbench f".into(),
        started: "2026-11-21T10:00:00Z".into(),
        beside: vec!["a peer 1.0".into()],
        ..Machine::default()
    };
    Report { schema: SCHEMA, machine, experiments: vec![experiment] }
}
