//! Runs the cases of an experiment in turn, A B C A B C ..., and prints a line for each run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, IsTerminal as _, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::LabError;
use crate::experiment::{Case, Experiment};
use crate::measurement::Measurement;
use crate::placement::probe;

/// The longest progress line. A longer progress line would wrap on the terminal, and could not be
/// erased.
const PROGRESS_WIDTH: usize = 79;

/// The interval of progress lines on a terminal. `LINE_EVERY`: the interval if standard error is
/// not a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// After this many seconds of finished runs, measured and estimated times have equal weight.
const TRUSTED: f64 = 20.0;

/// The maximum number of simulations in parallel. A simulation of 1,024 CPUs with 256 queues takes
/// 4 GiB of memory.
const SIMULATED_AT_ONCE: usize = 4;

/// The line that is printed for one run.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    experiment: &'a str,
    series: &'a str,
    x: Option<f64>,
    round: usize,
    /// The one-way time to transfer a cache line, before and after the run, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart_ns: Option<[f64; 2]>,
    values: &'a Measurement,
    /// The costs and the machine of a simulated run, instead of the real machine.
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

/// Returns a description of the machine, the kernel and steerage. Runs with different descriptions
/// must not be evaluated together.
pub(crate) fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, kernel) = (text("/proc/cpuinfo"), text("/proc/sys/kernel/osrelease"));
        let value = |key: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
        };
        // Only x86 has a processor name in /proc/cpuinfo.
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

/// Runs experiments one after the other, each only once.
///
/// # Errors
/// Returns an error if no run could be measured or printed.
pub fn run_all(planned: Vec<Experiment>, out: &mut impl Write) -> Result<(), LabError> {
    let mut names = BTreeSet::new();
    let mut todo: VecDeque<Experiment> =
        planned.into_iter().filter(|experiment| names.insert(experiment.name)).collect();
    let (mut measured, mut why) = (0, String::new());
    while let Some(experiment) = todo.pop_front() {
        let is_simulated = experiment.simulated.is_some();
        let mut together = vec![experiment];
        // Consecutive simulated experiments run together, so that no CPU waits at an experiment's
        // end.
        while is_simulated && todo.front().is_some_and(|next| next.simulated.is_some()) {
            together.extend(todo.pop_front());
        }
        let later = todo.iter().map(Experiment::estimate).sum();
        for (name, why) in together.iter().flat_map(|of| of.skipped.iter().map(move |why| (of.name, why))) {
            write_line(&Skipped { experiment: name, skipped: why }, out)?;
        }
        let (runs, skipped) = match together.pop() {
            Some(experiment) if !is_simulated => run(experiment, later, out)?,
            last => simulate(together.into_iter().chain(last).collect(), later, out)?,
        };
        measured += runs;
        why = if why.is_empty() { skipped } else { why };
    }
    if measured > 0 { Ok(()) } else { Err(LabError::Nothing(why)) }
}

