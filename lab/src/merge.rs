//! Makes one report of several reports and of samples that other programs print.
//!
//! The input is a stream of JSON values: [`Report`]s, as `steerage bench --json` prints them, and
//! lines that a peer's program prints ([`Item`]). Only reports define experiments. Samples are
//! added to an experiment that a report has.
//!
//! **Rounds.** Ratios are taken within a round, so samples that were measured in turn must have the
//! same round, and no other sample may have it. Everything in *one file* was measured in turn, in
//! the order of the file. Within a file, each program may count its own rounds from 0. A program
//! that is started once per round may always print 0. If a case (series, `x` and round) repeats,
//! the next turn has begun, and all later samples get later rounds. So `A0 B0 A0 B0` becomes
//! `A0 B0 A1 B1`, and `A0 B0 A1 B1` stays as it is. A program that fails in one turn (`A0 B0 A0 A0 B0`) is
//! in its place again in the next. In such a later turn each program's first round is the turn's
//! first round, whether the program counts on or starts again. A report's samples of an experiment
//! stay together. Each file has its own rounds: medians are taken over all files, ratios never
//! across files. Turns are counted per experiment.
//!
//! **Series.** A series that no report has belongs to a peer. If no chart of its experiment names
//! the series, it is added to the charts that list their series and whose metric it has. If no
//! comparison contains it, it is compared with the series that its lines name as `against`. Without
//! that name, it is compared with the series that the experiment is about, which is the first of
//! its compared series.
//!
//! **Machines.** One report never mixes measurements of different machines, kernels or versions.

mod rounds;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::format::{printable, truncated};
use crate::report::{ChartKind, Experiment, Machine, Pair, Report, SCHEMA, Sample};
use rounds::Rounds;

/// The highest round. A higher number is a mistake in the input.
pub const ROUND_MAX: usize = 1_000_000;

/// The most values in one file. A run has a few hundred samples.
pub const VALUES_MAX: usize = 1_000_000;

/// One value of the input.
#[derive(Clone, Debug)]
pub enum Item {
    /// A report of `steerage bench`.
    Report(Box<Report>),
    /// A sample of a peer's program, and the series of ours that are compared with it.
    Sample(Box<Sample>, Vec<String>),
    /// A note about a measurement that could not be made.
    Skipped(Skipped),
    /// The name of a program that was measured as well.
    Beside(Beside),
}

/// A line such as `{"experiment":"rps","skipped":"rte_ring: there is no DPDK here"}`.
#[derive(Clone, Debug, Deserialize)]
pub struct Skipped {
    /// The experiment's name.
    pub experiment: String,
    /// The skipped measurement and the reason, in one line.
    pub skipped: String,
}

/// A line such as `{"beside":"DPDK 22.11, peers/dpdk/ring"}`.
#[derive(Clone, Debug, Deserialize)]
pub struct Beside {
    /// A program with its version, in one line.
    pub beside: String,
}

/// The reason why the input cannot be merged, and its place in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeError {
    /// The place in the input, such as `peers.jsonl, line 7`.
    pub place: String,
    /// The error, and how to fix it.
    pub what: String,
}

impl fmt::Display for MergeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for MergeError {}

/// Collects reports and samples, and makes one report of them.
#[derive(Debug, Default)]
pub struct Merger {
    items: Vec<Placed>,
    files: usize,
}

#[derive(Debug)]
struct Placed {
    place: String,
    file: usize,
    item: Item,
}

impl Merger {
    /// A merger without any input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the text of a file. `name` is for error messages.
    ///
    /// # Errors
    /// At the first value that is not JSON, or is neither a report nor a line that a peer may print.
    pub fn read(&mut self, name: &str, text: &str) -> Result<(), MergeError> {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        // Lines are counted from one value to the next.
        let (mut line, mut counted) = (1, 0);
        self.files += 1;
        for count in 1.. {
            let start = stream.byte_offset() + leading_whitespace(&text[stream.byte_offset()..]);
            line += text[counted..start].matches('\n').count();
            counted = start;
            let error = |what: String| MergeError { place: format!("{name}, line {line}"), what };
            let value = match stream.next() {
                None => break,
                Some(Ok(_)) if count > VALUES_MAX => return Err(error(format!("more than {VALUES_MAX} values"))),
                Some(Ok(value)) => value,
                Some(Err(cause)) => {
                    return Err(MergeError { place: format!("{name}, line {}", cause.line()), what: not_json(&cause) });
                }
            };
            let item = item(value).map_err(error)?;
            self.items.push(Placed { place: format!("{name}, line {line}"), file: self.files, item });
        }
        Ok(())
    }

