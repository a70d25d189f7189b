//! A benchmark: its description, its settings, and the cases that are run in turn.

use std::fmt;
use std::time::Duration;

use crate::error::BenchError;
use crate::measurement::Measurement;
use crate::published::Published;
use crate::report::{Chart, ChartKind, Experiment, Metric, Pair, PublishedRatio};
use crate::runs::CpuPair;

/// The settings that all benchmarks share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CPUs to use, at least one. The first one receives.
    pub cpus: Vec<usize>,
    /// How many times each case runs. `None`: as many times as the benchmark itself says.
    pub rounds: Option<usize>,
    /// The approximate time for which each run is measured.
    pub measured: Duration,
    /// The length of a warm-up if the policy finds its CPUs by load.
    pub warm_up: Duration,
    /// Whether only the first and the last point of an axis are measured.
    pub ends_only: bool,
}

/// The default time for which each run is measured. It is long compared with the cost of starting a
/// run, and short enough that all runs take minutes.
const MEASURED: Duration = Duration::from_millis(500);

/// The default warm-up. By then the `balance` policy has finished its trials of CPUs.
const WARM_UP: Duration = Duration::from_millis(1000);

/// The divisor of the warm-up for policies that have no trials to wait for.
const FIXED_WARM_UP: u32 = 5;

/// The fewest frames of a run: a few full rings.
const FRAMES_MIN: f64 = 20_000.0;

impl Settings {
    /// The settings that the experiments are designed for.
    pub fn new(cpus: Vec<usize>) -> Self {
        Self { cpus, rounds: None, measured: MEASURED, warm_up: WARM_UP, ends_only: false }
    }

    /// The warm-up of a run. `balances` says whether CPUs join and leave during the run.
    pub(crate) fn warm_up_of(&self, balances: bool) -> Duration {
        if balances { self.warm_up } else { self.warm_up / FIXED_WARM_UP }
    }

    /// Settings for a smoke test: one round of short runs at as few points as show all series. The
    /// runs are too short for good measurements.
    pub fn quick(cpus: Vec<usize>) -> Self {
        let short = Duration::from_millis(5);
        Self { cpus, rounds: Some(1), measured: short, warm_up: short, ends_only: true }
    }

    /// The measured points of an axis.
    pub fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match all {
            [first, .., last] if self.ends_only => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    /// The number of frames in a run if each takes `nanos_each`.
    pub fn frames(&self, nanos_each: f64) -> u64 {
        (self.measured.as_nanos() as f64 / nanos_each).max(FRAMES_MIN) as u64
    }

    /// The CPUs of a run on two CPUs. If there is only one CPU, both are the same, and the cases
    /// that need two are skipped.
    pub fn pair(&self) -> CpuPair {
        let (first, second) = (self.cpus.first(), self.cpus.get(1));
        let receive = first.copied().unwrap_or_default();
        CpuPair { receive, work: second.copied().unwrap_or(receive) }
    }
}

type Run = Box<dyn FnMut() -> Result<Measurement, BenchError> + Send>;

/// A case: a function that runs in turn with those of the other cases.
pub(crate) struct Case {
    pub(crate) series: String,
    pub(crate) x: Option<f64>,
    /// About how long a run takes.
    pub(crate) takes: Duration,
    pub(crate) run: Run,
}

/// The texts that describe a benchmark in its report.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// As in [`Experiment::name`].
    pub name: &'static str,
    /// As in [`Experiment::title`].
    pub title: &'static str,
    /// As in [`Experiment::question`].
    pub question: &'static str,
    /// The published work that the benchmark repeats, if there is any.
    pub published: Option<&'static Published>,
    /// As in [`Experiment::x`].
    pub x: &'static str,
    /// The default number of runs of each case.
    pub rounds: usize,
}

/// A benchmark that is ready to run.
pub struct Benchmark {
    pub(crate) experiment: Experiment,
    pub(crate) cases: Vec<Case>,
    /// How many times each case runs.
    pub(crate) rounds: usize,
    /// All CPUs that the cases may use.
    pub(crate) cpus: Vec<usize>,
    /// The number of CPUs, from the first on, whose distance is measured around each run. This is
    /// the highest number that any case uses, so that the placement means the same for all cases.
    pub(crate) probed_cpus: usize,
    takes: Duration,
}