/// A failed case is left out of later rounds. Returns the number of runs, and why the first skipped
/// case was skipped.
fn run(experiment: Experiment, later: Duration, out: &mut impl Write) -> Result<(usize, String), LabError> {
    let mut progress = Progress::new();
    let Experiment { name, mut cases, mut skipped, rounds, mut cpus, probed_cpus, .. } = experiment;
    cpus.truncate(probed_cpus);
    let (mut runs, mut last) = (0, None);
    for round in 0..rounds {
        let mut failed = Vec::new();
        for at in 0..cases.len() {
            let each = |cases: &[Case]| cases.iter().map(|case| case.takes).sum::<Duration>();
            let left = each(&cases[at..]) + each(&cases) * (rounds - round - 1) as u32 + later;
            let case = &mut cases[at];
            progress.show(&format!(
                "{name}  round {} of {rounds}  {} s left  {}",
                round + 1,
                left.as_secs(),
                case.series
            ));
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
    progress.end();
    Ok((runs, skipped.into_iter().next().unwrap_or_default()))
}

fn write_failed(name: &str, case: &Case, error: &LabError, out: &mut impl Write) -> Result<String, LabError> {
    let point = case.x.map_or_else(String::new, |x| format!(" at {x}"));
    let why = format!("{}{point}: {error}", case.series);
    write_line(&Skipped { experiment: name, skipped: &why }, out)?;
    Ok(why)
}

/// Simulated runs do not disturb each other, so they run in parallel, the longest first. The output
/// is in the order of the cases. Returns the same as [`run`].
fn simulate(experiments: Vec<Experiment>, later: Duration, out: &mut impl Write) -> Result<(usize, String), LabError> {
    let about: Vec<(&str, String)> =
        experiments.iter().map(|of| (of.name, of.simulated.clone().unwrap_or_default())).collect();
    let mut skipped: Vec<String> = experiments.iter().flat_map(|of| of.skipped.clone()).collect();
    let cases: Vec<(usize, Case)> = experiments
        .into_iter()
        .enumerate()
        .flat_map(|(of, all)| all.cases.into_iter().map(move |case| (of, case)))
        .collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(SIMULATED_AT_ONCE);
    let (all, mut runs) = (cases.len(), 0);
    let began = Instant::now();
    let mut left = Left::new(cases.iter().map(|(_, case)| case.takes).sum(), threads);
    let mut todo: Vec<_> = cases.into_iter().enumerate().collect();
    todo.sort_by_key(|(_, (_, case))| std::cmp::Reverse(case.takes));
    let todo = Mutex::new(todo.into_iter());
    let (done, results) = mpsc::channel();
    let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for done in vec![done; threads] {
            scope.spawn(move || {
                while let Some((at, (of, mut case))) = next() {
                    let measured = run_on_new_thread(&mut case);
                    // `send` fails only if the output has failed.
                    if done.send((at, (of, case, measured))).is_err() {
                        return;
                    }
                }
            });
        }
        // If the output fails, each simulating thread ends after its current run.
        let (results, mut early, mut progress) = (results, BTreeMap::new(), Progress::new());
        for at in 0..all {
            while !early.contains_key(&at) {
                let seconds = (left.time(began.elapsed()) + later).as_secs();
                progress.show(&format!("simulations  {} of {all} runs  {seconds} s left", at + early.len()));
                match results.recv_timeout(PROGRESS_EVERY) {
                    Ok((nth, result)) => {
                        left.done(result.1.takes);
                        early.insert(nth, result);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(LabError::Panicked),
                }
            }
            match early.remove(&at) {
                Some((of, case, Ok(measured))) => {
                    let (name, simulated) = &about[of];
                    let line = Line::of(name, &case.series, case.x, 0, None, &measured);
                    write_line(&Line { simulated: Some(simulated), machine: None, ..line }, out)?;
                    runs += 1;
                }
                Some((of, case, Err(error))) => skipped.push(write_failed(about[of].0, &case, &error, out)?),
                None => {}
            }
        }
        progress.end();
        Ok((runs, skipped.into_iter().next().unwrap_or_default()))
    })
}

struct Left {
    threads: f64,
    /// The estimated time of the finished runs, in seconds. `open`: the estimated time of the
    /// unfinished runs.
    done: f64,
    open: f64,
}

impl Left {
    fn new(all: Duration, threads: usize) -> Self {
        Self { threads: threads as f64, done: 0.0, open: all.as_secs_f64() }
    }

    fn done(&mut self, takes: Duration) {
        self.done += takes.as_secs_f64();
        self.open -= takes.as_secs_f64();
    }

    /// Estimated times fit only one machine, so the measured times of finished runs gain weight
    /// over time.
    fn time(&self, elapsed: Duration) -> Duration {
        let each = (elapsed.as_secs_f64() + TRUSTED) / (self.done + TRUSTED * self.threads);
        Duration::from_secs_f64((self.open * each).max(0.0))
    }
}

/// A progress line on standard error. On a terminal, a progress line overwrites the previous one.
struct Progress {
    is_terminal: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), last: Instant::now() }
    }

    fn show(&mut self, text: &str) {
        // Writing fails only if standard error is closed.
        if self.is_terminal {
            let text: String = text.chars().take(PROGRESS_WIDTH).collect();
            let _ = write!(io::stderr(), "\r{text}\x1b[K");
        } else if self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    fn end(&mut self) {
        if self.is_terminal {
            self.show("");
        }
    }
}

type Apart = Option<[f64; 2]>;

fn run_case(case: &mut Case, cpus: &[usize], last: &mut Option<f64>) -> Result<(Apart, Measurement), LabError> {
    if cpus.len() < 2 {
        return run_on_new_thread(case).map(|measured| (None, measured));
    }
    // The last measured distance of the CPUs is used again, because no case has run since.
    let before = last.take().map_or_else(|| probe(cpus), Ok)?;
    let measured = run_on_new_thread(case)?;
    let after = probe(cpus)?;
    *last = Some(after);
    Ok((Some([before, after]), measured))
}

/// Runs a case on its own thread, so that a panic or a changed CPU affinity has no effect on later
/// cases.
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
        run_all(vec![experiment], &mut out).unwrap();
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
    fn simulated_experiments_run_together_and_once_in_order() {
        let simulated = |name: &'static str| {
            let settings = Settings::new(vec![0]);
            let mut experiment = Experiment::new(name, 3, &settings);
            experiment.simulated(&settings.simulation);
            for series in ["a", "b", "c"] {
                experiment.case(series, None, 1, || Ok(Measurement::of("n", 1.0)));
            }
            experiment
        };
        let mut out = Vec::new();
        run_all(
            vec![simulated("one"), experiment(1), simulated("two"), simulated("one"), simulated("three")],
            &mut out,
        )
        .unwrap();
        let lines: Vec<Value> =
            String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let all: Vec<String> = lines.iter().map(|line| format!("{} {}", line["experiment"], line["series"])).collect();
        let expected = ["one", "two", "three"]
            .iter()
            .flat_map(|name| ["a", "b", "c"].map(|series| format!("\"{name}\" \"{series}\"")));
        assert_eq!(all, expected.collect::<Vec<_>>());
        assert!(lines.iter().all(|line| line["simulated"].is_string() && line["machine"].is_null()));
    }

    #[test]
    fn the_time_left_follows_the_runs() {
        let left = Left { threads: 2.0, done: 10_000.0, open: 1000.0 }.time(Duration::from_secs(10_000));
        assert!((900..=1000).contains(&left.as_secs()), "{left:?}");
        let mut new = Left::new(Duration::from_secs(300), 2);
        assert_eq!(new.time(Duration::ZERO).as_secs(), 150);
        new.done(Duration::from_secs(300));
        assert!(new.time(Duration::from_secs(1)).is_zero());
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