    /// Makes the report.
    ///
    /// # Errors
    /// If the input has no report, has reports of different machines, or has a sample of an
    /// experiment that no report has.
    pub fn finish(self) -> Result<Report, MergeError> {
        let mut report = self.merged_declarations()?;
        let mut rounds = Rounds::default();
        for Placed { place, file, item } in self.items {
            let error = |what: String| MergeError { place: place.clone(), what };
            match item {
                Item::Report(of) => {
                    for mut one in of.experiments {
                        let into = find_experiment(&mut report, &one.name).map_err(error)?;
                        rounds.renumber(&one.name, file, &mut one.samples);
                        into.samples.append(&mut one.samples);
                    }
                }
                Item::Sample(mut sample, against) => {
                    let into = find_experiment(&mut report, &sample.experiment).map_err(error)?;
                    add_peer_series(into, &sample, &against);
                    rounds.renumber(&into.name, file, std::slice::from_mut(&mut *sample));
                    into.samples.push(*sample);
                }
                Item::Skipped(Skipped { experiment: name, skipped }) => {
                    add_all(&mut find_experiment(&mut report, &name).map_err(error)?.skipped, vec![skipped]);
                }
                Item::Beside(Beside { beside }) => add_all(&mut report.machine.beside, vec![beside]),
            }
        }
        report.experiments.iter_mut().for_each(Experiment::classify);
        Ok(report)
    }

    /// The machine and the experiments of all reports, without their samples.
    fn merged_declarations(&self) -> Result<Report, MergeError> {
        let mut declared: Option<Report> = None;
        for Placed { place, item, .. } in &self.items {
            let Item::Report(of) = item else { continue };
            let Some(report) = &mut declared else {
                let mut first = (**of).clone();
                first.experiments.iter_mut().for_each(|one| one.samples.clear());
                declared = Some(first);
                continue;
            };
            merge_machine(&mut report.machine, &of.machine)
                .map_err(|what| MergeError { place: place.clone(), what })?;
            for one in &of.experiments {
                match report.experiments.iter_mut().find(|known| known.name == one.name) {
                    Some(known) => merge_declaration(known, one),
                    None => report.experiments.push(Experiment { samples: Vec::new(), ..one.clone() }),
                }
            }
        }
        let place = self.items.last().map_or("no file".to_owned(), |last| last.place.clone());
        let what = "no report came before this line, so the question is unknown: write what `steerage bench ... --json` printed";
        declared.ok_or(MergeError { place, what: what.to_owned() })
    }
}

/// The number of bytes of white space before the next value.
fn leading_whitespace(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

fn not_json(cause: &serde_json::Error) -> String {
    format!("this is no JSON ({cause}); write reports and lines of samples, see `steerage help bench-report`")
}

fn item(value: Value) -> Result<Item, String> {
    fn of<T: for<'a> Deserialize<'a>>(what: &str, value: Value) -> Result<T, String> {
        T::deserialize(value).map_err(|cause| {
            format!("this is no {what} ({}); see `steerage help bench-report`", printable(&cause.to_string()))
        })
    }
    let has = |key: &str| value.get(key).is_some();
    if has("experiments") || has("schema") {
        // A later schema may have other keys, so its number is checked first.
        match value.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema != u64::from(SCHEMA) => Err(format!(
                "a report of schema {schema}, and this program knows {SCHEMA}: use the steerage that made it"
            )),
            _ => of("report", value)
                .and_then(|report| checked_report(report).map(|report| Item::Report(Box::new(report)))),
        }
    } else if has("skipped") {
        of("line of what was skipped", value).map(Item::Skipped)
    } else if has("beside") {
        of("line of what was measured beside", value).map(Item::Beside)
    } else {
        let against = match value.get("against") {
            Some(names) => of("sample: `against` is a list of series", names.clone())?,
            None => Vec::new(),
        };
        let sample: Sample = of("sample", value)?;
        check_sample(&sample)?;
        Ok(Item::Sample(Box::new(sample), against))
    }
}

fn checked_report(report: Report) -> Result<Report, String> {
    report.experiments.iter().flat_map(|one| &one.samples).try_for_each(check_sample)?;
    Ok(report)
}

fn check_sample(sample: &Sample) -> Result<(), String> {
    let of = || format!("a sample of series `{}`", truncated(&printable(&sample.series), 40));
    if sample.round > ROUND_MAX {
        return Err(format!("{} is of round {}: rounds count from 0, to {ROUND_MAX} at most", of(), sample.round));
    }
    if !sample.latencies.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(format!("{} has latencies that do not rise", of()));
    }
    Ok(())
}

