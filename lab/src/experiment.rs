//! An experiment: a name, and cases that run in turn. lab/experiments.json describes each
//! experiment.

use std::fmt;
use std::time::Duration;

use steerage::topology::{self, Topology};
use steerage::{CpuMask, limits::CPUS_MAX};

use crate::error::LabError;
use crate::measurement::Measurement;
use crate::runs::CpuPair;
use crate::simulation::Simulation;

/// The settings that all experiments share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CPUs to use, at least one. The first CPU receives packets.
    pub cpus: Vec<usize>,
    /// The number of runs of each case. If `None`, the experiment chooses the number of runs.
    pub rounds: Option<usize>,
    /// The approximate measured time of each run.
    pub measured: Duration,
    /// The length of the warm-up for policies that choose CPUs by load.
    pub warm_up: Duration,
    /// The measured time of a run of the experiment `rr`. The experiment `rr` needs longer than
    /// other experiments, because opening connections takes time, and client and server share the
    /// CPUs.
    pub rr_measured: Duration,
    /// The number of TCP connections of the experiment `rr`.
    pub connections: usize,
    /// Measure only the first and the last value of each axis (such as the number of CPUs).
    pub ends_only: bool,
    /// The costs, the machine and the seed of simulated experiments.
    pub simulation: Simulation,
}

/// The shortest run. In a shorter run, the start and the end would take most of the time.
pub const SECONDS_MIN: Duration = Duration::from_millis(1);

/// The longest run: no experiment needs more than one hour.
pub const SECONDS_MAX: Duration = Duration::from_secs(3600);

/// The default length of a run: long compared with its start, but so short that all runs together
/// take only minutes.
const MEASURED: Duration = Duration::from_millis(500);

/// The default warm-up, after which the `balance` policy has finished its trials of CPUs.
const WARM_UP: Duration = Duration::from_millis(1000);

/// The warm-up is divided by this number for policies that do not try different sets of CPUs.
const FIXED_WARM_UP: u32 = 5;

const SIMULATED: Duration = Duration::from_secs(2);

const CONNECTIONS: usize = 500;

const CONNECTIONS_QUICK: usize = 16;

/// The minimum number of frames in a run, enough to fill a ring a few times.
const FRAMES_MIN: f64 = 20_000.0;

const FRAMES_MIN_QUICK: f64 = 2_000.0;

impl Settings {
    /// Makes the settings for which the experiments are designed.
    pub fn new(cpus: Vec<usize>) -> Self {
        Self {
            cpus,
            rounds: None,
            measured: MEASURED,
            warm_up: WARM_UP,
            rr_measured: 4 * MEASURED,
            connections: CONNECTIONS,
            ends_only: false,
            simulation: Simulation::of_the_repository(),
        }
    }

    /// Returns the length of the warm-up. Only policies that add and remove CPUs during the run
    /// (`balances`) need the whole warm-up.
    pub(crate) fn warm_up_of(&self, balances: bool) -> Duration {
        if balances { self.warm_up } else { self.warm_up / FIXED_WARM_UP }
    }

    /// Makes settings for a smoke test: one round of runs that are too short for good measurements.
    pub fn quick(cpus: Vec<usize>) -> Self {
        let short = Duration::from_millis(5);
        let (measured, warm_up, rr_measured) = (short, short, 4 * short);
        let (rounds, connections, ends_only) = (Some(1), CONNECTIONS_QUICK, true);
        let simulation = Simulation::of_the_repository();
        Self { cpus, rounds, measured, warm_up, rr_measured, connections, ends_only, simulation }
    }

