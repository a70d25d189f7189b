//! Adds up flow records, for the option `--by` and for inputs that are files of flow records.

use std::fs::File;

use serde_json::json;
use steerage_meter::{By, FlowFormat, Group, ReadFlowsError, Summary};
use steerage_text::{Column, bit_rate, bits_a_second, counted, grouped, percent, printable, recorded};

use crate::args::MeterArgs;
use crate::error::{EndingError, Error};
use crate::report::flows::flow_columns;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::{stdout, terminal};

/// Returns the flow files if all devices on the command line are files of flow records.
pub(super) fn flow_files(devices: &[String]) -> Option<Vec<(&str, FlowFormat)>> {
    devices.iter().map(|device| Some((device.as_str(), FlowFormat::of_name(device)?))).collect()
}

pub(super) fn read_again(args: &MeterArgs, files: &[(&str, FlowFormat)]) -> Result<(), Error> {
    let failed =
        |file: &str, error: ReadFlowsError| -> Error { EndingError::FlowFile { file: printable(file), error }.into() };
    let mut opened = Vec::new();
    for (file, format) in files {
        opened.push((*file, *format, File::open(file).map_err(|error| failed(file, error.into()))?));
    }
    sandbox::enter(Needs::of(SandboxProfile::Help), &args.run.sandbox)?;
    let by = args.flows.by.unwrap_or(By::Flow);
    let mut summary = Summary::new(by);
    for (file, format, opened) in opened {
        summary.read(format, opened).map_err(|error| failed(file, error))?;
    }
    let names: Vec<&str> = files.iter().map(|(file, _)| *file).collect();
    let text = match args.run.report.json {
        true => json(&names, summary, args.flows.top) + "\n",
        false => page(&names, summary, args.flows.top),
    };
    stdout::print(text)
}

fn page(files: &[&str], summary: Summary, top: usize) -> String {
    let mut page = printable(&files.join(" "));
    if let Some(all) = summary.all() {
        let (packets, bytes) = (counted(all.packets(), "packet"), counted(all.bytes(), "byte"));
        let (records, time) = (counted(all.records, "record"), all.times.1.since(all.times.0));
        page += &format!("  {records}  {packets}  {bytes}  {} ({})", recorded(time), bit_rate(all.bytes(), time));
    } else {
        page += "  no flows";
    }
    page += "\n\n";
    for line in table(summary, top) {
        page += &line;
        page.push('\n');
    }
    page
}

/// Returns a line of headings, and one line for each group of flows.
pub(super) fn table(summary: Summary, top: usize) -> Vec<String> {
    let Some(all) = summary.all().cloned() else { return Vec::new() };
    let (groups, by) = (summary.groups(), summary.by());
    let largest = summary.largest(top);
    let mut lines = steerage_text::table(
        if by == By::Flow { of_flows(&largest, &all) } else { of_groups(&largest, &all, by) },
        terminal::width(),
    );
    if groups > largest.len() && !largest.is_empty() {
        lines.push(format!("... and {} more (-t)", grouped((groups - largest.len()) as u64)));
    }
    lines
}

fn of_flows(flows: &[Group], all: &Group) -> Vec<Column> {
    let start = |flow: &Group| format!("{:.3}", flow.times.0.since(all.times.0).as_secs_f64());
    let times = [
        Column::numbers("start", flows.iter().map(start).collect()),
        Column::numbers("duration", flows.iter().map(|flow| format!("{:.3}", flow.seconds())).collect()),
    ];
    flow_columns(flows, times)
}

fn of_groups(groups: &[Group], all: &Group, by: By) -> Vec<Column> {
    let seconds = all.seconds();
    let rate =
        |group: &Group| if seconds > 0.0 { bits_a_second(group.bytes() as f64 * 8.0 / seconds) } else { String::new() };
    let share = |group: &Group| format!("{:.1} %", percent(group.bytes() as f64, all.bytes() as f64));
    let heading = match by {
        By::Host => "host",
        By::Port => "port",
        By::Net => "network",
        By::Name | By::Flow => "name",
    };
    vec![
        Column::words(heading, groups.iter().map(|group| printable(&group.name)).collect()),
        Column::counts("records", "records", groups.iter().map(|group| group.records)),
        Column::counts("packets", "pkts", groups.iter().map(Group::packets)),
        Column::counts("sent", "sent", groups.iter().map(|group| group.forth.1)),
        Column::counts("received", "received", groups.iter().map(|group| group.back.1)),
        Column::numbers("rate", groups.iter().map(rate).collect()),
        Column::numbers("of bytes", groups.iter().map(share).collect()),
    ]
}

fn json(files: &[&str], summary: Summary, top: usize) -> String {
    let all = summary.all().cloned();
    let (groups, by) = (summary.groups(), summary.by());
    let group = |group: &Group| {
        let [source, destination] = group.ends.clone().map_or([None, None], |ends| ends.map(Some));
        json!({
            "name": group.name, "source": source, "destination": destination, "records": group.records,
            "packets": group.forth.0, "bytes": group.forth.1, "packets_back": group.back.0, "bytes_back": group.back.1,
            "first_nanos": group.times.0.as_nanos(), "last_nanos": group.times.1.as_nanos(),
        })
    };
    let largest: Vec<_> = summary.largest(top).iter().map(group).collect();
    json!({
        "schema": 1, "type": "flows", "files": files, "by": by.name(), "count": groups, "groups": largest,
        "records": all.as_ref().map_or(0, |all| all.records), "packets": all.as_ref().map_or(0, Group::packets),
        "bytes": all.as_ref().map_or(0, Group::bytes), "seconds": all.as_ref().map_or(0.0, Group::seconds),
    })
    .to_string()
}