impl Benchmark {
    /// A benchmark without cases.
    pub fn new(about: Description, settings: &Settings) -> Self {
        let experiment = Experiment {
            name: about.name.to_owned(),
            title: about.title.to_owned(),
            question: about.question.to_owned(),
            published: about.published.map_or_else(String::new, Published::text),
            metrics: Vec::new(),
            x: about.x.to_owned(),
            compared: Vec::new(),
            charts: Vec::new(),
            samples: Vec::new(),
            skipped: Vec::new(),
        };
        let rounds = settings.rounds.unwrap_or(about.rounds);
        Self {
            experiment,
            cases: Vec::new(),
            rounds,
            cpus: settings.cpus.clone(),
            probed_cpus: 1,
            takes: settings.measured,
        }
    }

    /// Adds a metric. The first metric is the one that the benchmark is about.
    pub fn metric(mut self, name: &str, title: &str, unit: &str, more_is_better: bool) -> Self {
        let owned = str::to_owned;
        self.experiment.metrics.push(Metric {
            name: owned(name),
            title: owned(title),
            unit: owned(unit),
            more_is_better,
        });
        self
    }

    /// Adds a comparison of series `of` with series `over` by the first metric.
    pub fn compare(self, of: &str, over: &str) -> Self {
        let metric = self.experiment.metrics.first().map_or_else(String::new, |metric| metric.name.clone());
        self.compare_by(&metric, of, over)
    }

    /// Adds a comparison by a metric.
    pub fn compare_by(mut self, metric: &str, of: &str, over: &str) -> Self {
        let (metric, of, over, published) = (metric.to_owned(), of.to_owned(), over.to_owned(), Vec::new());
        self.experiment.compared.push(Pair { of, over, metric, published });
        self
    }

    /// Shows the ratios of a published measurement beside those of the last comparison. If there is
    /// an axis, each ratio has its point there.
    pub fn beside(mut self, published: &Published) -> Self {
        let has_axis = !self.experiment.x.is_empty();
        let ratio = |one: &crate::published::Ratio| PublishedRatio {
            x: one.x.filter(|_| has_axis),
            ratio: one.after / one.before,
            set_up: one.set_up.to_owned(),
        };
        if let Some(pair) = self.experiment.compared.last_mut() {
            pair.published.extend(published.ratios.iter().map(ratio));
        }
        self
    }

    /// Adds a sentence about this machine to the question.
    pub fn on_this_machine(mut self, sentence: &str) -> Self {
        self.experiment.question += " ";
        self.experiment.question += sentence;
        self
    }

    /// Adds a chart of one metric of all series.
    pub fn chart(mut self, kind: ChartKind, metric: &str, title: &str) -> Self {
        let (title, metric) = (title.to_owned(), metric.to_owned());
        self.experiment.charts.push(Chart { title, kind, metric, series: Vec::new() });
        self
    }

    /// Sets how long a run takes, for the cases that are added from now on.
    pub fn takes(&mut self, time: Duration) {
        self.takes = time;
    }

    /// Adds a case that needs this many CPUs. If there are fewer, the report says that the case was skipped.
    pub fn case(
        &mut self,
        series: impl Into<String>,
        x: Option<f64>,
        cpus: usize,
        run: impl FnMut() -> Result<Measurement, BenchError> + Send + 'static,
    ) {
        let series = series.into();
        if cpus > self.cpus.len() {
            return self.skip(format!("{series}: it takes {cpus} CPUs, and there are {}", self.cpus.len()));
        }
        self.probed_cpus = self.probed_cpus.max(cpus);
        self.cases.push(Case { series, x, takes: self.takes, run: Box::new(run) });
    }

    /// Records which case could not run and why. A repeated note is ignored.
    pub fn skip(&mut self, why: String) {
        if !self.experiment.skipped.contains(&why) {
            self.experiment.skipped.push(why);
        }
    }

    /// About how long all runs take.
    pub fn estimate(&self) -> Duration {
        self.cases.iter().map(|case| case.takes).sum::<Duration>() * self.rounds as u32
    }
}

impl fmt::Debug for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, cases) = (&self.experiment.name, self.cases.len());
        f.debug_struct("Benchmark").field("name", name).field("cases", &cases).field("rounds", &self.rounds).finish()
    }
}
