//! What stands in the way of spreading, or would with a plainer hash than ours.

use steerage::{FlowHasher, FlowKey, FlowParts, HashKey};

use super::{OfTraffic, tunnels};
use crate::report::units::{grouped, percent};

/// A flow with this share of the packets cannot be spread thinner: eight CPUs would not have an eighth each.
const ELEPHANT: f64 = 1.0 / 8.0;

/// A share of packets that is worth a word.
const WORTH_A_WORD: f64 = 0.01;

/// Queues of the network card that is compared with, and entries of its indirection table (what `ethtool -x` shows).
const NIC_QUEUES: u32 = 8;
const NIC_ENTRIES: u32 = 128;

/// One paragraph each; none where nothing is to be said.
pub(crate) fn notes(traffic: &OfTraffic) -> Vec<String> {
    let all = [
        elephants(traffic),
        in_tunnels(traffic),
        one_sided(traffic),
        unparsed(traffic),
        fragments(traffic),
        beyond(traffic),
    ];
    all.into_iter().flatten().collect()
}

fn share(part: u64, traffic: &OfTraffic) -> f64 {
    percent(part as f64, traffic.survey.all.packets as f64) / 100.0
}

fn elephants(traffic: &OfTraffic) -> Option<String> {
    let largest = traffic.largest();
    let shares: Vec<f64> = largest.iter().map(|flow| share(flow.weight.packets, traffic)).collect();
    let count = shares.iter().take_while(|share| **share > ELEPHANT).count();
    let first = *shares.first().filter(|_| count > 0)?;
    Some(format!(
        "elephants: {count} flow(s) with more than an eighth of the packets each. A flow stays on one CPU, so the largest, \
         with {:.1} %, allows a speed-up of {:.1} times at most, whatever the mask.",
        100.0 * first,
        1.0 / first
    ))
}

fn in_tunnels(traffic: &OfTraffic) -> Option<String> {
    let kinds = tunnels(&traffic.survey);
    let packets: u64 = kinds.iter().map(|(_, weight)| weight.packets).sum();
    if packets == 0 {
        return None;
    }
    let names: Vec<String> = kinds
        .iter()
        .map(|(kind, weight)| format!("{kind} ({:.1} %)", 100.0 * share(weight.packets, traffic)))
        .collect();
    let inner = traffic.survey.flows.iter().filter(|flow| flow.in_tunnel).count() as u64;
    Some(format!(
        "tunnels: {}. Inside are {} flows, outside {}. steerage goes by the inner ones (--outer: by the outer); a hash of the \
         outer headers, such as most network cards', tells apart no more than the outer.",
        names.join(", "),
        grouped(inner),
        grouped(traffic.survey.outer_flows as u64)
    ))
}

/// How many flows have their two directions on different queues under the hash that network cards come with.
pub(super) fn torn(traffic: &OfTraffic) -> usize {
    let nic = FlowHasher::toeplitz(&HashKey::MICROSOFT);
    let queue = |key: &FlowKey| nic.hash(key).0 % NIC_ENTRIES % NIC_QUEUES;
    let two_way = traffic.survey.flows.iter().filter(|flow| flow.is_two_way);
    two_way.filter(|flow| reverse(&flow.key).is_some_and(|back| queue(&flow.key) != queue(&back))).count()
}

fn one_sided(traffic: &OfTraffic) -> Option<String> {
    let (torn, two_way) = (torn(traffic), traffic.survey.flows.iter().filter(|flow| flow.is_two_way).count());
    if torn == 0 {
        return None;
    }
    Some(format!(
        "directions: {} of {} flows were seen both ways. A network card's usual hash (Toeplitz with Microsoft's key, {NIC_QUEUES} \
         queues) has the two directions of {:.0} % of them on different queues; steerage's has them on one CPU.",
        grouped(two_way as u64),
        grouped(traffic.survey.flows.len() as u64),
        percent(torn as f64, two_way as f64)
    ))
}

fn reverse(key: &FlowKey) -> Option<FlowKey> {
    match key.parts() {
        FlowParts::V4 { source, destination, protocol } => Some(FlowKey::v4(destination, source, protocol)),
        FlowParts::V6 { source, destination, protocol } => Some(FlowKey::v6(destination, source, protocol)),
        _ => None,
    }
}

fn unparsed(traffic: &OfTraffic) -> Option<String> {
    let packets: u64 = traffic.survey.unparsed.values().sum();
    if share(packets, traffic) < WORTH_A_WORD {
        return None;
    }
    let mut reasons: Vec<_> = traffic.survey.unparsed.iter().collect();
    reasons.sort_by_key(|(reason, packets)| (std::cmp::Reverse(**packets), reason.as_str()));
    let reasons: Vec<String> =
        reasons.into_iter().map(|(reason, packets)| format!("{reason} ({})", grouped(*packets))).collect();
    Some(format!(
        "not IP: {:.1} % of the packets have no IP flow and go by their stations and type, or all together: {}.",
        100.0 * share(packets, traffic),
        reasons.join(", ")
    ))
}

fn fragments(traffic: &OfTraffic) -> Option<String> {
    let packets = traffic.survey.fragments;
    (share(packets, traffic) >= WORTH_A_WORD).then(|| {
        format!(
            "fragments: {:.1} % of the packets. A datagram's stay together, with its flow where the first fragment comes first; \
             a hash of each packet by itself would tear flow and fragments apart.",
            100.0 * share(packets, traffic)
        )
    })
}

fn beyond(traffic: &OfTraffic) -> Option<String> {
    let packets = traffic.survey.beyond;
    (packets > 0).then(|| {
        format!(
            "many flows: {} packets are of flows beyond the {} that are told apart here; the spread counts them all.",
            grouped(packets),
            grouped(traffic.survey.flows.len() as u64)
        )
    })
}
