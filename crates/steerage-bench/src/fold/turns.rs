//! Rounds of several runs, renumbered: see [`super`].

use std::collections::{BTreeMap, BTreeSet};

use crate::report::Sample;

/// How far the rounds of each experiment have come.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<String, Turn>);

/// The turn that is being read.
#[derive(Debug, Default)]
struct Turn {
    file: usize,
    /// What it adds to the rounds that stand in the file.
    base: usize,
    /// The first round that nothing has yet.
    next: usize,
    /// Where each series began to count, in a turn that is not its file's first: some begin anew, others go on.
    begun: Option<BTreeMap<String, usize>>,
    /// Series, point and round, as it stands in the file, of what came in this turn.
    seen: BTreeSet<(String, Option<u64>, usize)>,
}

impl Turns {
    /// Gives samples that stay together the rounds of their turn.
    pub(super) fn place(&mut self, experiment: &str, file: usize, samples: &mut [Sample]) {
        let turn = self.0.entry(experiment.to_owned()).or_default();
        let case = |sample: &Sample| (sample.series.clone(), sample.x.map(f64::to_bits), sample.round);
        let cases: Vec<_> = samples.iter().map(case).collect();
        let another = turn.file != file;
        if another || cases.iter().any(|case| turn.seen.contains(case)) {
            (turn.file, turn.base) = (file, turn.next);
            turn.begun = (!another).then(BTreeMap::new);
            turn.seen.clear();
        }
        turn.seen.extend(cases);
        let first = samples.iter().map(|sample| sample.round).min().unwrap_or(0);
        let start = match (&mut turn.begun, &*samples) {
            (None, _) => 0,
            (Some(begun), [one]) => *begun.entry(one.series.clone()).or_insert(first),
            // A report counts for all its series.
            (Some(_), _) => first,
        };
        for sample in samples {
            sample.round = turn.base + sample.round.saturating_sub(start);
            turn.next = turn.next.max(sample.round + 1);
        }
    }
}
