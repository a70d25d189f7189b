//! The output of `steerage explain`, as text and as JSON.

mod advice;
mod json;
mod kernel;
mod shares;
mod suggest;

use std::borrow::Cow;
use std::fmt::Write as _;

use steerage::flow::{self, HeaderKind, Layers};
use steerage::{
    FlowKey, Snapshot,
    flow::{FlowHash, FlowParts, bucket_of, even_share},
    limits::BUCKETS,
};
use steerage_apps::{Analysis, AnalyzedFlow, PacketDetail, Volume};
use steerage_text::{counted, percent, printable, wrapped};

use crate::args::SteeringCommand;
use crate::error::{EndingError, Error};
use crate::stdout;
use crate::terminal::width;
use shares::Shares;
use suggest::Suggestion;
pub(crate) use suggest::{AdviceBasis, CandidateCpus, InterfaceQueues, Rate, RateFrom};

/// The name that the report gives to the hash if the device computed the hash.
const DEVICE: &str = "device";

/// The numbers of CPUs for which the spread is shown.
const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// An explanation of where packets go.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) what: Subject,
    /// The command whose steering is explained.
    pub(crate) command: SteeringCommand,
    /// The name of the hash.
    pub(crate) hash: Cow<'static, str>,
    /// Whether the key of the hash is random, so that another run has another key.
    pub(crate) random_key: bool,
    /// The number of flows that are listed, the largest first.
    pub(crate) top: usize,
}

impl Explanation {
    fn is_by_device(&self) -> bool {
        self.hash == DEVICE
    }
}

#[derive(Debug)]
pub(crate) enum Subject {
    Flow(FlowExplanation),
    Traffic(Box<TrafficExplanation>),
}

/// The explanation of a flow that the user wrote out.
#[derive(Debug)]
pub(crate) struct FlowExplanation {
    pub(crate) flow: FlowKey,
    /// The key that is hashed for the flow.
    pub(crate) key: FlowKey,
    pub(crate) hash: FlowHash,
}

/// The explanation of a device's traffic.
#[derive(Debug)]
pub(crate) struct TrafficExplanation {
    pub(crate) device: String,
    pub(crate) survey: Analysis,
    /// The ledger of the run that examined the traffic.
    pub(crate) snapshot: Snapshot,
    /// The number of the packet that is explained in detail.
    pub(crate) packet: u64,
    /// Whether the outer or the inner headers of tunnels make the key.
    pub(crate) layers: Layers,
    /// What the advice is based on, in addition to the traffic.
    pub(crate) basis: AdviceBasis,
}

impl TrafficExplanation {
    /// The flows, in descending order of packets.
    pub(crate) fn largest(&self) -> Vec<AnalyzedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_cached_key(|flow| {
            (std::cmp::Reverse(flow.weight.packets), flow.flow.to_string(), flow.key.to_string())
        });
        flows
    }

    /// The numbers of CPUs for which the spread is shown: the usual numbers, and the number of CPUs
    /// of this machine.
    fn cpus(&self) -> Vec<usize> {
        let mut cpus = [&CPUS[..], &[self.basis.candidates.order.len()]].concat();
        cpus.retain(|cpus| *cpus > 1);
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Prints the explanation to standard output, for people or as JSON.
pub(crate) fn print(explanation: &Explanation, json: bool) -> Result<(), Error> {
    let text = match json {
        true => json::line(explanation).map_err(EndingError::Report)?,
        false => wrapped(&page(explanation), width()),
    };
    stdout::print(text.as_bytes())
}

fn page(explanation: &Explanation) -> String {
    let mut page = String::new();
    match &explanation.what {
        Subject::Flow(flow) => {
            let _ = writeln!(page, "flow       {}", flow.flow);
            goes_to(&mut page, explanation, &flow.key, flow.hash);
        }
        Subject::Traffic(traffic) => {
            let Analysis { all, flows, .. } = &traffic.survey;
            let suggestion = Suggestion::of(traffic);
            let kernel = traffic.basis.kernel.as_ref();
            page += &kernel.map_or(String::new(), |load| {
                kernel::Verdict::of(load, suggestion.as_ref().map(Suggestion::advised)).page()
            });
            let _ = writeln!(
                page,
                "{}  {}  {}  {}",
                printable(&traffic.device),
                counted(all.packets, "packet"),
                counted(all.bytes, "byte"),
                counted(flows.len() as u64, "flow")
            );
            let _ =
                writeln!(page, "steered as by steerage {}: {}", explanation.command.name(), kept(explanation.command));
            match &traffic.survey.packet_detail {
                Some(specimen) => one_packet(&mut page, explanation, traffic, specimen),
                None => {
                    let are = if all.packets == 1 { "there is" } else { "there are" };
                    let _ =
                        writeln!(page, "\npacket {}   {are} only {}", traffic.packet, counted(all.packets, "packet"));
                }
            }
            spread(&mut page, traffic);
            largest(&mut page, traffic, explanation.top);
            for note in advice::notes(traffic) {
                let _ = writeln!(page, "\n{note}");
            }
            page += &kernel.map_or(String::new(), kernel::figures);
            if let Some(suggestion) = suggestion {
                page += &suggestion.page(kernel.is_some());
            }
        }
    }
    page
}

/// Which packets the command keeps on one CPU.
fn kept(command: SteeringCommand) -> &'static str {
    if command.keeps_both_directions() {
        "both directions of a flow stay on one CPU"
    } else {
        "each direction of a flow stays on one CPU and counts as a flow of its own"
    }
}

