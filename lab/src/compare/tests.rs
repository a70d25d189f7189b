//! Expected values were worked out by hand.

use std::collections::BTreeMap;

use super::*;
use crate::report::{Metric, Sample};
use crate::stats::{moved, placements};

fn sample(series: &str, x: Option<f64>, round: usize, placement: Placement, value: f64) -> Sample {
    let values = BTreeMap::from([("v".to_owned(), value)]);
    Sample {
        experiment: "e".into(),
        series: series.into(),
        x,
        round,
        placement,
        apart_ns: None,
        values,
        latencies: Vec::new(),
    }
}

fn experiment(more_is_better: bool, samples: Vec<Sample>) -> Experiment {
    let metric = Metric { name: "v".into(), title: "value".into(), unit: "Mpps".into(), more_is_better };
    Experiment {
        name: "e".into(),
        title: String::new(),
        question: String::new(),
        published: String::new(),
        metrics: vec![metric],
        x: String::new(),
        compared: Vec::new(),
        charts: Vec::new(),
        samples,
        skipped: Vec::new(),
    }
}

/// Rounds of `a` and `b` at no `x`, near.
fn rounds(of: &[(f64, f64)]) -> Vec<Sample> {
    let both = |(round, (a, b)): (usize, &(f64, f64))| {
        ["a", "b"].into_iter().zip([*a, *b]).map(move |(name, value)| sample(name, None, round, Placement::Near, value))
    };
    of.iter().enumerate().flat_map(both).collect()
}

fn pair() -> Pair {
    Pair { of: "a".into(), over: "b".into(), metric: "v".into(), published: Vec::new() }
}

fn only(samples: Vec<Sample>) -> Comparison {
    let found = compare(&experiment(true, samples), &pair());
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

fn said(of: &[(f64, f64)]) -> String {
    only(rounds(of)).to_string()
}

#[test]
fn a_spread_is_median_least_and_most() {
    assert_eq!(Spread::of(&[]), None);
    assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0, runs: 3 }));
    assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
    assert_eq!(Spread::of(&[7.0]), Some(Spread { median: 7.0, least: 7.0, most: 7.0, runs: 1 }));
    assert_eq!(Spread::of(&[f64::INFINITY; 2]).unwrap().median, f64::INFINITY);
}

#[test]
fn runs_are_pooled_by_series_point_and_placement() {
    use Placement::{Far, Moved, Near};
    let of = experiment(
        true,
        vec![
            sample("b", Some(20.0), 0, Near, 1.0),
            sample("a", Some(20.0), 0, Near, 2.0),
            sample("a", Some(3.0), 0, Near, 3.0),
            sample("a", Some(20.0), 1, Near, 4.0),
            sample("a", Some(20.0), 2, Far, 5.0),
            sample("a", Some(20.0), 3, Moved, 6.0),
        ],
    );
    let found: Vec<_> =
        groups(&of).iter().map(|one| (one.placement, one.x, one.series, one.spread("v").unwrap().median)).collect();
    // `b` was run first.
    assert_eq!(
        found,
        [
            (Near, Some(3.0), "a", 3.0),
            (Near, Some(20.0), "b", 1.0),
            (Near, Some(20.0), "a", 3.0),
            (Far, Some(20.0), "a", 5.0)
        ]
    );
    assert_eq!(moved(&of), 1);
    assert_eq!(placements(&of), [Near, Far]);
}

#[test]
fn latencies_of_a_group_are_added_up() {
    let run = |latencies| Sample { latencies, ..sample("a", None, 0, Placement::Near, 1.0) };
    let of = experiment(true, vec![run(vec![(10, 2), (40, 1)]), run(vec![(10, 1), (20, 0), (30, 5)])]);
    assert_eq!(groups(&of)[0].latencies(), [(10, 3), (30, 5), (40, 1)]);
}

#[test]
fn a_ratio_is_taken_within_a_round() {
    // The ratio of the medians would be 2. The ratios of the rounds are 1.1, 2 and 1.25.
    let found = only(rounds(&[(110.0, 100.0), (200.0, 100.0), (1000.0, 800.0)]));
    assert_eq!((found.ratio, found.low, found.high, found.rounds), (1.25, 1.1, 2.0, 3));
}

#[test]
fn a_difference_larger_than_the_spread_is_told() {
    assert_eq!(said(&[(127.0, 100.0), (121.0, 100.0), (130.0, 100.0)]), "1.27 times [1.21..1.30]");
    assert_eq!(said(&[(50.0, 100.0), (52.0, 100.0), (51.0, 100.0)]), "0.51 times [0.50..0.52], worse");
}

