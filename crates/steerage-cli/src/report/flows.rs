//! The flows in a report: for people, and as a part of the JSON report.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use steerage::WallTime;
use steerage_apps::meter::{Collector, FlowCounts, FlowOutput, FlowRecord, Metered, OutputCounts, Traffic};

use super::Flows;
use crate::units::{counted, grouped, time};

/// The width of the columns.
const KEY_WIDTH: usize = 57;
const TIME_WIDTH: usize = 10;

/// The first line names this many kinds of flows, and sums up the others.
const KINDS_SHOWN: usize = 4;

/// The numbers of flows.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct FlowTotals {
    active: u64,
    total: u64,
    evicted: u64,
    lost: u64,
}

impl FlowTotals {
    pub(super) fn of(flows: &Flows) -> Self {
        match flows {
            Flows::SoFar { counts, .. } => Self::so_far(counts),
            // The end of the run ended all flows.
            Flows::Ended { metered: Metered { total, evicted, .. }, outputs, .. } => {
                Self { active: 0, total: *total, evicted: *evicted, lost: lost(outputs) }
            }
        }
    }

    pub(super) fn so_far(counts: &FlowCounts) -> Self {
        Self { active: counts.active, total: counts.total, evicted: counts.evicted, lost: counts.lost }
    }

    /// `12 flows active, 345 so far, 0 evicted`.
    pub(super) fn text(&self) -> String {
        let (active, total, evicted) = (counted(self.active, "flow"), grouped(self.total), grouped(self.evicted));
        format!("{active} active, {total} so far, {evicted} evicted{}", not_written(self.lost))
    }
}

/// The flows in the JSON report.
#[derive(Serialize)]
pub(super) struct FlowsJson<'a> {
    #[serde(flatten)]
    counts: FlowTotals,
    top: Option<&'a [FlowRecord]>,
    outputs: Vec<OutputJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<u32>,
}

/// An output of flows in the JSON report.
#[derive(Serialize)]
struct OutputJson<'a> {
    to: &'a str,
    #[serde(flatten)]
    counts: OutputCounts,
}

impl<'a> OutputJson<'a> {
    fn of(output: &'a FlowOutput) -> Self {
        Self { to: output.name(), counts: output.counts() }
    }
}

impl<'a> FlowsJson<'a> {
    pub(super) fn of(flows: &'a Flows) -> Self {
        let top = match flows {
            // The largest active flows. They are not collected if the source can wait.
            Flows::SoFar { largest, .. } => Some(largest.as_slice()).filter(|largest| !largest.is_empty()),
            Flows::Ended { metered, .. } => Some(metered.top.as_slice()),
        };
        let outputs = flows.outputs().iter().map(OutputJson::of).collect();
        Self { counts: FlowTotals::of(flows), top, outputs, sample: flows.sample() }
    }
}

/// The text of the flows: one line of counts, and, if the run has ended, two lines for each of the largest flows.
pub(super) fn page(flows: &Flows) -> String {
    let metered = match flows {
        Flows::SoFar { counts, .. } => return FlowTotals::so_far(counts).text() + "\n",
        Flows::Ended { metered, .. } => metered,
    };
    let mut page = head(metered, lost(flows.outputs()), flows.sample());
    if !metered.top.is_empty() {
        page = format!("{page:<width$}{:>TIME_WIDTH$} {:>TIME_WIDTH$}", "start", "length", width = KEY_WIDTH + 1);
    }
    page.push('\n');
    for flow in &metered.top {
        page.push_str(&lines(flow, metered.earliest.unwrap_or(flow.first())));
    }
    page
}

/// What went to each collector.
pub(super) fn exported(flows: &Flows) -> Vec<String> {
    let collectors = flows.outputs().iter().filter(|output| Collector::is_address(output.name()));
    let line = |output: &FlowOutput| {
        let counts = output.counts();
        let (records, messages) = (counted(counts.written, "flow"), counted(counts.messages, "message"));
        format!("{records} in {messages} to {}, {} lost", output.name(), grouped(counts.lost))
    };
    collectors.map(line).collect()
}

/// The records that were lost, of all outputs together.
fn lost(outputs: &[FlowOutput]) -> u64 {
    outputs.iter().map(|output| output.counts().lost).sum()
}

fn head(metered: &Metered, lost: u64, sample: Option<u32>) -> String {
    let mut head = counted(metered.total, "flow");
    sample.iter().for_each(|sample| {
        let _ = write!(head, " of a sample of 1:{sample}");
    });
    let (shown, others) = metered.kinds.split_at(metered.kinds.len().min(KINDS_SHOWN));
    let mut kinds: Vec<String> = shown.iter().map(|(kind, flows)| format!("{kind} {}", grouped(*flows))).collect();
    if !others.is_empty() {
        kinds.push(format!("others {}", grouped(others.iter().map(|(_, flows)| flows).sum())));
    }
    if !kinds.is_empty() {
        let _ = write!(head, " ({})", kinds.join(", "));
    }
    let _ = write!(head, ", {} evicted{}", grouped(metered.evicted), not_written(lost));
    head
}

fn not_written(lost: u64) -> String {
    if lost > 0 { format!(", {} not written in time", grouped(lost)) } else { String::new() }
}

fn lines(flow: &FlowRecord, earliest: WallTime) -> String {
    let start = format!("+{}", span(flow.first().since(earliest)));
    let length = span(flow.last().since(flow.first()));
    let mut text = format!(" {}", key(flow));
    if text.len() > KEY_WIDTH {
        text.push_str("\n ");
        text.push_str(&" ".repeat(KEY_WIDTH));
    } else {
        text = format!("{text:<width$}", width = KEY_WIDTH + 1);
    }
    let _ = writeln!(text, "{start:>TIME_WIDTH$} {length:>TIME_WIDTH$}");
    let _ = write!(text, "     {}", traffic(flow.forth()));
    if flow.back().packets > 0 {
        let _ = write!(text, "; back {}", traffic(flow.back()));
    }
    flow.vlans().iter().flatten().for_each(|id| {
        let _ = write!(text, "; VLAN {id}");
    });
    if let Some(tunnel) = flow.tunnel() {
        let _ = write!(text, "; in {}", tunnel.kind);
        tunnel.id.iter().for_each(|id| {
            let _ = write!(text, " {id}");
        });
    }
    text.push('\n');
    text
}

fn key(flow: &FlowRecord) -> String {
    // For steering, the keys of these kinds are bytes, which mean nothing to people.
    match &*flow.kind() {
        "other" => "other frames, of which nothing is read".to_owned(),
        "mpls" => flow.key().to_string().replacen("bytes", "mpls", 1),
        _ => flow.key().to_string(),
    }
}

fn traffic(traffic: Traffic) -> String {
    format!("{} {}", counted(traffic.packets, "packet"), counted(traffic.bytes, "byte"))
}

/// `65.7 s`. Up to 1,000 seconds it stays in seconds, so that times of flows can be compared.
fn span(span: Duration) -> String {
    match span.as_secs() {
        60..1000 => format!("{:.1} s", span.as_secs_f64()),
        _ if span.is_zero() => "0".to_owned(),
        _ => time(span),
    }
}
