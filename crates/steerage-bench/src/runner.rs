//! Runs a benchmark: its cases in turn, A B C A B C ..., round after round.

use std::thread;
use std::time::{Duration, Instant};

use crate::benchmark::{Benchmark, Case};
use crate::error::BenchError;
use crate::measurement::Measurement;
use crate::placement::{Placement, probe};
use crate::report::{Experiment, Sample};

/// How far a benchmark has come: reported before each run.
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

/// The first estimate of the time that a run takes besides its measurement: to set it up, and to probe the distance of its CPUs.
const OVERHEAD: Duration = Duration::from_millis(30);

/// Runs all cases, until they are done or `goes_on`, which is asked before each run, returns false. A case that fails is not run
/// again, and the report lists it as skipped.
///
/// Each run has a thread of its own. Before and after each run, the distance of its CPUs is probed.
pub fn run(benchmark: Benchmark, mut goes_on: impl FnMut(Progress<'_>) -> bool) -> Experiment {
    let Benchmark { mut experiment, mut cases, rounds, mut cpus, probed_cpus, .. } = benchmark;
    cpus.truncate(probed_cpus);
    cases.iter_mut().for_each(|case| case.takes += OVERHEAD);
    let mut probed = Probed { cpus, last: None };
    for round in 0..rounds {
        let mut at = 0;
        while at < cases.len() {
            let rest: Duration = cases[at..].iter().map(|case| case.takes).sum();
            let later = cases.iter().map(|case| case.takes).sum::<Duration>() * (rounds - round - 1) as u32;
            let case = &mut cases[at];
            let progress = Progress {
                experiment: &experiment.name,
                series: &case.series,
                x: case.x,
                round,
                rounds,
                left: rest + later,
            };
            if !goes_on(progress) {
                let left = format!("round {} of {rounds} was interrupted, and there are none after it", round + 1);
                experiment.skipped.push(left);
                return experiment;
            }
            let start = Instant::now();
            match run_case(case, &mut probed) {
                Ok((placement, measured)) => {
                    case.takes = start.elapsed();
                    experiment.samples.push(Sample {
                        experiment: experiment.name.clone(),
                        series: case.series.clone(),
                        x: case.x,
                        round,
                        placement,
                        values: measured.values,
                        latencies: measured.latencies,
                    });
                    at += 1;
                }
                Err(error) => {
                    let place = case.x.map_or_else(String::new, |x| format!(" at {x}"));
                    experiment.skipped.push(format!("{}{place}: {error}", case.series));
                    cases.remove(at);
                }
            }
        }
    }
    experiment
}

fn run_case(case: &mut Case, probed: &mut Probed) -> Result<(Placement, Measurement), BenchError> {
    if probed.cpus.len() < 2 {
        return run_on_new_thread(case).map(|measured| (Placement::Alone, measured));
    }
    // Nothing has run since the probe after the last run, so that probe counts.
    let before = probed.last.take().map_or_else(|| probe(&probed.cpus), Ok)?;
    let measured = run_on_new_thread(case)?;
    let after = probe(&probed.cpus)?;
    probed.last = Some(after);
    Ok((Placement::of(before, after), measured))
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
