//! An experiment that is ready to run: what it says of itself, and its cases.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::error::BenchError;
use crate::measure;
use crate::report::{Chart, ChartKind, Experiment, Metric, Pair};

/// What can be said of every experiment.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The CPUs to use. The first receives; one at least.
    pub cpus: Vec<usize>,
    /// How often each case is run, if the experiment is not to say so itself.
    pub rounds: Option<usize>,
    /// How long each run is measured, about.
    pub measured: Duration,
    /// How long a run warms up where steering by load has to find its CPUs.
    pub warm_up: Duration,
    /// Whether of all points on an axis the first and the last are enough.
    pub ends_only: bool,
}

/// How long each run is measured where nobody says so: long beside what starting costs, and all of them in minutes.
const MEASURED: Duration = Duration::from_millis(500);

/// Trials of CPUs are over after that.
const WARM_UP: Duration = Duration::from_millis(1000);

/// Without trials to be waited for, a part of that is enough.
const FIXED_WARM_UP: u32 = 5;

/// The fewest frames of a run: a few rings full.
const FRAMES_MIN: f64 = 20_000.0;

impl Settings {
    /// As experiments are meant.
    pub fn new(cpus: Vec<usize>) -> Self {
        Self { cpus, rounds: None, measured: MEASURED, warm_up: WARM_UP, ends_only: false }
    }

    /// How long a run goes on before it is measured: with CPUs that join and leave, or without.
    pub(super) fn warm_up_of(&self, balances: bool) -> Duration {
        if balances { self.warm_up } else { self.warm_up / FIXED_WARM_UP }
    }

    /// For a look whether it works: one round of runs that are too short for figures, and as few as have all series.
    pub fn quick(cpus: Vec<usize>) -> Self {
        let short = Duration::from_millis(5);
        Self { cpus, rounds: Some(1), measured: short, warm_up: short, ends_only: true }
    }

    /// Of all points on an axis those to be measured.
    pub fn points<T: Copy>(&self, all: &[T]) -> Vec<T> {
        match all {
            [first, .., last] if self.ends_only => vec![*first, *last],
            _ => all.to_vec(),
        }
    }

    /// How many frames are a run's, of so many nanoseconds each.
    pub fn frames(&self, nanos_each: f64) -> u64 {
        (self.measured.as_nanos() as f64 / nanos_each).max(FRAMES_MIN) as u64
    }

    /// The CPUs of runs on two; where there is only one, of cases that are skipped.
    pub fn pair(&self) -> measure::Pair {
        let (first, second) = (self.cpus.first(), self.cpus.get(1));
        let receive = first.copied().unwrap_or_default();
        measure::Pair { receive, work: second.copied().unwrap_or(receive) }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// By metric.
    pub values: BTreeMap<String, f64>,
    /// As in [`Sample::latencies`](crate::report::Sample::latencies).
    pub latencies: Vec<(u64, u64)>,
}

impl Figures {
    /// One figure.
    pub fn of(metric: &str, value: f64) -> Self {
        Self::default().and(metric, value)
    }

    /// And another one. What is no number was not measured.
    pub fn and(mut self, metric: &str, value: f64) -> Self {
        if value.is_finite() {
            self.values.insert(metric.to_owned(), value);
        }
        self
    }
}

type Run = Box<dyn FnMut() -> Result<Figures, BenchError> + Send>;

/// What is run, in turn with others.
pub(crate) struct Case {
    pub(crate) series: String,
    pub(crate) x: Option<f64>,
    /// How long a run takes, about.
    pub(crate) takes: Duration,
    pub(crate) run: Run,
}

/// What an experiment says of itself.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// As in [`Experiment::name`].
    pub name: &'static str,
    /// As in [`Experiment::title`].
    pub title: &'static str,
    /// As in [`Experiment::question`].
    pub question: &'static str,
    /// As in [`Experiment::published`].
    pub published: &'static str,
    /// As in [`Experiment::x`].
    pub x: &'static str,
    /// How often each case is run where nobody says so.
    pub rounds: usize,
}

/// An experiment that is ready to run.
pub struct Plan {
    pub(crate) experiment: Experiment,
    pub(crate) cases: Vec<Case>,
    /// How often each case is run.
    pub(crate) rounds: usize,
    /// All that there are to use.
    pub(crate) cpus: Vec<usize>,
    /// Between how many of them the distance counts: as many as any case takes, so that all cases are told apart alike.
    pub(crate) apart: usize,
    takes: Duration,
}

impl Plan {
    /// Without cases as yet.
    pub fn new(about: About, settings: &Settings) -> Self {
        let experiment = Experiment {
            name: about.name.to_owned(),
            title: about.title.to_owned(),
            question: about.question.to_owned(),
            published: about.published.to_owned(),
            metrics: Vec::new(),
            x: about.x.to_owned(),
            compared: Vec::new(),
            charts: Vec::new(),
            samples: Vec::new(),
            skipped: Vec::new(),
        };
        let rounds = settings.rounds.unwrap_or(about.rounds);
        Self { experiment, cases: Vec::new(), rounds, cpus: settings.cpus.clone(), apart: 1, takes: settings.measured }
    }

    /// Says of what the figures are: name, title and unit. The first is what it is about.
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

    /// Says which series is told in terms of which, by the first metric.
    pub fn compare(mut self, of: &str, over: &str) -> Self {
        let metric = self.experiment.metrics.first().map_or_else(String::new, |metric| metric.name.clone());
        self.experiment.compared.push(Pair { of: of.to_owned(), over: over.to_owned(), metric });
        self
    }

    /// Says how to draw it: all series, by one metric.
    pub fn chart(mut self, kind: ChartKind, metric: &str, title: &str) -> Self {
        let (title, metric) = (title.to_owned(), metric.to_owned());
        self.experiment.charts.push(Chart { title, kind, metric, series: Vec::new() });
        self
    }

    /// So long a run takes, of the cases that follow.
    pub fn takes(&mut self, time: Duration) {
        self.takes = time;
    }

    /// Adds what is run on so many CPUs; where there are fewer, that it is skipped.
    pub fn case(
        &mut self,
        series: impl Into<String>,
        x: Option<f64>,
        cpus: usize,
        run: impl FnMut() -> Result<Figures, BenchError> + Send + 'static,
    ) {
        let series = series.into();
        if cpus > self.cpus.len() {
            return self.skip(format!("{series}: it takes {cpus} CPUs, and there are {}", self.cpus.len()));
        }
        self.apart = self.apart.max(cpus);
        self.cases.push(Case { series, x, takes: self.takes, run: Box::new(run) });
    }

    /// Says once what could not be run, and why.
    pub fn skip(&mut self, why: String) {
        if !self.experiment.skipped.contains(&why) {
            self.experiment.skipped.push(why);
        }
    }

    /// How long all of it takes, about.
    pub fn estimate(&self) -> Duration {
        self.cases.iter().map(|case| case.takes).sum::<Duration>() * self.rounds as u32
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, cases) = (&self.experiment.name, self.cases.len());
        f.debug_struct("Plan").field("name", name).field("cases", &cases).field("rounds", &self.rounds).finish()
    }
}
