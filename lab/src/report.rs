//! A report: machine, experiments and samples. Our benchmarks and the programs of peers write
//! samples in this form. Other modules show a report as a table, as JSON and as a page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::placement::{Apart, Placement, classify};

/// A report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The version of the JSON form: [`SCHEMA`].
    pub schema: u32,
    /// The machine that ran the experiments.
    pub machine: Machine,
    /// The experiments.
    pub experiments: Vec<Experiment>,
}

/// The version of the JSON form.
pub const SCHEMA: u32 = 1;

/// The machine, the time, and the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of CPUs that this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// steerage's version.
    pub version: String,
    /// The command line; one line for each run.
    pub command: String,
    /// When the first run began: RFC 3339, in UTC.
    pub started: String,
    /// How long all runs took, in seconds.
    pub seconds: f64,
    /// The programs that were measured for comparison, with their versions: one line each, such as
    /// `DPDK 22.11, peers/dpdk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
}

/// One experiment: its question, its runs, and its charts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// As in `steerage bench NAME`, or NAME-PART if the experiment has several parts.
    pub name: String,
    /// Its title in one line.
    pub title: String,
    /// The question that it answers, in a few sentences.
    pub question: String,
    /// The published work that the experiment repeats, with author and place; empty if there is
    /// none.
    pub published: String,
    /// The metrics. The experiment is about the first one.
    pub metrics: Vec<Metric>,
    /// The meaning of a sample's `x` with its unit, such as `work, ns a packet`; empty if samples have no `x`.
    pub x: String,
    /// The series that are compared.
    pub compared: Vec<Pair>,
    /// The charts.
    pub charts: Vec<Chart>,
    /// Every run, in the order in which they were made.
    pub samples: Vec<Sample>,
    /// The measurements that could not run, each with its reason in one line.
    pub skipped: Vec<String>,
}

impl Experiment {
    /// Determines the placement of all runs whose times are known.
    pub fn classify(&mut self) {
        let times: Vec<Apart> = self.samples.iter().filter_map(|sample| sample.apart_ns).collect();
        let known = self.samples.iter_mut().filter(|sample| sample.apart_ns.is_some());
        known.zip(classify(&times)).for_each(|(sample, placement)| sample.placement = placement);
    }
}

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// As in [`Sample::values`].
    pub name: String,
    /// Its name for people, such as `received`.
    pub title: String,
    /// Its unit, such as `Mpps`, `ns`, `%`.
    pub unit: String,
    /// Whether a higher value is better.
    pub more_is_better: bool,
}

/// Two series that are compared: the ratio is 1 if both are equally good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The series whose gain is computed.
    pub of: String,
    /// The series that it is compared with.
    pub over: String,
    /// The metric.
    pub metric: String,
    /// Published results of the same comparison, which charts show beside the measured ratios.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedRatio>,
}

/// A published ratio. It comes from another machine and usually from another metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedRatio {
    /// Its point on the axis, if it has one.
    pub x: Option<f64>,
    /// The ratio: above 1 the first series was better.
    pub ratio: f64,
    /// The set-up, in a few words.
    pub set_up: String,
}

/// A chart of an experiment's samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// The kind of chart.
    pub kind: ChartKind,
    /// The metric; empty for a distribution.
    pub metric: String,
    /// The series in the chart, in order; if empty, all series.
    pub series: Vec<String>,
}

/// The kinds of charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChartKind {
    /// A bar for each series (in groups by `x` if there is one), with its spread.
    Bars,
    /// A line for each series over `x`, with its spread.
    Lines,
    /// A line over `x` for the ratio of each compared pair. The ratio is above 1 if the first
    /// series is better.
    Ratio,
    /// The latencies of each series by percentile.
    Distribution,
}

/// The measurements of one run of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The [`Experiment::name`], so that a line of JSON that a peer's program prints says where it belongs.
    pub experiment: String,
    /// The series, such as `no steering` or `rte_ring`.
    pub series: String,
    /// The point on the axis.
    pub x: Option<f64>,
    /// The round. Ratios are taken within a round.
    pub round: usize,
    /// How far apart the CPUs were.
    pub placement: Placement,
    /// The one-way times before and after the run, if they are known. They determine the placement.
    /// [`Experiment::classify`] considers all runs of an experiment together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart_ns: Option<Apart>,
    /// The values by metric.
    pub values: BTreeMap<String, f64>,
    /// The steps of a histogram in rising order: a time in nanoseconds, and the number of packets
    /// that took at most that long but longer than the step before. Empty if latencies were not
    /// measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(u64, u64)>,
}