    /// Returns the values of the axis `all` that the experiment measures.
    pub fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match all {
            [first, .., last] if self.ends_only => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    /// Returns the number of frames in a run with `nanos_each` nanoseconds per frame.
    pub fn frames(&self, nanos_each: f64) -> u64 {
        let least = if self.ends_only { FRAMES_MIN_QUICK } else { FRAMES_MIN };
        (self.measured.as_nanos() as f64 / nanos_each).max(least) as u64
    }

    /// Returns the receiving CPU and the other CPU of a run. With only one CPU, the receiving CPU
    /// is also the other CPU.
    pub fn pair(&self) -> CpuPair {
        let (first, second) = (self.cpus.first(), self.cpus.get(1));
        let receive = first.copied().unwrap_or_default();
        CpuPair { receive, work: second.copied().unwrap_or(receive) }
    }
}

/// Returns the CPUs of `list`, or all CPUs that this process may use. The first CPU of the result
/// receives packets. CPUs that steerage would add earlier come earlier.
///
/// # Errors
/// Returns an error if the list is not valid, or if it names a CPU that this process may not use.
pub fn cpus(list: Option<&str>) -> Result<Vec<usize>, LabError> {
    let topology = Topology::read();
    let mask = match list {
        None => topology.default_mask(),
        Some(text) => CpuMask::parse_list(text, topology.nr_cpu_ids().unwrap_or(CPUS_MAX))
            .map_err(|error| LabError::set_up("the CPUs of --cpus", error))?,
    };
    let online = topology::online();
    let usable = |cpu| topology.allowed().contains(cpu) && online.as_ref().is_none_or(|online| online.contains(cpu));
    if let Some(cpu) = mask.iter().find(|cpu| !usable(*cpu)) {
        let why = format!("this process may not use CPU {cpu}: choose from {}", topology.allowed());
        return Err(LabError::set_up("the CPUs of --cpus", why));
    }
    let first = mask.first().ok_or_else(|| LabError::set_up("a CPU", "the list is empty"))?;
    let order = [first].into_iter().chain(topology.joining_order(first, &mask));
    Ok(order.map(|cpu| usize::from(cpu.0)).collect())
}

type Run = Box<dyn FnMut() -> Result<Measurement, LabError> + Send>;

pub(crate) struct Case {
    pub(crate) series: String,
    pub(crate) x: Option<f64>,
    pub(crate) takes: Duration,
    pub(crate) run: Run,
}

/// An experiment that is ready to run.
pub struct Experiment {
    /// The experiment's name in lab/experiments.json.
    pub(crate) name: &'static str,
    pub(crate) cases: Vec<Case>,
    /// The cases that cannot run on this machine, and why.
    pub(crate) skipped: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) cpus: Vec<usize>,
    /// The number of CPUs whose distances are measured before and after each run: the largest
    /// number of CPUs of any case, so that "near" and "far" mean the same for all cases.
    pub(crate) probed_cpus: usize,
    /// The costs and the machine of simulated runs, as text.
    pub(crate) simulated: Option<String>,
    takes: Duration,
}

impl Experiment {
    /// Creates an experiment without cases, with `rounds` runs of each case by default.
    pub fn new(name: &'static str, rounds: usize, settings: &Settings) -> Self {
        Self {
            name,
            cases: Vec::new(),
            skipped: Vec::new(),
            rounds: settings.rounds.unwrap_or(rounds),
            cpus: settings.cpus.clone(),
            probed_cpus: 1,
            simulated: None,
            takes: settings.measured,
        }
    }

    /// Marks all runs as simulated. One round of simulated runs is enough, because the same seed
    /// gives the same result.
    pub fn simulated(&mut self, simulation: &Simulation) {
        let machine = simulation.machine.cpus();
        self.simulated = Some(format!("{}, {machine} CPUs, seed {}", simulation.profile.name, simulation.seed));
        (self.rounds, self.takes) = (1, SIMULATED);
    }

    /// Sets the duration of a run for all cases added after this call.
    pub fn takes(&mut self, time: Duration) {
        self.takes = time;
    }

    /// Adds a case that is skipped if there are fewer than `cpus` CPUs.
    pub fn case(
        &mut self,
        series: impl Into<String>,
        x: Option<f64>,
        cpus: usize,
        run: impl FnMut() -> Result<Measurement, LabError> + Send + 'static,
    ) {
        let series = series.into();
        if cpus > self.cpus.len() {
            return self.skip(format!("{series}: it takes {cpus} CPUs, and there are {}", self.cpus.len()));
        }
        self.probed_cpus = self.probed_cpus.max(cpus);
        self.cases.push(Case { series, x, takes: self.takes, run: Box::new(run) });
    }

    /// Records why a case could not run. The text `why` names the case.
    pub fn skip(&mut self, why: String) {
        if !self.skipped.contains(&why) {
            self.skipped.push(why);
        }
    }

    /// Returns the approximate duration of all runs together.
    pub fn estimate(&self) -> Duration {
        self.cases.iter().map(|case| case.takes).sum::<Duration>() * self.rounds as u32
    }
}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, cases) = (&self.name, self.cases.len());
        f.debug_struct("Experiment").field("name", name).field("cases", &cases).field("rounds", &self.rounds).finish()
    }
}
