//! What an experiment is, and what its runs came to: the form in which figures go from whoever measured them, ours or a
//! peer's program, to a table, to JSON and to a page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::placement::Placement;

/// Everything of one report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form: [`SCHEMA`].
    pub schema: u32,
    /// What was measured on.
    pub machine: Machine,
    /// What was measured.
    pub experiments: Vec<Experiment>,
}

/// The version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Where, when, and by what.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// How many CPUs this process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether a hypervisor is below.
    pub virtual_machine: bool,
    /// steerage's version.
    pub version: String,
    /// The command as it was given; of several runs a line each.
    pub command: String,
    /// When it began: RFC 3339, in UTC.
    pub started: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What was measured beside it, with its version: a line each, such as `DPDK 22.11, peers/dpdk`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
}

/// One published experiment, repeated: its question, its runs, and how to draw them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// As in `steerage bench NAME`; of one in several parts NAME-PART.
    pub name: String,
    /// One line.
    pub title: String,
    /// What is asked, in a few sentences.
    pub question: String,
    /// What was published, by whom and where; empty if nothing was.
    pub published: String,
    /// What the figures are of. The first is what the experiment is about.
    pub metrics: Vec<Metric>,
    /// What `x` of a sample means, with its unit, such as `work, ns a packet`; empty where samples have none.
    pub x: String,
    /// Which series are to be compared: pairs of (that one, with this one as 1).
    pub compared: Vec<Pair>,
    /// How to draw it.
    pub charts: Vec<Chart>,
    /// Every run, in the order in which they were made.
    pub samples: Vec<Sample>,
    /// What could not be run, and why: one line each.
    pub skipped: Vec<String>,
}

/// A kind of figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// As in [`Sample::values`].
    pub name: String,
    /// For people: `received`.
    pub title: String,
    /// Such as `Mpps`, `ns`, `%`.
    pub unit: String,
    /// Whether more is better.
    pub more_is_better: bool,
}

/// Two series of which the first is said in terms of the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Whose gain it is.
    pub of: String,
    /// Over what.
    pub over: String,
    /// By which metric.
    pub metric: String,
}

/// A picture of an experiment's samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// What is drawn.
    pub kind: ChartKind,
    /// Of which metric; of a distribution empty.
    pub metric: String,
    /// The series in it, in order; all if there are none.
    pub series: Vec<String>,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChartKind {
    /// A bar for each series (in groups by `x` if there is one), with its spread.
    Bars,
    /// A line for each series over `x`, with its spread.
    Lines,
    /// As lines, of the ratio of each compared pair: above 1 it pays.
    Ratio,
    /// The latencies of each series, by how many packets are above them.
    Distribution,
}

/// What one run of one case came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Of which [`Experiment::name`]: so that a line of JSON, as a peer's program prints, says where it belongs.
    pub experiment: String,
    /// What was run, such as `no steering` or `rte_ring`.
    pub series: String,
    /// At which point.
    pub x: Option<f64>,
    /// In which round: ratios are taken within a round.
    pub round: usize,
    /// How far apart the CPUs were, before and after.
    pub placement: Placement,
    /// By metric.
    pub values: BTreeMap<String, f64>,
    /// Steps of a histogram, in rising order: nanoseconds, and how many packets took so many at most and more than the step
    /// before. Empty where nobody looked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<(u64, u64)>,
}