fn one_packet(page: &mut String, explanation: &Explanation, traffic: &TrafficExplanation, specimen: &PacketDetail) {
    let title = format!("packet {}", traffic.packet);
    let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
    let headers: Vec<String> = found.headers().map(|header| format!("{} {}", header.kind, header.offset)).collect();
    let length = counted(specimen.wire_len as u64, "byte");
    let _ = match headers.as_slice() {
        [] => writeln!(page, "\n{title:<10} {length}; no header was read: {}", found.end),
        headers => writeln!(
            page,
            "\n{title:<10} {length}; its headers, and the byte at which each begins:\n           {}; {}",
            headers.join(", "),
            found.end
        ),
    };
    let _ = writeln!(page, "flow       {}", name(&specimen.flow));
    goes_to(page, explanation, &specimen.key, specimen.hash);
}

fn goes_to(page: &mut String, explanation: &Explanation, key: &FlowKey, hash: FlowHash) {
    let about = match key.parts() {
        // Keys made of bytes, such as the keys of datagrams and of labels, are for packets of one
        // direction only.
        FlowParts::Bytes { .. } => "",
        _ if explanation.command.keeps_both_directions() => " (the same for both directions)",
        _ => " (the other direction has another key)",
    };
    let _ = match explanation.is_by_device() {
        true => writeln!(page, "key        not known: the device computed the hash"),
        false => match described(key) {
            Some(words) => writeln!(page, "key        {words}"),
            None => writeln!(page, "key        {key}{about}"),
        },
    };
    let random = if explanation.random_key { " with a random key (--hash-key sets it)" } else { "" };
    let bucket = bucket_of(hash);
    let _ = writeln!(page, "hash       {:#010x} by {}{random}", hash.0, explanation.hash);
    let _ = writeln!(page, "bucket     {bucket} of {BUCKETS}");
    let cpus: Vec<String> = CPUS.iter().map(|cpus| format!("{} of {cpus}", even_share(bucket, *cpus))).collect();
    let _ = writeln!(page, "CPU        {}, counted from 0 within the mask", cpus.join(", "));
}

fn spread(page: &mut String, traffic: &TrafficExplanation) {
    let _ = writeln!(page, "\nCPUs       the busiest has of packets  of bytes      speed-up at most");
    for cpus in traffic.cpus() {
        let shares = Shares::even(&traffic.survey.buckets, cpus);
        let (packets, bytes) = (100.0 * shares.busiest(), 100.0 * shares.busiest_bytes());
        let _ = writeln!(page, "{cpus:>4} {packets:>30.1} % {bytes:>7.1} % {:>15.1} times", shares.speed_up());
    }
}

fn largest(page: &mut String, traffic: &TrafficExplanation, top: usize) {
    let _ = writeln!(page, "\nlargest flows");
    for flow in traffic.largest().iter().take(top) {
        let of_all = percent(flow.weight.packets as f64, traffic.survey.all.packets as f64);
        let about = match (flow.is_two_way, is_datagram(flow)) {
            (true, _) => "both directions",
            (_, true) => "a datagram that steering knows only by its fragments",
            _ => "one direction",
        };
        let (packets, bytes) = (counted(flow.weight.packets, "packet"), counted(flow.weight.bytes, "byte"));
        let _ = writeln!(page, "{of_all:>5.1} %    {}, {packets}, {bytes}, {about}", name(&flow.flow));
    }
}

/// A description of the flow, if its key alone is not meaningful. Otherwise `None`.
fn described(flow: &FlowKey) -> Option<String> {
    match flow.parts() {
        FlowParts::Link { source: [0, 0, 0, 0, 0, 0], destination: [0, 0, 0, 0, 0, 0], ethertype: 0 } => {
            Some("packets of a link type that is not read".to_owned())
        }
        FlowParts::Link { source: [0, 0, 0, 0, 0, 0], destination: [0, 0, 0, 0, 0, 0], ethertype } => {
            Some(format!("packets of type {ethertype:#06x}, without addresses"))
        }
        FlowParts::Bytes { len: 0, .. } => Some("empty packets".to_owned()),
        _ => None,
    }
}

/// The description of the flow if the flow has a description, or else the flow's key.
fn name(flow: &FlowKey) -> String {
    described(flow).unwrap_or_else(|| flow.to_string())
}

/// Whether this is a flow of IP. Packets other than IP stay together too, but are not conversations
/// that can be split.
fn is_ip(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some()
}

/// Whether the flow is a datagram with its own key, because its first fragment did not arrive
/// first.
fn is_datagram(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some() && matches!(flow.key.parts(), FlowParts::Bytes { .. })
}

/// The kinds of tunnels in the traffic, those with most packets first.
fn tunnels(survey: &Analysis) -> Vec<(HeaderKind, Volume)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}