fn find_experiment<'a>(report: &'a mut Report, name: &str) -> Result<&'a mut Experiment, String> {
    let known: Vec<String> = report.experiments.iter().map(|one| one.name.clone()).collect();
    report.experiments.iter_mut().find(|one| one.name == name).ok_or_else(|| {
        let name = truncated(&printable(name), 40);
        format!(
            "no report has an experiment `{name}`, only {}: give what a bench that has it printed by --json, too",
            known.join(", ")
        )
    })
}

/// Adds the run of another report, which must come from the same machine.
fn merge_machine(first: &mut Machine, other: &Machine) -> Result<(), String> {
    let differs = [
        ("CPU", first.cpu != other.cpu),
        ("number of CPUs", first.cpus != other.cpus),
        ("kernel", first.kernel != other.kernel),
        ("version of steerage", first.version != other.version),
        ("hypervisor", first.virtual_machine != other.virtual_machine),
    ];
    if let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) {
        return Err(format!("this was measured with another {what} than the first: make a report of each"));
    }
    let mut commands: Vec<String> = first.command.lines().map(str::to_owned).collect();
    add_all(&mut commands, other.command.lines().map(str::to_owned).collect());
    first.command = commands.join("\n");
    add_all(&mut first.beside, other.beside.clone());
    // RFC 3339 in UTC sorts as text.
    if other.started < first.started {
        first.started.clone_from(&other.started);
    }
    first.seconds += other.seconds;
    Ok(())
}

/// Adds another report's declaration of the same experiment. The other run may have had other
/// options.
fn merge_declaration(known: &mut Experiment, other: &Experiment) {
    add_all(&mut known.metrics, other.metrics.clone());
    for pair in &other.compared {
        let same = |one: &Pair| (&one.of, &one.over, &one.metric) == (&pair.of, &pair.over, &pair.metric);
        if !known.compared.iter().any(same) {
            known.compared.push(pair.clone());
        }
    }
    add_all(&mut known.skipped, other.skipped.clone());
    for chart in &other.charts {
        let same = |one: &&mut crate::report::Chart| {
            (&one.title, one.kind, &one.metric) == (&chart.title, chart.kind, &chart.metric)
        };
        match known.charts.iter_mut().find(same) {
            // A chart of all series remains a chart of all series.
            Some(one) if one.series.is_empty() || chart.series.is_empty() => one.series.clear(),
            Some(one) => add_all(&mut one.series, chart.series.clone()),
            None => known.charts.push(chart.clone()),
        }
    }
}

fn add_all<T: PartialEq>(to: &mut Vec<T>, those: Vec<T>) {
    for one in those {
        if !to.contains(&one) {
            to.push(one);
        }
    }
}

/// Adds a peer's series to the charts and comparisons of its experiment, as far as the series has their metrics.
fn add_peer_series(into: &mut Experiment, sample: &Sample, against: &[String]) {
    for name in sample.values.keys().filter(|name| !into.metrics.iter().any(|metric| metric.name == **name)) {
        let line = format!("`{}` of {}: the experiment has no such metric", printable(name), printable(&sample.series));
        add_all(&mut into.skipped, vec![line]);
    }
    if into.samples.iter().any(|one| one.series == sample.series) {
        return;
    }
    let drawn = into.charts.iter().any(|chart| chart.series.contains(&sample.series));
    for chart in into.charts.iter_mut().filter(|chart| !drawn && !chart.series.is_empty()) {
        let has = match chart.kind {
            ChartKind::Bars | ChartKind::Lines => sample.values.contains_key(&chart.metric),
            ChartKind::Distribution => !sample.latencies.is_empty(),
            // This chart draws comparisons, which are added below.
            ChartKind::Ratio => false,
        };
        if has {
            chart.series.push(sample.series.clone());
        }
    }
    if into.compared.iter().any(|pair| pair.of == sample.series || pair.over == sample.series) {
        return;
    }
    let about: Vec<String> = into.compared.first().map(|pair| pair.of.clone()).into_iter().collect();
    for of in if against.is_empty() { &about } else { against } {
        // Use the metric by which `of` is already compared, or else the first metric.
        let pair = into.compared.iter().find(|pair| pair.of == *of).map(|pair| &pair.metric);
        let Some(metric) = pair.or(into.metrics.first().map(|metric| &metric.name)).cloned() else { continue };
        add_all(
            &mut into.compared,
            vec![Pair { of: of.clone(), over: sample.series.clone(), metric, published: Vec::new() }],
        );
    }
}
