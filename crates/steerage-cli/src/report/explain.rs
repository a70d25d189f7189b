//! What `steerage explain` prints, for people and as JSON.

mod advice;
mod json;
mod shares;
mod suggest;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use steerage::flow::{self, HeaderKind, Layers};
use steerage::{BUCKETS, FlowHash, FlowKey, FlowParts, bucket_of, even_share};
use steerage_apps::{Specimen, Surveyed, SurveyedFlow, Weight};

use super::units::{grouped, percent, printable};
use crate::function::Function;
use shares::Shares;
use suggest::Suggestion;
pub(crate) use suggest::{Circumstances, Interface, Machine, Rate, RateFrom};

/// The name of a hash that is not ours.
const DEVICE: &str = "device";

/// Numbers of CPUs for which the spread is shown.
const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// All of it.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) what: What,
    /// The command whose steering is explained.
    pub(crate) function: Function,
    /// The hash's name.
    pub(crate) hash: &'static str,
    /// Whether another run would have another key.
    pub(crate) key_by_chance: bool,
    /// How many of the largest flows to show.
    pub(crate) top: usize,
}

impl Explanation {
    fn is_by_device(&self) -> bool {
        self.hash == DEVICE
    }
}

#[derive(Debug)]
pub(crate) enum What {
    Flow(OfFlow),
    Traffic(Box<OfTraffic>),
}

/// A flow that was written out.
#[derive(Debug)]
pub(crate) struct OfFlow {
    pub(crate) flow: FlowKey,
    /// The key that is hashed for it.
    pub(crate) key: FlowKey,
    pub(crate) hash: FlowHash,
}

/// A device's traffic.
#[derive(Debug)]
pub(crate) struct OfTraffic {
    pub(crate) device: String,
    pub(crate) survey: Surveyed,
    /// The number of the packet that was looked at closely.
    pub(crate) packet: u64,
    /// Which headers decided.
    pub(crate) layers: Layers,
    /// What the advice is based on, besides the traffic.
    pub(crate) circumstances: Circumstances,
}

