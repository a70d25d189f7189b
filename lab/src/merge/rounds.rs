//! Renumbers the rounds of several runs: see [`merge`](crate::merge).

use std::collections::{BTreeMap, BTreeSet};

use crate::report::Sample;

/// The rounds assigned so far, by experiment.
#[derive(Debug, Default)]
pub(super) struct Rounds(BTreeMap<String, Turn>);

/// The current turn of an experiment.
#[derive(Debug, Default)]
struct Turn {
    file: usize,
    /// The number that is added to the rounds in the file.
    base: usize,
    /// The first round that no sample has yet.
    next: usize,
    /// The first round of each series in this turn, if it is not the first turn of its file. Some
    /// programs start again at 0, and others count on.
    first_rounds: Option<BTreeMap<String, usize>>,
    /// The series, point and round (as in the file) of the samples of this turn.
    seen: BTreeSet<(String, Option<u64>, usize)>,
}

impl Rounds {
    /// Gives the samples the rounds of their turn. The samples stay together.
    pub(super) fn renumber(&mut self, experiment: &str, file: usize, samples: &mut [Sample]) {
        let turn = self.0.entry(experiment.to_owned()).or_default();
        let case = |sample: &Sample| (sample.series.clone(), sample.x.map(f64::to_bits), sample.round);
        let cases: Vec<_> = samples.iter().map(case).collect();
        let is_new_file = turn.file != file;
        if is_new_file || cases.iter().any(|case| turn.seen.contains(case)) {
            (turn.file, turn.base) = (file, turn.next);
            turn.first_rounds = (!is_new_file).then(BTreeMap::new);
            turn.seen.clear();
        }
        turn.seen.extend(cases);
        let first = samples.iter().map(|sample| sample.round).min().unwrap_or(0);
        let start = match (&mut turn.first_rounds, &*samples) {
            (None, _) => 0,
            (Some(first_rounds), [one]) => *first_rounds.entry(one.series.clone()).or_insert(first),
            // A report has one first round for all its series.
            (Some(_), _) => first,
        };
        for sample in samples {
            sample.round = turn.base + sample.round.saturating_sub(start);
            turn.next = turn.next.max(sample.round + 1);
        }
    }
}
