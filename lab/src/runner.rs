//! Runs a benchmark: its cases in turn, A B C A B C ..., round after round.

use std::thread;
use std::time::{Duration, Instant};

use crate::benchmark::{Benchmark, Case};
use crate::compare::{ROUNDS_MIN, compare};
use crate::error::BenchError;
use crate::measurement::Measurement;
use crate::placement::{Apart, Placement, probe};
use crate::report::{Experiment, Sample};

/// The progress of a benchmark, reported before each run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The experiment's name.
    pub experiment: &'a str,
    /// The series that runs next.
    pub series: &'a str,
    /// Its point on the axis.
    pub x: Option<f64>,
    /// The round, counted from 0.
    pub round: usize,
    /// The number of rounds.
    pub rounds: usize,
    /// About how long the rest of this experiment takes.
    pub left: Duration,
}

/// The first estimate of a run's extra time: its set-up, and the probe of the distance between its
/// CPUs.
const OVERHEAD: Duration = Duration::from_millis(30);

/// If the host moves CPUs, the runner adds rounds, up to this many times the planned number.
const ROUNDS_MOST: usize = 3;

/// Runs all cases, until they are done or `goes_on` returns false. The runner calls `goes_on`
/// before each run. If a case fails, the runner does not run it again, and the report lists it as
/// skipped.
///
/// Each run has a thread of its own. Before and after each run, the distance of its CPUs is probed.
/// Series are compared only within a round and at the same distance. Cases that have too few such
/// rounds for a comparison are run in more rounds.
pub fn run(benchmark: Benchmark, goes_on: impl FnMut(Progress<'_>) -> bool) -> Experiment {
    let Benchmark { experiment, mut cases, rounds, mut cpus, probed_cpus, .. } = benchmark;
    cpus.truncate(probed_cpus);
    cases.iter_mut().for_each(|case| case.takes += OVERHEAD);
    let mut running = Running { experiment, cases, probed: Probed { cpus, last: None }, rounds, goes_on };
    for round in 0..rounds * ROUNDS_MOST {
        let lacks = if round < rounds { (0..running.cases.len()).collect() } else { running.too_few() };
        if lacks.is_empty() || !running.round(round, &lacks) {
            break;
        }
    }
    running.experiment.classify();
    running.experiment
}

struct Running<G> {
    experiment: Experiment,
    cases: Vec<Case>,
    probed: Probed,
    rounds: usize,
    goes_on: G,
}

impl<G: FnMut(Progress<'_>) -> bool> Running<G> {
    /// Runs these cases once. Returns whether the benchmark may continue.
    fn round(&mut self, round: usize, which: &[usize]) -> bool {
        let mut failed = Vec::new();
        for (nth, at) in which.iter().enumerate() {
            let rest: Duration = which[nth..].iter().map(|at| self.cases[*at].takes).sum();
            let planned = self.rounds.saturating_sub(round + 1) as u32;
            let later = self.cases.iter().map(|case| case.takes).sum::<Duration>() * planned;
            let case = &mut self.cases[*at];
            let progress = Progress {
                experiment: &self.experiment.name,
                series: &case.series,
                x: case.x,
                round,
                rounds: self.rounds.max(round + 1),
                left: rest + later,
            };
            if !(self.goes_on)(progress) {
                let left =
                    format!("round {} of {} was interrupted, and there are none after it", round + 1, self.rounds);
                self.experiment.skipped.push(left);
                return false;
            }
            let start = Instant::now();
            match run_case(case, &mut self.probed) {
                Ok((apart_ns, measured)) => {
                    case.takes = start.elapsed();
                    self.experiment.samples.push(Sample {
                        experiment: self.experiment.name.clone(),
                        series: case.series.clone(),
                        x: case.x,
                        round,
                        // The placement is determined when all times are known.
                        placement: Placement::Alone,
                        apart_ns,
                        values: measured.values,
                        latencies: measured.latencies,
                    });
                }
                Err(error) => {
                    let place = case.x.map_or_else(String::new, |x| format!(" at {x}"));
                    self.experiment.skipped.push(format!("{}{place}: {error}", case.series));
                    failed.push(*at);
                }
            }
        }
        failed.iter().rev().for_each(|at| drop(self.cases.remove(*at)));
        true
    }

    /// The cases of comparisons that have too few rounds for a verdict at every distance. If the
    /// settings plan fewer rounds than that, no verdict is expected.
    fn too_few(&mut self) -> Vec<usize> {
        if self.rounds < ROUNDS_MIN {
            return Vec::new();
        }
        self.experiment.classify();
        let mut which = Vec::new();
        let samples = &self.experiment.samples;
        let is_measured = |series: &String, metric: &str| {
            samples.iter().any(|sample| sample.series == *series && sample.values.contains_key(metric))
        };
        let pairs = self.experiment.compared.iter();
        for pair in pairs.filter(|pair| [&pair.of, &pair.over].iter().all(|series| is_measured(series, &pair.metric))) {
            let found = compare(&self.experiment, pair);
            let is_enough = |x: Option<f64>| found.iter().any(|one| one.x == x && one.rounds >= ROUNDS_MIN);
            let of_pair = |case: &Case| [&pair.of, &pair.over].contains(&&case.series);
            let both = |x: Option<f64>| self.cases.iter().filter(|case| case.x == x && of_pair(case)).count() > 1;
            let lacks = |case: &Case| of_pair(case) && both(case.x) && !is_enough(case.x);
            which.extend((0..self.cases.len()).filter(|at| lacks(&self.cases[*at])));
        }
        which.sort_unstable();
        which.dedup();
        which
    }
}

fn run_case(case: &mut Case, probed: &mut Probed) -> Result<(Option<Apart>, Measurement), BenchError> {
    if probed.cpus.len() < 2 {
        return run_on_new_thread(case).map(|measured| (None, measured));
    }
    // Nothing has run since the probe after the last run, so that probe counts.
    let before = probed.last.take().map_or_else(|| probe(&probed.cpus), Ok)?;
    let measured = run_on_new_thread(case)?;
    let after = probe(&probed.cpus)?;
    probed.last = Some(after);
    Ok((Some([before, after]), measured))
}

/// Runs a case on a new thread, so that neither its CPU affinity nor a panic outlives it.
fn run_on_new_thread(case: &mut Case) -> Result<Measurement, BenchError> {
    let body = || (case.run)();
    thread::scope(|scope| scope.spawn(body).join()).unwrap_or(Err(BenchError::Panicked))
}

/// The CPUs that are probed, and how far they were apart after the last run, in nanoseconds.
struct Probed {
    cpus: Vec<usize>,
    last: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{Description, Settings};

    const DESCRIPTION: Description =
        Description { name: "made-up", title: "", question: "", published: None, x: "", rounds: 3 };

    fn benchmark(rounds: usize) -> Benchmark {
        let settings = Settings { rounds: Some(rounds), ..Settings::quick(vec![0]) };
        Benchmark::new(DESCRIPTION, &settings).metric("n", "", "", true)
    }

    /// Series and round of each sample.
    fn order(experiment: &Experiment) -> Vec<(&str, usize)> {
        experiment.samples.iter().map(|sample| (sample.series.as_str(), sample.round)).collect()
    }

    #[test]
    fn cases_are_run_in_turn() {
        let mut benchmark = benchmark(2);
        for series in ["a", "b"] {
            benchmark.case(series, None, 1, || Ok(Measurement::of("n", 1.0)));
        }
        benchmark.case("c", None, 2, || Ok(Measurement::of("n", 1.0)));
        let experiment = run(benchmark, |_| true);
        assert_eq!(order(&experiment), [("a", 0), ("b", 0), ("a", 1), ("b", 1)]);
        assert!(experiment.samples.iter().all(|sample| sample.placement == Placement::Alone));
        assert_eq!(experiment.skipped, ["c: it takes 2 CPUs, and there are 1"]);
    }

    #[test]
    fn what_fails_is_left_out_and_said() {
        let mut benchmark = benchmark(3);
        let mut times = 0;
        benchmark.case("a", Some(8.0), 1, move || {
            times += 1;
            if times < 2 { Ok(Measurement::default()) } else { Err(BenchError::Lost { delivered: 7, sent: 9 }) }
        });
        benchmark.case("b", None, 1, || panic!("as a test of panics"));
        benchmark.case("c", None, 1, || Ok(Measurement::default()));
        let experiment = run(benchmark, |_| true);
        assert_eq!(order(&experiment), [("a", 0), ("c", 0), ("c", 1), ("c", 2)]);
        let [panicked, lost] = &experiment.skipped[..] else { panic!("{:?}", experiment.skipped) };
        assert!(panicked.starts_with("b: a thread of the run panicked"), "{panicked}");
        assert_eq!(lost, "a at 8: 2 of 9 packets were lost where none may be");
    }

    #[test]
    fn comparisons_with_too_few_rounds_get_more() {
        let mut benchmark = benchmark(3).compare("a", "b");
        for series in ["a", "b", "alone"] {
            benchmark.case(series, None, 1, || Ok(Measurement::of("n", 1.0)));
        }
        let Benchmark { experiment, cases, rounds, .. } = benchmark;
        let probed = Probed { cpus: vec![0], last: None };
        let mut running = Running { experiment, cases, probed, rounds, goes_on: |_: Progress<'_>| true };
        let (near, far) = (Some([60.0, 61.0]), Some([200.0, 201.0]));
        // In the second round the CPUs moved between the two series.
        for (round, apart) in
            [[near, near], [near, far], [far, far], [near, near], [near, near]].into_iter().enumerate()
        {
            assert_eq!(running.too_few(), if round == 0 { vec![] } else { vec![0, 1] }, "{round}");
            assert!(running.round(round, &[0, 1]));
            let count = running.experiment.samples.len();
            running.experiment.samples[count - 2..]
                .iter_mut()
                .zip(apart)
                .for_each(|(sample, apart)| sample.apart_ns = apart);
        }
        assert_eq!(running.too_few(), [0; 0]);
    }

    #[test]
    fn an_interrupt_keeps_what_there_is() {
        let mut benchmark = benchmark(3);
        benchmark.case("a", None, 1, || Ok(Measurement::default()));
        benchmark.case("b", None, 1, || Ok(Measurement::default()));
        let mut asked = 0;
        let experiment = run(benchmark, |progress| {
            asked += 1;
            assert_eq!((progress.rounds, progress.experiment), (3, "made-up"));
            asked < 4
        });
        assert_eq!(order(&experiment), [("a", 0), ("b", 0), ("a", 1)]);
        assert_eq!(experiment.skipped, ["round 2 of 3 was interrupted, and there are none after it"]);
    }
}
