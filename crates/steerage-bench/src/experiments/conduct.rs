//! Runs an experiment: its cases in turn, A B C A B C ..., round after round.

use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Case, Plan};
use crate::error::BenchError;
use crate::placement::{Placement, probe};
use crate::report::{Experiment, Sample};

/// How far it is: told before each run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Of which experiment.
    pub experiment: &'a str,
    /// What is run next.
    pub series: &'a str,
    /// At which point.
    pub x: Option<f64>,
    /// In which round, from 0 on.
    pub round: usize,
    /// Of so many.
    pub rounds: usize,
    /// How long the rest of this experiment takes, about.
    pub left: Duration,
}

/// What a run takes besides what is measured, at first: to set it up and to probe.
const AROUND: Duration = Duration::from_millis(30);

/// Runs all of it, or until `goes_on`, which is asked before each run, says no. What fails is left out from then on, and is said
/// among what was skipped.
///
/// Each run is on a thread of its own. Before and after each run it is probed how far its CPUs are apart.
pub fn conduct(plan: Plan, mut goes_on: impl FnMut(Progress<'_>) -> bool) -> Experiment {
    let Plan { mut experiment, mut cases, rounds, mut cpus, apart, .. } = plan;
    cpus.truncate(apart);
    cases.iter_mut().for_each(|case| case.takes += AROUND);
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
            match run(case, &mut probed) {
                Ok((placement, figures)) => {
                    case.takes = start.elapsed();
                    experiment.samples.push(Sample {
                        experiment: experiment.name.clone(),
                        series: case.series.clone(),
                        x: case.x,
                        round,
                        placement,
                        values: figures.values,
                        latencies: figures.latencies,
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

fn run(case: &mut Case, probed: &mut Probed) -> Result<(Placement, super::Figures), BenchError> {
    if probed.cpus.len() < 2 {
        return on_its_own(case).map(|figures| (Placement::Alone, figures));
    }
    // Since the run before nothing was run.
    let before = probed.last.take().map_or_else(|| probe(&probed.cpus), Ok)?;
    let figures = on_its_own(case)?;
    let after = probe(&probed.cpus)?;
    probed.last = Some(after);
    Ok((Placement::of(before, after), figures))
}

/// So that neither its CPU nor its panic outlives it.
fn on_its_own(case: &mut Case) -> Result<super::Figures, BenchError> {
    let body = || (case.run)();
    thread::scope(|scope| scope.spawn(body).join()).unwrap_or(Err(BenchError::Panicked))
}

/// CPUs, and how far they were apart after the last run.
struct Probed {
    cpus: Vec<usize>,
    last: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{About, Figures, Settings};

    const ABOUT: About = About { name: "made-up", title: "", question: "", published: "", x: "", rounds: 3 };

    fn plan(rounds: usize) -> Plan {
        let settings = Settings { rounds: Some(rounds), ..Settings::quick(vec![0]) };
        Plan::new(ABOUT, &settings).metric("n", "", "", true)
    }

    /// Series and round of each sample.
    fn order(experiment: &Experiment) -> Vec<(&str, usize)> {
        experiment.samples.iter().map(|sample| (sample.series.as_str(), sample.round)).collect()
    }

    #[test]
    fn cases_are_run_in_turn() {
        let mut plan = plan(2);
        for series in ["a", "b"] {
            plan.case(series, None, 1, || Ok(Figures::of("n", 1.0)));
        }
        plan.case("c", None, 2, || Ok(Figures::of("n", 1.0)));
        let experiment = conduct(plan, |_| true);
        assert_eq!(order(&experiment), [("a", 0), ("b", 0), ("a", 1), ("b", 1)]);
        assert!(experiment.samples.iter().all(|sample| sample.placement == Placement::Alone));
        assert_eq!(experiment.skipped, ["c: it takes 2 CPUs, and there are 1"]);
    }

    #[test]
    fn what_fails_is_left_out_and_said() {
        let mut plan = plan(3);
        let mut times = 0;
        plan.case("a", Some(8.0), 1, move || {
            times += 1;
            if times < 2 { Ok(Figures::default()) } else { Err(BenchError::Lost { delivered: 7, sent: 9 }) }
        });
        plan.case("b", None, 1, || panic!("as a test of panics"));
        plan.case("c", None, 1, || Ok(Figures::default()));
        let experiment = conduct(plan, |_| true);
        assert_eq!(order(&experiment), [("a", 0), ("c", 0), ("c", 1), ("c", 2)]);
        let [panicked, lost] = &experiment.skipped[..] else { panic!("{:?}", experiment.skipped) };
        assert!(panicked.starts_with("b: a thread of the run panicked"), "{panicked}");
        assert_eq!(lost, "a at 8: 2 of 9 packets were lost where none may be");
    }

    #[test]
    fn an_interrupt_keeps_what_there_is() {
        let mut plan = plan(3);
        plan.case("a", None, 1, || Ok(Figures::default()));
        plan.case("b", None, 1, || Ok(Figures::default()));
        let mut asked = 0;
        let experiment = conduct(plan, |progress| {
            asked += 1;
            assert_eq!((progress.rounds, progress.experiment), (3, "made-up"));
            asked < 4
        });
        assert_eq!(order(&experiment), [("a", 0), ("b", 0), ("a", 1)]);
        assert_eq!(experiment.skipped, ["round 2 of 3 was interrupted, and there are none after it"]);
    }
}
