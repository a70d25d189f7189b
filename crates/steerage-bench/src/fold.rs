//! Several reports, and samples that other programs print, made into one report.
//!
//! What is read is a stream of JSON values: [`Report`]s, as `steerage bench --json` prints them, and lines of a peer
//! ([`Item`]). A report says which experiments there are; samples only add to them.
//!
//! **Rounds.** Ratios are taken within a round, so what was measured in turn has to have the same round, and nothing else
//! may. What is written one after the other into *one file* was measured in turn. Within it, each program may count rounds
//! by itself, from 0 on, or may always say 0, as one that is run once a round: where a case (series, `x` and round) comes
//! again, the next turn has begun, and everything from there on gets later rounds. So `A0 B0 A0 B0` becomes `A0 B0 A1 B1`,
//! and `A0 B0 A1 B1` stays as it is; a program that fails in one turn (`A0 B0 A0 A0 B0`) is back in its place in the next.
//! In such a later turn each program's first round is the turn's first, whether it counts on or begins anew. A report's samples
//! of an experiment stay together. Files are not in turn with one another: each has rounds of its own, medians are taken over
//! all of them, ratios never across. Turns are those of an experiment.
//!
//! **Series.** A series that no report has is a peer's. If no chart of its experiment names it, it joins those that name their
//! series and whose metric it has. If it is in no pair, it is compared: the series that its lines name as `against` are said in
//! terms of it, or else what the experiment is about, the first of its compared series.
//!
//! **Machines.** Figures of different machines, kernels or versions are never in one report.

#[cfg(test)]
mod tests;
mod turns;

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::figures::{cut, plain};
use crate::report::{ChartKind, Experiment, Machine, Pair, Report, SCHEMA, Sample};
use turns::Turns;

/// The highest round: of a figure that is higher, something is wrong.
pub const ROUND_MAX: usize = 1_000_000;

/// The most values in one file: a run has some hundred samples.
pub const VALUES_MAX: usize = 1_000_000;

/// One value of a stream.
#[derive(Clone, Debug)]
pub enum Item {
    /// Whatever a run of ours came to.
    Report(Box<Report>),
    /// What one run of a peer's program came to, and which series of ours are said in terms of it.
    Sample(Box<Sample>, Vec<String>),
    /// What could not be run.
    Skipped(Skipped),
    /// What was measured beside it.
    Beside(Beside),
}

/// `{"experiment":"rps","skipped":"rte_ring: there is no DPDK here"}`
#[derive(Clone, Debug, Deserialize)]
pub struct Skipped {
    /// Of which experiment.
    pub experiment: String,
    /// What, and why: one line.
    pub skipped: String,
}

/// `{"beside":"DPDK 22.11, peers/dpdk/ring"}`
#[derive(Clone, Debug, Deserialize)]
pub struct Beside {
    /// A program with its version: one line.
    pub beside: String,
}

/// What cannot be folded, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldError {
    /// Such as `peers.jsonl, line 7`.
    pub place: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for FoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for FoldError {}

/// Reports and samples on their way into one report.
#[derive(Debug, Default)]
pub struct Fold {
    items: Vec<Placed>,
    files: usize,
}

#[derive(Debug)]
struct Placed {
    place: String,
    file: usize,
    item: Item,
}

impl Fold {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a file's text in; `name` is for errors.
    ///
    /// # Errors
    /// At the first value that is none, or is neither a report nor a line that a peer may print.
    pub fn read(&mut self, name: &str, text: &str) -> Result<(), FoldError> {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        // The line is counted on from value to value.
        let (mut line, mut counted) = (1, 0);
        self.files += 1;
        for count in 1.. {
            let start = stream.byte_offset() + blanks(&text[stream.byte_offset()..]);
            line += text[counted..start].matches('\n').count();
            counted = start;
            let error = |what: String| FoldError { place: format!("{name}, line {line}"), what };
            let value = match stream.next() {
                None => break,
                Some(Ok(_)) if count > VALUES_MAX => return Err(error(format!("more than {VALUES_MAX} values"))),
                Some(Ok(value)) => value,
                Some(Err(cause)) => {
                    return Err(FoldError { place: format!("{name}, line {}", cause.line()), what: no_json(&cause) });
                }
            };
            let item = item(value).map_err(error)?;
            self.items.push(Placed { place: format!("{name}, line {line}"), file: self.files, item });
        }
        Ok(())
    }

    /// Takes a report in, as a file of its own.
    pub fn report(&mut self, report: Report) {
        self.files += 1;
        let place = format!("report {}", self.files);
        self.items.push(Placed { place, file: self.files, item: Item::Report(Box::new(report)) });
    }

    /// The one report.
    ///
    /// # Errors
    /// If there is no report among them, if they are of different machines, or if something is of an experiment that no
    /// report has.
    pub fn finish(self) -> Result<Report, FoldError> {
        let mut report = self.declared()?;
        let mut turns = Turns::default();
        for Placed { place, file, item } in self.items {
            let error = |what: String| FoldError { place: place.clone(), what };
            match item {
                Item::Report(of) => {
                    for mut one in of.experiments {
                        let into = experiment(&mut report, &one.name).map_err(error)?;
                        turns.place(&one.name, file, &mut one.samples);
                        into.samples.append(&mut one.samples);
                    }
                }
                Item::Sample(mut sample, against) => {
                    let into = experiment(&mut report, &sample.experiment).map_err(error)?;
                    join(into, &sample, &against);
                    turns.place(&into.name, file, std::slice::from_mut(&mut *sample));
                    into.samples.push(*sample);
                }
                Item::Skipped(Skipped { experiment: name, skipped }) => {
                    add_all(&mut experiment(&mut report, &name).map_err(error)?.skipped, vec![skipped]);
                }
                Item::Beside(Beside { beside }) => add_all(&mut report.machine.beside, vec![beside]),
            }
        }
        Ok(report)
    }

