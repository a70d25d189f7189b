//! Runs the cases of an experiment in turn, A B C A B C ..., round after round. Prints a line for
//! each run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::error::LabError;
use crate::experiment::{Case, Experiment};
use crate::measurement::Measurement;
use crate::placement::probe;

/// The maximum length of a progress line. A longer line would wrap, and could not be erased.
const PROGRESS_WIDTH: usize = 79;

/// The maximum number of simulated runs at a time. A machine of 1,024 CPUs and 256 queues takes 4 GiB.
const SIMULATED_AT_ONCE: usize = 4;

/// The line that is printed for one run.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    experiment: &'a str,
    series: &'a str,
    x: Option<f64>,
    round: usize,
    /// The distance of the CPUs before and after the run: the one-way time of a cache line, in
    /// nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart_ns: Option<[f64; 2]>,
    values: &'a Measurement,
    /// The costs and the machine of a simulated run, instead of the machine that ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<&'static str>,
}

impl<'a> Line<'a> {
    /// Makes the line of one run.
    pub fn of(
        experiment: &'a str,
        series: &'a str,
        x: Option<f64>,
        round: usize,
        apart_ns: Option<[f64; 2]>,
        values: &'a Measurement,
    ) -> Self {
        Self { experiment, series, x, round, apart_ns, values, simulated: None, machine: Some(machine()) }
    }
}

#[derive(Serialize)]
struct Skipped<'a> {
    experiment: &'a str,
    skipped: &'a str,
}

/// Returns the processor, its CPUs, the kernel and the version. All of these must be equal if runs
/// are pooled.
pub(crate) fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, kernel) = (text("/proc/cpuinfo"), text("/proc/sys/kernel/osrelease"));
        let value = |key: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
        };
        // Only x86 reports the name of its processor.
        let name = Some(value("model name")).filter(|name| !name.is_empty()).unwrap_or(std::env::consts::ARCH);
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let virtual_machine = if value("flags").split(' ').any(|flag| flag == "hypervisor") { ", virtual" } else { "" };
        format!("{name}, {cpus} CPUs{virtual_machine}, Linux {}, steerage {}", kernel.trim(), env!("CARGO_PKG_VERSION"))
    })
}

/// Prints a line of JSON.
///
/// # Errors
/// Returns an error if the line cannot be written.
pub fn write_line(line: &impl Serialize, out: &mut impl Write) -> Result<(), LabError> {
    let text = serde_json::to_string(line).map_err(|error| LabError::Output(error.into()))?;
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(LabError::Output)
}

/// Runs experiments one after the other.
///
/// # Errors
/// Returns an error if no run could be measured or printed.
pub fn run_all(planned: Vec<Experiment>, out: &mut impl Write) -> Result<(), LabError> {
    let mut later: Duration = planned.iter().map(Experiment::estimate).sum();
    let (mut measured, mut why) = (0, String::new());
    for experiment in planned {
        later = later.saturating_sub(experiment.estimate());
        let (runs, skipped) = run(experiment, later, out)?;
        measured += runs;
        why = if why.is_empty() { skipped } else { why };
    }
    if measured > 0 { Ok(()) } else { Err(LabError::Nothing(why)) }
}

/// Runs all cases. A case that fails is not run again. Each run has its own thread, and the
/// distance of its CPUs is measured before and after the run. Returns the number of runs, and the
/// reason why the first skipped case was skipped.
fn run(experiment: Experiment, later: Duration, out: &mut impl Write) -> Result<(usize, String), LabError> {
    for why in &experiment.skipped {
        write_line(&Skipped { experiment: experiment.name, skipped: why }, out)?;
    }
    if let Some(simulated) = experiment.simulated.clone() {
        return simulate(experiment, &simulated, later, out);
    }
    let Experiment { name, mut cases, mut skipped, rounds, mut cpus, probed_cpus, .. } = experiment;
    cpus.truncate(probed_cpus);
    let (mut runs, mut last) = (0, None);
    for round in 0..rounds {
        let mut failed = Vec::new();
        for at in 0..cases.len() {
            let each = |cases: &[Case]| cases.iter().map(|case| case.takes).sum::<Duration>();
            let left = each(&cases[at..]) + each(&cases) * (rounds - round - 1) as u32 + later;
            let case = &mut cases[at];
            progress(&format!("{name}  round {} of {rounds}  {} s left  {}", round + 1, left.as_secs(), case.series));
            match run_case(case, &cpus, &mut last) {
                Ok((apart, measured)) => {
                    write_line(&Line::of(name, &case.series, case.x, round, apart, &measured), out)?;
                    runs += 1;
                }
                Err(error) => {
                    skipped.push(write_failed(name, case, &error, out)?);
                    failed.push(at);
                }
            }
        }
        failed.iter().rev().for_each(|at| drop(cases.remove(*at)));
    }
    progress("");
    Ok((runs, skipped.into_iter().next().unwrap_or_default()))
}

/// Prints that a case failed, and returns the reason.
fn write_failed(name: &str, case: &Case, error: &LabError, out: &mut impl Write) -> Result<String, LabError> {
    let point = case.x.map_or_else(String::new, |x| format!(" at {x}"));
    let why = format!("{}{point}: {error}", case.series);
    write_line(&Skipped { experiment: name, skipped: &why }, out)?;
    Ok(why)
}

