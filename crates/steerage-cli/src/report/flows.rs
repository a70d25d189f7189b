use std::collections::HashMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use steerage_meter::{Collector, FlowCounts, FlowOutput, FlowRecord, Group, Metered, OutputCounts};
use steerage_text::{Column, counted, grouped, table};

use super::{FlowStage, Flows};
use crate::terminal;

/// The number of protocols with their own count of flows. The flows of the remaining protocols are
/// added up.
const KINDS_SHOWN: usize = 4;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FlowTotals {
    pub(crate) active: u64,
    pub(crate) total: u64,
    pub(crate) evicted: u64,
    pub(crate) lost: u64,
}

impl FlowTotals {
    pub(super) fn of(flows: &Flows) -> Self {
        let lost = lost(&flows.outputs);
        match &flows.stage {
            FlowStage::SoFar { counts, .. } => Self { lost, ..Self::so_far(counts) },
            // All flows ended when the run ended.
            FlowStage::Ended { metered, .. } => {
                Self { active: 0, total: metered.total, evicted: metered.evicted, lost }
            }
        }
    }

    pub(super) fn so_far(counts: &FlowCounts) -> Self {
        Self { active: counts.active, total: counts.total, evicted: counts.evicted, lost: counts.lost }
    }

    /// Returns a text such as `12 flows active, 345 so far, 0 evicted`.
    pub(super) fn text(&self) -> String {
        let (active, total, evicted) = (counted(self.active, "flow"), grouped(self.total), grouped(self.evicted));
        format!("{active} active, {total} so far, {evicted} evicted{}", not_written(self.lost))
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FlowCounters {
    #[serde(flatten)]
    pub(crate) counts: FlowTotals,
    outputs: Vec<FlowOutputReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<u32>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FlowOutputReport {
    to: String,
    #[serde(flatten)]
    counts: OutputCounts,
    /// The number of records that are neither written nor lost yet. If this number is not 0 at the
    /// end of a run, records were forgotten.
    waiting: u64,
}

impl FlowOutputReport {
    /// During a run, call `of_all` before the counts of the meters are read, so that no output has
    /// written a record that the meters have not counted.
    pub(crate) fn of_all(outputs: &[FlowOutput]) -> Vec<Self> {
        let of = |output: &FlowOutput| Self { to: output.name().to_owned(), counts: output.counts(), waiting: 0 };
        outputs.iter().map(of).collect()
    }
}

impl FlowCounters {
    pub(super) fn of(flows: &Flows) -> Self {
        let counts = FlowTotals::of(flows);
        let output = |output: &FlowOutputReport| {
            let OutputCounts { written, lost, .. } = output.counts;
            let waiting = (counts.total - counts.active).saturating_sub(written + lost);
            FlowOutputReport { waiting, ..output.clone() }
        };
        Self { counts, outputs: flows.outputs.iter().map(output).collect(), sample: flows.sample }
    }
}

#[cfg(test)]
impl FlowCounters {
    /// Returns a report without empty lists, for a test.
    pub(super) fn filled() -> Self {
        let output = FlowOutputReport { to: "flows.csv".to_owned(), ..FlowOutputReport::default() };
        Self { outputs: vec![output], sample: Some(10), ..Self::default() }
    }
}

/// Returns a line of counts and, if the run has ended, a table of the largest flows.
pub(super) fn page(flows: &Flows) -> String {
    let FlowStage::Ended { metered, table } = &flows.stage else { return FlowTotals::of(flows).text() + "\n" };
    let mut page = head(metered, lost(&flows.outputs), flows.sample);
    page.push('\n');
    for line in table {
        page.push_str(line);
        page.push('\n');
    }
    page
}

/// Adds up the records of each flow, and returns the `most` flows with the most bytes. The text of a
/// flow names the VLANs and the tunnel in which the flow is.
fn joined(records: &[FlowRecord], most: usize) -> Vec<(Group, String)> {
    let mut places = HashMap::new();
    let mut flows: Vec<(Group, String)> = Vec::new();
    for record in records {
        let (name, inside) = (record.kind().into_owned(), inside(record));
        let ends = [record.source(), record.destination()];
        let mut sorted_ends = ends.clone();
        sorted_ends.sort();
        let key = (name.clone(), sorted_ends, inside.clone());
        let [forth, back] = [record.forth(), record.back()].map(|traffic| (traffic.packets, traffic.bytes));
        let times = (record.first(), record.last());
        let place = *places.entry(key).or_insert(flows.len());
        let Some((flow, _)) = flows.get_mut(place) else {
            flows.push((Group { name, ends: Some(ends), records: 1, forth, back, times }, inside));
            continue;
        };
        let is_turned = flow.ends.as_ref() != Some(&ends);
        let [forth, back] = if is_turned { [back, forth] } else { [forth, back] };
        flow.forth = (flow.forth.0 + forth.0, flow.forth.1 + forth.1);
        flow.back = (flow.back.0 + back.0, flow.back.1 + back.1);
        flow.times = (flow.times.0.min(times.0), flow.times.1.max(times.1));
    }
    // The sort is stable: flows with the same number of bytes keep the order of their records.
    flows.sort_by_key(|(flow, _)| std::cmp::Reverse(flow.bytes()));
    flows.truncate(most);
    flows
}

pub(crate) fn flow_table(metered: &Metered, most: usize) -> Vec<String> {
    let (flows, inside): (Vec<Group>, Vec<String>) = joined(&metered.top, most).into_iter().unzip();
    let Some(first) = flows.first() else { return Vec::new() };
    let earliest = metered.earliest.unwrap_or(first.times.0);
    let since_earliest = |flow: &Group| flow.times.0.since(earliest).as_secs_f64();
    let start = |digits: usize| flows.iter().map(|flow| format!("{:.digits$}", since_earliest(flow))).collect();
    let length = |digits: usize| flows.iter().map(|flow| format!("{:.digits$}", flow.seconds())).collect();
    let times = [
        Column::numbers("start", start(3)).or_short("start", start(1)),
        Column::numbers("duration", length(3)).or_short("time", length(1)),
    ];
    let mut columns = flow_columns(&flows, times);
    if inside.iter().any(|inside| !inside.is_empty()) {
        columns.push(Column::words("in", inside));
    }
    table(columns, terminal::width())
}

/// Returns the columns of a table of flows, after the columns with their times. The numbers have no
/// separators and no units, so that `sort` and `awk` can read them.
pub(crate) fn flow_columns(flows: &[Group], times: [Column; 2]) -> Vec<Column> {
    let end = |at: usize| {
        flows.iter().map(|flow| flow.ends.as_ref().map_or(String::new(), |ends| ends[at].clone())).collect()
    };
    let others = [
        Column::words("proto", flows.iter().map(|flow| flow.name.clone()).collect()),
        Column::ends("source", end(0)),
        Column::ends("destination", end(1)),
        Column::counts("packets", "pkts", flows.iter().map(|flow| flow.forth.0)),
        Column::counts("bytes", "bytes", flows.iter().map(|flow| flow.forth.1)),
        Column::counts("replies", "replies", flows.iter().map(|flow| flow.back.0)),
        Column::counts("reply-bytes", "bytes", flows.iter().map(|flow| flow.back.1)),
    ];
    times.into_iter().chain(others).collect()
}

pub(super) fn exported(flows: &Flows) -> Vec<String> {
    let collectors = flows.outputs.iter().filter(|output| Collector::is_address(&output.to));
    let line = |output: &FlowOutputReport| {
        let counts = &output.counts;
        let (records, messages) = (counted(counts.written, "flow"), counted(counts.messages, "message"));
        format!("{records} in {messages} to {}, {} not sent", output.to, grouped(counts.lost))
    };
    collectors.map(line).collect()
}

fn lost(outputs: &[FlowOutputReport]) -> u64 {
    outputs.iter().map(|output| output.counts.lost).sum()
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
    if lost > 0 { format!(", {} not written", grouped(lost)) } else { String::new() }
}

/// Returns the VLANs and the tunnel of a flow, such as `vlan=10,vxlan=42`.
fn inside(flow: &FlowRecord) -> String {
    let vlans = flow.vlans().into_iter().flatten().map(|id| format!("vlan={id}"));
    let tunnel = flow.tunnel().map(|tunnel| match tunnel.id {
        Some(id) => format!("{}={id}", tunnel.kind),
        None => tunnel.kind.to_string(),
    });
    vlans.chain(tunnel).collect::<Vec<_>>().join(",")
}