    /// What the reports among them say of machine and experiments, without samples.
    fn declared(&self) -> Result<Report, FoldError> {
        let mut declared: Option<Report> = None;
        for Placed { place, item, .. } in &self.items {
            let Item::Report(of) = item else { continue };
            let Some(report) = &mut declared else {
                let mut first = (**of).clone();
                first.experiments.iter_mut().for_each(|one| one.samples.clear());
                declared = Some(first);
                continue;
            };
            same_machine(&mut report.machine, &of.machine).map_err(|what| FoldError { place: place.clone(), what })?;
            for one in &of.experiments {
                match report.experiments.iter_mut().find(|known| known.name == one.name) {
                    Some(known) => also_declared(known, one),
                    None => report.experiments.push(Experiment { samples: Vec::new(), ..one.clone() }),
                }
            }
        }
        let place = self.items.last().map_or("no file".to_owned(), |last| last.place.clone());
        let what =
            "no report came until here, so nothing says what was asked: give what `steerage bench ... --json` printed";
        declared.ok_or(FoldError { place, what: what.to_owned() })
    }
}

/// Bytes of white space before the next value.
fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

fn no_json(cause: &serde_json::Error) -> String {
    format!("this is no JSON ({cause}); reports and lines of samples are read, see docs/bench-report.md")
}

fn item(value: Value) -> Result<Item, String> {
    fn of<T: for<'a> Deserialize<'a>>(what: &str, value: Value) -> Result<T, String> {
        T::deserialize(value)
            .map_err(|cause| format!("this is no {what} ({}); see docs/bench-report.md", plain(&cause.to_string())))
    }
    let has = |key: &str| value.get(key).is_some();
    if has("experiments") || has("schema") {
        // A later one may have other keys: say that first.
        match value.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema != u64::from(SCHEMA) => Err(format!(
                "a report of schema {schema}, and this program knows {SCHEMA}: use the steerage that made it"
            )),
            _ => of("report", value).and_then(|report| checked(report).map(|report| Item::Report(Box::new(report)))),
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
        check(&sample)?;
        Ok(Item::Sample(Box::new(sample), against))
    }
}

fn checked(report: Report) -> Result<Report, String> {
    report.experiments.iter().flat_map(|one| &one.samples).try_for_each(check)?;
    Ok(report)
}

fn check(sample: &Sample) -> Result<(), String> {
    let of = || format!("a sample of series `{}`", cut(&plain(&sample.series), 40));
    if sample.round > ROUND_MAX {
        return Err(format!("{} is of round {}: rounds count from 0, to {ROUND_MAX} at most", of(), sample.round));
    }
    if !sample.latencies.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(format!("{} has latencies that do not rise", of()));
    }
    Ok(())
}

fn experiment<'a>(report: &'a mut Report, name: &str) -> Result<&'a mut Experiment, String> {
    let known: Vec<String> = report.experiments.iter().map(|one| one.name.clone()).collect();
    report.experiments.iter_mut().find(|one| one.name == name).ok_or_else(|| {
        let name = cut(&plain(name), 40);
        format!(
            "no report has an experiment `{name}`, only {}: give what a bench that has it printed by --json, too",
            known.join(", ")
        )
    })
}

/// Another run on the same machine.
fn same_machine(first: &mut Machine, other: &Machine) -> Result<(), String> {
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

/// The same experiment once more, perhaps with other options.
fn also_declared(known: &mut Experiment, other: &Experiment) {
    add_all(&mut known.metrics, other.metrics.clone());
    add_all(&mut known.compared, other.compared.clone());
    add_all(&mut known.skipped, other.skipped.clone());
    for chart in &other.charts {
        let same = |one: &&mut crate::report::Chart| {
            (&one.title, one.kind, &one.metric) == (&chart.title, chart.kind, &chart.metric)
        };
        match known.charts.iter_mut().find(same) {
            // One that is of all series stays so.
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

/// A peer's sample: its series is drawn and compared, as far as it has the metrics.
fn join(into: &mut Experiment, sample: &Sample, against: &[String]) {
    for name in sample.values.keys().filter(|name| !into.metrics.iter().any(|metric| metric.name == **name)) {
        let line = format!("`{}` of {}: the experiment has no such metric", plain(name), plain(&sample.series));
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
            // Of pairs: see below.
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
        // By what that one is compared by, or by what the experiment is about.
        let pair = into.compared.iter().find(|pair| pair.of == *of).map(|pair| &pair.metric);
        let Some(metric) = pair.or(into.metrics.first().map(|metric| &metric.name)).cloned() else { continue };
        add_all(&mut into.compared, vec![Pair { of: of.clone(), over: sample.series.clone(), metric }]);
    }
}
