//! An experiment: its name, and the cases that run in turn. The file lab/experiments.json describes
//! each experiment.

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
    /// The CPUs to use, at least one CPU. The first CPU receives.
    pub cpus: Vec<usize>,
    /// The number of runs of each case. If `None`, the experiment chooses the number of runs.
    pub rounds: Option<usize>,
    /// The approximate time for which each run is measured.
    pub measured: Duration,
    /// The length of the warm-up for policies that choose CPUs by load.
    pub warm_up: Duration,
    /// The measuring time of the experiment `rr` (requests and responses). The measuring time for
    /// requests and responses is longer than that of other experiments. Two reasons for the longer
    /// time are that opening the connections takes time, and that client and server share the CPUs.
    pub rr_measured: Duration,
    /// The number of TCP connections in the experiment with requests and responses.
    pub connections: usize,
    /// If true, each experiment measures only the first and the last value of each axis (such as
    /// the number of CPUs).
    pub ends_only: bool,
    /// The simulated machine, which is used by experiments that are simulated.
    pub simulation: Simulation,
}

/// The shortest run. In a shorter run, the start and the end of the run would take most of the
/// time.
pub const SECONDS_MIN: Duration = Duration::from_millis(1);

/// The longest run. No experiment needs longer runs than one hour.
pub const SECONDS_MAX: Duration = Duration::from_secs(3600);

/// The default time for which each run is measured. The default time is long compared with the
/// start of a run, but so short that all runs together take only minutes.
const MEASURED: Duration = Duration::from_millis(500);

/// The default warm-up time. After this time, the `balance` policy has finished its trials of CPUs.
const WARM_UP: Duration = Duration::from_millis(1000);

/// For policies that do not try different sets of CPUs, the warm-up time is divided by this number.
const FIXED_WARM_UP: u32 = 5;

/// The approximate real time that a simulated run takes.
const SIMULATED: Duration = Duration::from_secs(2);

const CONNECTIONS: usize = 500;

const CONNECTIONS_QUICK: usize = 16;

/// The minimum number of frames in a run. The minimum number of frames of a run fills a ring a few
/// times.
const FRAMES_MIN: f64 = 20_000.0;

/// The minimum number of frames in a run of a smoke test.
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

    /// Returns the length of the warm-up of a run. `balances` is true if the run's policy adds and
    /// removes CPUs during the run.
    pub(crate) fn warm_up_of(&self, balances: bool) -> Duration {
        if balances { self.warm_up } else { self.warm_up / FIXED_WARM_UP }
    }

    /// Makes settings for a smoke test: one round of short runs, with only the first and the last
    /// value of each axis. The runs of a smoke test are too short for good measurements.
    pub fn quick(cpus: Vec<usize>) -> Self {
        let short = Duration::from_millis(5);
        let (measured, warm_up, rr_measured) = (short, short, 4 * short);
        let (rounds, connections, ends_only) = (Some(1), CONNECTIONS_QUICK, true);
        let simulation = Simulation::of_the_repository();
        Self { cpus, rounds, measured, warm_up, rr_measured, connections, ends_only, simulation }
    }

    /// `all` are the values of an axis. Returns those values that the experiment measures.
    pub fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match all {
            [first, .., last] if self.ends_only => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    /// Returns the number of frames in a run if each frame takes `nanos_each` nanoseconds.
    pub fn frames(&self, nanos_each: f64) -> u64 {
        let least = if self.ends_only { FRAMES_MIN_QUICK } else { FRAMES_MIN };
        (self.measured.as_nanos() as f64 / nanos_each).max(least) as u64
    }

    /// Returns the two CPUs that a run on two CPUs uses. If the settings have only one CPU, the
    /// result contains this CPU twice, and cases that need two CPUs are skipped.
    pub fn pair(&self) -> CpuPair {
        let (first, second) = (self.cpus.first(), self.cpus.get(1));
        let receive = first.copied().unwrap_or_default();
        CpuPair { receive, work: second.copied().unwrap_or(receive) }
    }
}

/// Returns the CPUs of `list`. If `list` is `None`, returns all CPUs that this process may use. The
/// first CPU receives. After the first CPU, the other CPUs follow in the order in which steerage
/// would add them.
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
    /// The name of the experiment in lab/experiments.json.
    pub(crate) name: &'static str,
    pub(crate) cases: Vec<Case>,
    /// The cases that cannot run on this machine, each with its reason.
    pub(crate) skipped: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) cpus: Vec<usize>,
    /// Before and after each run, the distance of this many CPUs is measured, starting with the
    /// first CPU. The number is the largest number of CPUs that any case uses, so that "near" and
    /// "far" mean the same for all cases.
    pub(crate) probed_cpus: usize,
    /// If all runs are simulated: the costs and the machine of the simulation, as text.
    pub(crate) simulated: Option<String>,
    takes: Duration,
}

impl Experiment {
    /// Creates an experiment without cases. Each case runs `rounds` times by default.
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

    /// Marks all runs as simulated. A simulated experiment has one round, because the same seed
    /// always gives the same result.
    pub fn simulated(&mut self, simulation: &Simulation) {
        let machine = simulation.machine.cpus();
        self.simulated = Some(format!("{}, {machine} CPUs, seed {}", simulation.profile.name, simulation.seed));
        (self.rounds, self.takes) = (1, SIMULATED);
    }

    /// Sets the duration of a run for all cases that are added after this call.
    pub fn takes(&mut self, time: Duration) {
        self.takes = time;
    }

    /// Adds a case that needs `cpus` CPUs. If the experiment has fewer CPUs, the case is skipped.
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

    /// Records the reason why a case could not run. `why` names the case. A repeated reason is
    /// ignored.
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
