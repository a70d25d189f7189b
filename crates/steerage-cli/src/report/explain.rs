//! What `steerage explain` has to say, for people and as JSON.

mod advice;
mod json;
mod suggest;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use steerage::flow::{self, HeaderKind, Layers};
use steerage::{BUCKETS, FlowHash, FlowKey, bucket_of, even_share};
use steerage_apps::{Specimen, Surveyed, SurveyedFlow, Weight};

use super::units::{grouped, percent, printable};
use suggest::Suggestion;
pub(crate) use suggest::{Circumstances, Interface, Machine, Rate, RateFrom};

/// Numbers of CPUs that a spread is told for.
const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// All of it.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) what: What,
    /// The hash's name.
    pub(crate) hash: &'static str,
    /// Whether another run would have another key.
    pub(crate) key_by_chance: bool,
    /// How many of the largest flows to show.
    pub(crate) top: usize,
}

#[derive(Debug)]
pub(crate) enum What {
    Flow(OfFlow),
    Traffic(Box<OfTraffic>),
}

/// A flow that was written out.
#[derive(Debug)]
pub(crate) struct OfFlow {
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
    /// What it was steered by.
    pub(crate) layers: Layers,
    /// What advice goes by.
    pub(crate) circumstances: Circumstances,
}

/// What the CPUs of an even map would have.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Spread {
    /// How many CPUs.
    pub(crate) cpus: usize,
    /// The largest share of the packets that one of them has, from 0 to 1.
    pub(crate) busiest_packets: f64,
    /// The same of the bytes.
    pub(crate) busiest_bytes: f64,
}

impl Spread {
    pub(crate) fn of(survey: &Surveyed, cpus: usize) -> Self {
        let mut loads = vec![Weight::default(); cpus];
        for (bucket, weight) in survey.buckets.iter().enumerate() {
            loads[even_share(bucket as u16, cpus)] += *weight;
        }
        let busiest = |of: fn(&Weight) -> u64| {
            let most = loads.iter().map(of).max().unwrap_or(0);
            percent(most as f64, of(&survey.all) as f64) / 100.0
        };
        Self { cpus, busiest_packets: busiest(|weight| weight.packets), busiest_bytes: busiest(|weight| weight.bytes) }
    }
}

impl OfTraffic {
    /// The flows, most packets first.
    pub(crate) fn largest(&self) -> Vec<SurveyedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_key(|flow| (std::cmp::Reverse(flow.weight.packets), flow.key.to_string()));
        flows
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
            let _ = writeln!(page, "flow       {}", flow.key);
            let _ = writeln!(page, "key        {}", both(&flow.key));
            goes_to(&mut page, explanation, flow.hash);
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
            if let Some(specimen) = &traffic.survey.specimen {
                one_packet(&mut page, explanation, traffic, specimen);
            }
            spread(&mut page, &traffic.survey);
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

fn both(key: &FlowKey) -> String {
    format!("{} (both directions have it)", key.both_directions())
}

fn one_packet(page: &mut String, explanation: &Explanation, traffic: &OfTraffic, specimen: &Specimen) {
    let number = traffic.packet;
    let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
    let headers: Vec<String> = found.headers().map(|header| format!("{} {}", header.kind, header.offset)).collect();
    let _ = writeln!(page, "\npacket {number}   {} bytes; headers and where they begin:", specimen.wire_len);
    let _ = writeln!(page, "           {}; {}", headers.join(", "), found.end);
    let _ = writeln!(page, "key        {}", both(&found.key));
    goes_to(page, explanation, specimen.hash);
}

fn goes_to(page: &mut String, explanation: &Explanation, hash: FlowHash) {
    let key = if explanation.key_by_chance { ", its key by chance: --hash-key gives it one" } else { "" };
    let bucket = bucket_of(hash);
    let _ = writeln!(page, "hash       {:#010x} by {}{key}", hash.0, explanation.hash);
    let _ = writeln!(page, "bucket     {bucket} of {BUCKETS}");
    let cpus: Vec<String> = CPUS.iter().map(|cpus| format!("{} of {cpus}", even_share(bucket, *cpus))).collect();
    let _ = writeln!(page, "CPU        {}, counted from 0 among the mask's", cpus.join(", "));
}

fn spread(page: &mut String, survey: &Surveyed) {
    let _ = writeln!(page, "\nCPUs       busiest has of packets     of bytes      speed-up at most");
    for cpus in CPUS {
        let spread = Spread::of(survey, cpus);
        let (packets, bytes) = (100.0 * spread.busiest_packets, 100.0 * spread.busiest_bytes);
        let most = if spread.busiest_packets > 0.0 { 1.0 / spread.busiest_packets } else { 1.0 };
        let _ = writeln!(page, "{cpus:>4} {packets:>27.1} % {bytes:>13.1} % {most:>18.1} times");
    }
}

fn largest(page: &mut String, traffic: &OfTraffic, top: usize) {
    let _ = writeln!(page, "\nlargest flows");
    for flow in traffic.largest().iter().take(top) {
        let of_all = percent(flow.weight.packets as f64, traffic.survey.all.packets as f64);
        let arrow = if flow.is_two_way { "both ways" } else { "one way" };
        let (packets, bytes) = (grouped(flow.weight.packets), grouped(flow.weight.bytes));
        let _ = writeln!(page, "{of_all:>5.1} %    {}, {packets} packets, {bytes} bytes, {arrow}", flow.key);
    }
}

/// Kinds of tunnels that were seen, most packets first.
fn tunnels(survey: &Surveyed) -> Vec<(HeaderKind, Weight)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey_of(buckets: &[(u16, u64)]) -> Surveyed {
        let mut all = Weight::default();
        let mut weights = Box::new([Weight::default(); BUCKETS]);
        for (bucket, packets) in buckets {
            let weight = Weight { packets: *packets, bytes: packets * 100 };
            weights[usize::from(*bucket)] += weight;
            all += weight;
        }
        Surveyed {
            all,
            buckets: weights,
            flows: Vec::new(),
            beyond: 0,
            tunnels: Default::default(),
            outer_flows: 0,
            fragments: 0,
            unparsed: Default::default(),
            specimen: None,
        }
    }

    #[test]
    fn the_busiest_share_is_that_of_an_even_map() {
        let survey = survey_of(&[(0, 10), (1024, 20), (2048, 30), (4095, 40)]);
        let shares: Vec<f64> = [1, 2, 4].map(|cpus| Spread::of(&survey, cpus).busiest_packets).to_vec();
        assert_eq!(shares, [1.0, 0.7, 0.4]);
        assert_eq!(Spread::of(&survey_of(&[]), 8).busiest_bytes, 0.0);
    }
}