/// Runs all cases once, on all CPUs of this machine, because simulated runs do not disturb each
/// other. The lines are in the order of the cases. Returns the same values as [`run`].
fn simulate(
    experiment: Experiment,
    simulated: &str,
    later: Duration,
    out: &mut impl Write,
) -> Result<(usize, String), LabError> {
    let Experiment { name, cases, mut skipped, .. } = experiment;
    let (all, mut runs) = (cases.len(), 0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(SIMULATED_AT_ONCE);
    let todo = Mutex::new(cases.into_iter().enumerate());
    let (done, results) = mpsc::channel();
    let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for done in vec![done; threads] {
            scope.spawn(move || {
                while let Some((at, mut case)) = next() {
                    let measured = run_on_new_thread(&mut case);
                    // If the receiver is gone, the output has failed.
                    if done.send((at, case, measured)).is_err() {
                        return;
                    }
                }
            });
        }
        // If the output fails, the threads end after their current run.
        let (results, mut early) = (results, BTreeMap::new());
        for at in 0..all {
            while !early.contains_key(&at) {
                progress(&format!(
                    "{name}  {} of {all} runs  {} s of other experiments later",
                    at + early.len(),
                    later.as_secs()
                ));
                let (nth, case, measured) = results.recv().map_err(|_| LabError::Panicked)?;
                early.insert(nth, (case, measured));
            }
            match early.remove(&at) {
                Some((case, Ok(measured))) => {
                    let line = Line::of(name, &case.series, case.x, 0, None, &measured);
                    write_line(&Line { simulated: Some(simulated), machine: None, ..line }, out)?;
                    runs += 1;
                }
                Some((case, Err(error))) => skipped.push(write_failed(name, &case, &error, out)?),
                None => {}
            }
        }
        progress("");
        Ok((runs, skipped.into_iter().next().unwrap_or_default()))
    })
}

fn progress(text: &str) {
    if io::stderr().is_terminal() {
        let text: String = text.chars().take(PROGRESS_WIDTH).collect();
        // Writing fails only if standard error is closed.
        let _ = write!(io::stderr(), "\r{text}\x1b[K");
    }
}

type Apart = Option<[f64; 2]>;

fn run_case(case: &mut Case, cpus: &[usize], last: &mut Option<f64>) -> Result<(Apart, Measurement), LabError> {
    if cpus.len() < 2 {
        return run_on_new_thread(case).map(|measured| (None, measured));
    }
    // Nothing has run since the distance was measured after the last run, so that measurement is
    // used.
    let before = last.take().map_or_else(|| probe(cpus), Ok)?;
    let measured = run_on_new_thread(case)?;
    let after = probe(cpus)?;
    *last = Some(after);
    Ok((Some([before, after]), measured))
}

/// Runs a case on a new thread, so that its CPU affinity or a panic has no effect on later cases.
fn run_on_new_thread(case: &mut Case) -> Result<Measurement, LabError> {
    let body = || (case.run)();
    thread::scope(|scope| scope.spawn(body).join()).unwrap_or(Err(LabError::Panicked))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::experiment::Settings;

    fn experiment(rounds: usize) -> Experiment {
        Experiment::new("made-up", rounds, &Settings::new(vec![0]))
    }

    fn lines(experiment: Experiment) -> Vec<Value> {
        let mut out = Vec::new();
        let _ = run(experiment, Duration::ZERO, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn order(lines: &[Value]) -> Vec<(&str, u64)> {
        let runs = lines.iter().filter(|line| line["values"].is_object());
        runs.map(|line| (line["series"].as_str().unwrap(), line["round"].as_u64().unwrap())).collect()
    }

    #[test]
    fn cases_run_in_turn() {
        let mut experiment = experiment(2);
        for series in ["a", "b"] {
            experiment.case(series, None, 1, || Ok(Measurement::of("n", 1.0)));
        }
        experiment.case("c", None, 2, || Ok(Measurement::of("n", 1.0)));
        let lines = lines(experiment);
        assert_eq!(order(&lines), [("a", 0), ("b", 0), ("a", 1), ("b", 1)]);
        assert_eq!(lines[0]["skipped"], "c: it takes 2 CPUs, and there are 1");
        assert!(lines[1]["values"]["n"] == 1.0 && lines[1]["x"].is_null() && lines[1].get("apart_ns").is_none());
    }

    #[test]
    fn a_case_that_fails_does_not_run_again() {
        let mut experiment = experiment(3);
        let mut times = 0;
        experiment.case("a", Some(8.0), 1, move || {
            times += 1;
            if times < 2 { Ok(Measurement::default()) } else { Err(LabError::Lost { delivered: 7, sent: 9 }) }
        });
        experiment.case("b", None, 1, || panic!("as a test of panics"));
        experiment.case("c", None, 1, || Ok(Measurement::default()));
        let lines = lines(experiment);
        assert_eq!(order(&lines), [("a", 0), ("c", 0), ("c", 1), ("c", 2)]);
        let skipped: Vec<&str> = lines.iter().filter_map(|line| line["skipped"].as_str()).collect();
        let [panicked, lost] = skipped[..] else { panic!("{skipped:?}") };
        assert!(panicked.starts_with("b: a thread of the run panicked"), "{panicked}");
        assert_eq!(lost, "a at 8: 2 of 9 packets were lost where none may be");
    }

    #[test]
    fn without_a_run_the_reason_is_the_error() {
        let mut none = experiment(1);
        none.case("c", None, 2, || Ok(Measurement::default()));
        let error = run_all(vec![none], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "nothing was measured: c: it takes 2 CPUs, and there are 1");
    }
}
