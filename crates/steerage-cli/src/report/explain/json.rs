//! The explanation as one JSON object: `docs/explain.md` tells its fields.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use steerage::flow;
use steerage::{FlowHash, FlowKey, bucket_of, even_share};
use steerage_apps::{Specimen, Weight};

use super::{CPUS, Explanation, OfTraffic, Spread, Suggestion, What, advice, tunnels};
use crate::report::units::printable;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    r#type: &'static str,
    version: &'static str,
    hash: &'a str,
    hash_key_by_chance: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<Traffic>,
}

/// Where a flow goes.
#[derive(Serialize)]
struct Place {
    flow: String,
    key: String,
    hash: String,
    bucket: u16,
    /// By the number of CPUs, which of them.
    cpus: BTreeMap<usize, usize>,
}

#[derive(Serialize)]
struct Traffic {
    device: String,
    packets: u64,
    bytes: u64,
    flows: usize,
    packet: Option<Packet>,
    spread: Vec<Spread>,
    largest: Vec<Flow>,
    tunnels: BTreeMap<String, u64>,
    outer_flows: usize,
    fragments: u64,
    unparsed: BTreeMap<String, u64>,
    beyond: u64,
    notes: Vec<String>,
    suggestion: Option<Suggestion>,
}

#[derive(Serialize)]
struct Packet {
    number: u64,
    length: usize,
    headers: Vec<Header>,
    end: String,
    #[serde(flatten)]
    place: Place,
}

#[derive(Serialize)]
struct Header {
    kind: String,
    offset: u32,
}

#[derive(Serialize)]
struct Flow {
    flow: String,
    packets: u64,
    bytes: u64,
    two_way: bool,
    tunnel: bool,
    bucket: u16,
}

pub(super) fn line(explanation: &Explanation) -> io::Result<String> {
    let (flow, traffic) = match &explanation.what {
        What::Flow(flow) => (Some(Place::of(&flow.key, flow.hash)), None),
        What::Traffic(traffic) => (None, Some(Traffic::of(traffic, explanation.top))),
    };
    let line = Line {
        schema: SCHEMA,
        r#type: "explanation",
        version: env!("CARGO_PKG_VERSION"),
        hash: explanation.hash,
        hash_key_by_chance: explanation.key_by_chance,
        flow,
        traffic,
    };
    let mut text = serde_json::to_string(&line)?;
    text.push('\n');
    Ok(text)
}

impl Place {
    fn of(flow: &FlowKey, hash: FlowHash) -> Self {
        let bucket = bucket_of(hash);
        Self {
            flow: flow.to_string(),
            key: flow.both_directions().to_string(),
            hash: format!("{:#010x}", hash.0),
            bucket,
            cpus: CPUS.iter().map(|cpus| (*cpus, even_share(bucket, *cpus))).collect(),
        }
    }
}

impl Traffic {
    fn of(traffic: &OfTraffic, top: usize) -> Self {
        let survey = &traffic.survey;
        let Weight { packets, bytes } = survey.all;
        let largest = traffic.largest();
        Self {
            device: printable(&traffic.device),
            packets,
            bytes,
            flows: survey.flows.len(),
            packet: survey.specimen.as_ref().map(|specimen| Packet::of(traffic, specimen)),
            spread: CPUS.iter().map(|cpus| Spread::of(survey, *cpus)).collect(),
            largest: largest
                .iter()
                .take(top)
                .map(|flow| Flow {
                    flow: flow.key.to_string(),
                    packets: flow.weight.packets,
                    bytes: flow.weight.bytes,
                    two_way: flow.is_two_way,
                    tunnel: flow.in_tunnel,
                    bucket: bucket_of(flow.hash),
                })
                .collect(),
            tunnels: tunnels(survey).into_iter().map(|(kind, weight)| (kind.to_string(), weight.packets)).collect(),
            outer_flows: survey.outer_flows,
            fragments: survey.fragments,
            unparsed: survey.unparsed.clone(),
            beyond: survey.beyond,
            notes: advice::notes(traffic),
            suggestion: Suggestion::of(traffic),
        }
    }
}

impl Packet {
    fn of(traffic: &OfTraffic, specimen: &Specimen) -> Self {
        let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
        let header = |header: flow::Header| Header { kind: header.kind.to_string(), offset: header.offset };
        Self {
            number: traffic.packet,
            length: specimen.wire_len,
            headers: found.headers().map(header).collect(),
            end: found.end.to_string(),
            place: Place::of(&found.key, specimen.hash),
        }
    }
}