#[test]
fn a_difference_smaller_than_the_spread_is_not() {
    assert_eq!(said(&[(97.0, 100.0), (101.0, 100.0), (104.0, 100.0)]), "no difference (0.97..1.04)");
    // Each time better, but by 5 % in a spread of 7 %.
    assert_eq!(said(&[(103.0, 100.0), (105.0, 100.0), (110.0, 100.0)]), "unclear (1.03..1.10)");
    assert_eq!(said(&[(80.0, 100.0), (101.0, 100.0), (150.0, 100.0)]), "unclear (0.80..1.50)");
    // The first series is always better by 0.2 %.
    assert_eq!(said(&[(1002.0, 1000.0); 4]), "no difference (1.00..1.00)");
    assert_eq!(said(&[(100.0, 100.0); 4]), "no difference (1.00..1.00)");
}

#[test]
fn too_few_runs_tell_nothing() {
    assert_eq!(said(&[(900.0, 100.0), (900.0, 100.0)]), "too few runs (2 of 3)");
    assert_eq!(said(&[(900.0, 100.0)]), "too few runs (1 of 3)");
    // Each series has three runs, but never in the same round.
    let of = |name, first| (first..first + 3).map(move |round| sample(name, None, round, Placement::Near, 1.0));
    assert_eq!(only(of("a", 0).chain(of("b", 3)).collect()).to_string(), "too few runs (0 of 3)");
}

#[test]
fn placements_are_compared_by_themselves() {
    let at = |placement, ratio: f64| {
        (0..3).flat_map(move |round| {
            [sample("a", None, round, placement, ratio), sample("b", None, round, placement, 1.0)]
        })
    };
    let found = compare(&experiment(true, at(Placement::Far, 2.0).chain(at(Placement::Near, 0.5)).collect()), &pair());
    let told: Vec<_> = found.iter().map(|one| (one.placement, one.ratio, one.verdict)).collect();
    assert_eq!(told, [(Placement::Near, 0.5, Verdict::Worse), (Placement::Far, 2.0, Verdict::Better)]);
    // If one series ran near and the other far, the round does not count.
    let split = (0..3).flat_map(|round| {
        [sample("a", None, round, Placement::Near, 2.0), sample("b", None, round, Placement::Far, 1.0)]
    });
    assert_eq!(compare(&experiment(true, split.collect()), &pair()), []);
    // The round does not count either if the CPUs moved.
    assert_eq!(compare(&experiment(true, at(Placement::Moved, 2.0).collect()), &pair()), []);
}

#[test]
fn of_what_should_be_little_less_is_a_gain() {
    let runs = rounds(&[(10.0, 20.0), (10.0, 21.0), (10.0, 20.5)]);
    let found = compare(&experiment(false, runs.clone()), &pair());
    assert_eq!((found[0].ratio, found[0].verdict), (2.05, Verdict::Better));
    let swapped = Pair { of: "b".into(), over: "a".into(), metric: "v".into(), published: Vec::new() };
    assert_eq!(compare(&experiment(false, runs), &swapped)[0].verdict, Verdict::Worse);
}

#[test]
fn nothing_lost_is_compared_too() {
    let lost = |of: &[(f64, f64)]| compare(&experiment(false, rounds(of)), &pair())[0].to_string();
    assert_eq!(lost(&[(0.0, 34.0), (0.0, 33.0), (0.0, 30.0)]), "over 999 times [over 999..over 999]");
    assert_eq!(lost(&[(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]), "no difference (1.00..1.00)");
    assert_eq!(lost(&[(34.0, 0.0), (33.0, 0.0), (30.0, 0.0)]), "0.000 times [0.000..0.000], worse");
}

/// Two-sided 5 % limits from the table of the binomial distribution.
#[test]
fn with_many_rounds_the_farthest_count_no_longer() {
    let outside = |count| {
        let ratios: Vec<(f64, f64)> = (0..count).map(|at| (f64::from(at) + 10.0, 1.0)).collect();
        only(rounds(&ratios)).low - 10.0
    };
    assert_eq!([3, 6, 8, 9, 11, 12, 20, 50].map(outside), [0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 5.0, 17.0]);
    // The normal approximation begins where the exact sum ends, and errs on the safe side.
    assert_eq!([200, 201].map(outside), [85.0, 85.0]);
    // One disturbed round does not hide a difference that the other rounds show.
    let mut of = vec![(130.0, 100.0); 9];
    of[4].0 = 30.0;
    assert_eq!(said(&of), "1.30 times [1.30..1.30]");
}

#[test]
fn swapping_the_two_turns_the_verdict() {
    for of in [[(127.0, 100.0), (121.0, 100.0), (130.0, 100.0)], [(103.0, 100.0), (105.0, 100.0), (110.0, 100.0)]] {
        let turned = of.map(|(a, b)| (b, a));
        let expected = match only(rounds(&of)).verdict {
            Verdict::Better => Verdict::Worse,
            same => same,
        };
        assert_eq!(only(rounds(&turned)).verdict, expected);
    }
}
