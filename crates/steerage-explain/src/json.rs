//! The explanation as one JSON object, which `docs/explain.md` describes.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use steerage::flow;
use steerage::{
    FlowKey, Snapshot,
    flow::{FlowHash, bucket_of, even_share},
};
use steerage_text::{percent, printable};

use super::advice;
use super::analysis::{PacketDetail, Volume};
use super::explained::{CPUS, Explanation, Subject, TrafficExplanation, name, tunnels};
use super::kernel::{self, KernelJson};
use super::shares::Shares;
use super::suggest::Suggestion;

#[derive(Serialize)]
struct ExplanationJson<'a> {
    schema: u32,
    r#type: &'static str,
    version: &'static str,
    r#for: &'static str,
    both_directions: bool,
    hash: &'a str,
    random_hash_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a Snapshot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<FlowPlacement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<TrafficJson>,
}

/// The CPU that a flow has with 2, 4, ... CPUs.
#[derive(Serialize)]
struct FlowPlacement {
    flow: String,
    /// The hash key. `None` if the device computed the hash.
    key: Option<String>,
    hash: String,
    bucket: u16,
    /// The keys are numbers of CPUs. A value is the flow's CPU if steering uses this number of
    /// CPUs.
    cpus: BTreeMap<usize, usize>,
}

#[derive(Serialize)]
struct TrafficJson {
    device: String,
    packets: u64,
    bytes: u64,
    flows: usize,
    packet: Option<PacketJson>,
    spread: Vec<Spread>,
    largest: Vec<FlowJson>,
    tunnels: BTreeMap<String, u64>,
    outer_flows: usize,
    /// The number of flows that the kernel's own hash distinguishes, and the share of the packets
    /// in the largest of these flows.
    kernel_flows: usize,
    kernel_largest: f64,
    fragments: u64,
    unparsed: BTreeMap<String, u64>,
    beyond: u64,
    notes: Vec<String>,
    suggestion: Option<Suggestion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<KernelJson>,
}

/// The shares of the packets and bytes that each of `cpus` CPUs gets if the CPUs have equal parts
/// of the buckets.
#[derive(Serialize)]
struct Spread {
    cpus: usize,
    /// The busiest CPU's shares of the packets and bytes, from 0 to 1.
    busiest_packets: f64,
    busiest_bytes: f64,
    speed_up: f64,
    /// The packets of each CPU, in the order of the CPUs in the mask.
    packets: Vec<u64>,
}

#[derive(Serialize)]
struct PacketJson {
    number: u64,
    length: usize,
    headers: Vec<HeaderJson>,
    end: String,
    #[serde(flatten)]
    placement: FlowPlacement,
}

#[derive(Serialize)]
struct HeaderJson {
    kind: String,
    offset: u32,
}

#[derive(Serialize)]
struct FlowJson {
    flow: String,
    key: String,
    packets: u64,
    bytes: u64,
    two_way: bool,
    tunnel: bool,
    bucket: u16,
}

impl Explanation {
    /// Returns the explanation as one line of JSON with a newline. `schema` is the version of the
    /// program's reports.
    ///
    /// # Errors
    /// Returns an error if a value cannot be written as JSON.
    pub fn json(&self, schema: u32) -> io::Result<String> {
        let (snapshot, flow, traffic) = match &self.what {
            Subject::Flow(flow) => (None, Some(FlowPlacement::of(&flow.flow, Some(&flow.key), flow.hash)), None),
            Subject::Traffic(traffic) => (Some(&traffic.snapshot), None, Some(TrafficJson::of(traffic, self))),
        };
        let line = ExplanationJson {
            schema,
            r#type: "explanation",
            version: env!("CARGO_PKG_VERSION"),
            r#for: self.command.name,
            both_directions: self.command.keeps_both_directions(),
            hash: &self.hash,
            random_hash_key: self.random_key,
            snapshot,
            flow,
            traffic,
        };
        Ok(serde_json::to_string(&line)? + "\n")
    }
}

impl FlowPlacement {
    fn of(flow: &FlowKey, key: Option<&FlowKey>, hash: FlowHash) -> Self {
        let bucket = bucket_of(hash);
        Self {
            flow: name(flow),
            key: key.map(FlowKey::to_string),
            hash: format!("{:#010x}", hash.0),
            bucket,
            cpus: CPUS.iter().map(|cpus| (*cpus, even_share(bucket, *cpus))).collect(),
        }
    }
}

impl TrafficJson {
    fn of(traffic: &TrafficExplanation, explanation: &Explanation) -> Self {
        let survey = &traffic.survey;
        let Volume { packets, bytes } = survey.all;
        let largest = traffic.largest();
        let suggestion = Suggestion::of(traffic);
        let spread = |cpus| {
            let shares = Shares::even(&survey.buckets, cpus);
            let (busiest_packets, busiest_bytes) = (shares.busiest(), shares.busiest_bytes());
            Spread { cpus, busiest_packets, busiest_bytes, speed_up: shares.speed_up(), packets: shares.packets() }
        };
        let advised = suggestion.as_ref().map(|suggestion| &suggestion.advised);
        let kernel = traffic.basis.kernel.as_ref().map(|load| kernel::json(load, advised));
        Self {
            device: printable(&traffic.device),
            packets,
            bytes,
            flows: survey.flows.len(),
            packet: survey.packet_detail.as_ref().map(|specimen| PacketJson::of(traffic, specimen, explanation)),
            spread: traffic.cpus().into_iter().map(spread).collect(),
            largest: largest
                .iter()
                .take(explanation.top)
                .map(|flow| FlowJson {
                    flow: name(&flow.flow),
                    key: flow.key.to_string(),
                    packets: flow.weight.packets,
                    bytes: flow.weight.bytes,
                    two_way: flow.is_two_way,
                    tunnel: flow.in_tunnel,
                    bucket: bucket_of(flow.hash),
                })
                .collect(),
            tunnels: tunnels(survey).into_iter().map(|(kind, weight)| (kind.to_string(), weight.packets)).collect(),
            outer_flows: survey.outer_flows,
            kernel_flows: survey.kernel_flows.len(),
            kernel_largest: percent(advice::largest_of_kernel(survey) as f64, packets as f64) / 100.0,
            fragments: survey.fragments,
            unparsed: survey.unparsed.clone(),
            beyond: survey.beyond,
            notes: advice::notes(traffic),
            suggestion,
            kernel,
        }
    }
}

impl PacketJson {
    fn of(traffic: &TrafficExplanation, specimen: &PacketDetail, explanation: &Explanation) -> Self {
        let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
        let key = Some(&specimen.key).filter(|_| !explanation.is_by_device());
        let header = |header: flow::Header| HeaderJson { kind: header.kind.to_string(), offset: header.offset };
        Self {
            number: traffic.packet,
            length: specimen.wire_len,
            headers: found.headers().map(header).collect(),
            end: found.end.to_string(),
            placement: FlowPlacement::of(&specimen.flow, key, specimen.hash),
        }
    }
}