impl OfTraffic {
    /// The flows, most packets first.
    pub(crate) fn largest(&self) -> Vec<SurveyedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_cached_key(|flow| {
            (std::cmp::Reverse(flow.weight.packets), flow.flow.to_string(), flow.key.to_string())
        });
        flows
    }

    /// Numbers of CPUs for which the spread is shown: the usual ones, and the machine's own.
    fn cpus(&self) -> Vec<usize> {
        let mut cpus = [&CPUS[..], &[self.circumstances.machine.order.len()]].concat();
        cpus.retain(|cpus| *cpus > 1);
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Writes it to standard output, whole or with an error.
pub(crate) fn print(explanation: &Explanation, json: bool) -> io::Result<()> {
    let text = if json { json::line(explanation)? } else { page(explanation) };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn page(explanation: &Explanation) -> String {
    let mut page = String::new();
    match &explanation.what {
        What::Flow(flow) => {
            let _ = writeln!(page, "flow       {}", flow.flow);
            goes_to(&mut page, explanation, &flow.key, flow.hash);
        }
        What::Traffic(traffic) => {
            let Surveyed { all, flows, .. } = &traffic.survey;
            let _ = writeln!(
                page,
                "{}  {} packets  {} bytes  {} flows",
                printable(&traffic.device),
                grouped(all.packets),
                grouped(all.bytes),
                grouped(flows.len() as u64)
            );
            let _ = writeln!(
                page,
                "steered as by steerage {}: {}",
                explanation.function.name(),
                kept(explanation.function)
            );
            if let Some(specimen) = &traffic.survey.specimen {
                one_packet(&mut page, explanation, traffic, specimen);
            }
            spread(&mut page, traffic);
            largest(&mut page, traffic, explanation.top);
            for note in advice::notes(traffic) {
                let _ = writeln!(page, "\n{note}");
            }
            if let Some(suggestion) = Suggestion::of(traffic) {
                page += &suggestion.page();
            }
        }
    }
    page
}

/// What the command keeps on one CPU.
fn kept(function: Function) -> &'static str {
    if function.keeps_both_directions() {
        "both directions of a flow stay on one CPU"
    } else {
        "each direction of a flow stays on one CPU and counts as a flow of its own"
    }
}

fn one_packet(page: &mut String, explanation: &Explanation, traffic: &OfTraffic, specimen: &Specimen) {
    let number = traffic.packet;
    let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
    let headers: Vec<String> = found.headers().map(|header| format!("{} {}", header.kind, header.offset)).collect();
    let _ = writeln!(
        page,
        "\npacket {number}   {} bytes; its headers, and the byte at which each begins:",
        specimen.wire_len
    );
    let _ = writeln!(page, "           {}; {}", headers.join(", "), found.end);
    let _ = writeln!(page, "flow       {}", specimen.flow);
    goes_to(page, explanation, &specimen.key, specimen.hash);
}

fn goes_to(page: &mut String, explanation: &Explanation, key: &FlowKey, hash: FlowHash) {
    let about = match key.parts() {
        // Datagrams and labels: a key of bytes belongs to packets of one direction.
        FlowParts::Bytes { .. } => "",
        _ if explanation.function.keeps_both_directions() => " (the same for both directions)",
        _ => " (the other direction has another key)",
    };
    let _ = match explanation.is_by_device() {
        true => writeln!(page, "key        not known: the device computed the hash"),
        false => writeln!(page, "key        {key}{about}"),
    };
    let random = if explanation.key_by_chance { " with a random key (--hash-key sets it)" } else { "" };
    let bucket = bucket_of(hash);
    let _ = writeln!(page, "hash       {:#010x} by {}{random}", hash.0, explanation.hash);
    let _ = writeln!(page, "bucket     {bucket} of {BUCKETS}");
    let cpus: Vec<String> = CPUS.iter().map(|cpus| format!("{} of {cpus}", even_share(bucket, *cpus))).collect();
    let _ = writeln!(page, "CPU        {}, counted from 0 within the mask", cpus.join(", "));
}

fn spread(page: &mut String, traffic: &OfTraffic) {
    let _ = writeln!(page, "\nCPUs       the busiest has of packets  of bytes      speed-up at most");
    for cpus in traffic.cpus() {
        let shares = Shares::even(&traffic.survey.buckets, cpus);
        let (packets, bytes) = (100.0 * shares.busiest(), 100.0 * shares.busiest_bytes());
        let _ = writeln!(page, "{cpus:>4} {packets:>30.1} % {bytes:>7.1} % {:>15.1} times", shares.speed_up());
    }
}

fn largest(page: &mut String, traffic: &OfTraffic, top: usize) {
    let _ = writeln!(page, "\nlargest flows");
    for flow in traffic.largest().iter().take(top) {
        let of_all = percent(flow.weight.packets as f64, traffic.survey.all.packets as f64);
        let about = match (flow.is_two_way, is_datagram(flow)) {
            (true, _) => "both directions",
            (_, true) => "a datagram that steering knows only by its fragments",
            _ => "one direction",
        };
        let (packets, bytes) = (grouped(flow.weight.packets), grouped(flow.weight.bytes));
        let _ = writeln!(page, "{of_all:>5.1} %    {}, {packets} packets, {bytes} bytes, {about}", flow.flow);
    }
}

/// Whether it is a datagram with a key of its own, because its first fragment did not come first.
fn is_datagram(flow: &SurveyedFlow) -> bool {
    let is_ip = matches!(flow.flow.parts(), FlowParts::V4 { .. } | FlowParts::V6 { .. });
    is_ip && matches!(flow.key.parts(), FlowParts::Bytes { .. })
}

/// Kinds of tunnels that were seen, most packets first.
fn tunnels(survey: &Surveyed) -> Vec<(HeaderKind, Weight)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}
