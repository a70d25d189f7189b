use steerage::{
    FlowKey,
    flow::{FlowHasher, HashKey},
    limits::BUCKETS,
};
use steerage_text::{counted, grouped, percent};

use super::analysis::Analysis;
use super::explained::{DEVICE, TrafficExplanation, is_ip, tunnels};
use super::shares::Shares;

/// With a flow above this share, eight CPUs cannot each have an eighth of the packets.
const ELEPHANT: f64 = 1.0 / 8.0;

/// Notes do not mention shares of the packets below this value.
const WORTH_A_WORD: f64 = 0.01;

/// The network card with which steerage is compared: its number of queues, and the number of
/// entries in its indirection table (`ethtool -x`).
const NIC_QUEUES: u32 = 8;
const NIC_ENTRIES: u32 = 128;

/// A note warns about a device's hashes if at least `HASHES_SAMPLE` packets filled less than one in
/// `HASHES_FEW` of the buckets. The notes at the end of a run use the same two limits.
const HASHES_SAMPLE: u64 = 10_000;
const HASHES_FEW: usize = 100;

pub(super) fn notes(traffic: &TrafficExplanation) -> Vec<String> {
    let all = [
        hashes(traffic.snapshot.queues.iter().any(|queue| queue.hash == DEVICE), &traffic.survey),
        elephants(traffic),
        in_tunnels(traffic),
        one_sided(traffic),
        unparsed(traffic),
        fragments(traffic),
        beyond(traffic),
    ];
    all.into_iter().flatten().chain(traffic.basis.cards.iter().cloned()).collect()
}

fn share(part: u64, traffic: &TrafficExplanation) -> f64 {
    percent(part as f64, traffic.survey.all.packets as f64) / 100.0
}

/// Returns a note if the hashes of a device differ too little. A run counts no flows, and can only
/// guess whether the hashes differ too little.
fn hashes(are_of_device: bool, survey: &Analysis) -> Option<String> {
    let (flows, filled) = (survey.flows.len(), survey.buckets.iter().filter(|bucket| bucket.packets > 0).count());
    let few = filled * HASHES_FEW < BUCKETS && flows > 2 * filled;
    (are_of_device && few && survey.all.packets >= HASHES_SAMPLE).then(|| {
        format!(
            "hashes: the device's hashes put {} into {filled} of {} buckets, so they differ too little in their upper 12 bits, and \
             the packets cannot be spread. Without --hash device, steerage computes the hash.",
            counted(flows as u64, "flow"),
            grouped(BUCKETS as u64)
        )
    })
}

fn elephants(traffic: &TrafficExplanation) -> Option<String> {
    let largest = traffic.largest();
    let shares: Vec<f64> =
        largest.iter().filter(|flow| is_ip(flow)).map(|flow| share(flow.weight.packets, traffic)).collect();
    let count = shares.iter().take_while(|share| **share > ELEPHANT).count();
    let first = *shares.first().filter(|_| count > 0)?;
    let first = 100.0 * first;
    let large = match count {
        1 => format!("1 flow has more than an eighth of the packets: {first:.1} %"),
        _ => format!("{count} flows each have more than an eighth of the packets, the largest {first:.1} %"),
    };
    let thinnest = Shares::thinnest(&traffic.survey.buckets);
    Some(format!(
        "elephants: {large}. All packets of a bucket stay on one CPU, and so do those of a flow. The fullest bucket has {:.1} %, so \
         the speed-up is {:.1} times at most, with any number of CPUs and any mask.",
        100.0 * thinnest.busiest(),
        thinnest.speed_up()
    ))
}

fn in_tunnels(traffic: &TrafficExplanation) -> Option<String> {
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
    let are = if inner == 1 { "is" } else { "are" };
    Some(format!(
        "tunnels: {}. Inside the tunnels there {are} {}, outside {}. steerage goes by the inner headers (with --outer by the \
         outer ones). Most network cards hash only the outer headers. {}",
        names.join(", "),
        counted(inner, "flow"),
        grouped(traffic.survey.outer_flows as u64),
        of_kernel(traffic)
    ))
}

/// Returns the number of packets in the largest flow that the kernel's own hash distinguishes.
pub(super) fn largest_of_kernel(survey: &Analysis) -> u64 {
    survey.kernel_flows.first().copied().unwrap_or(0)
}

fn of_kernel(traffic: &TrafficExplanation) -> String {
    format!(
        "The kernel's own hash sees {} in all of the traffic, the largest with {:.1} % of the packets.",
        counted(traffic.survey.kernel_flows.len() as u64, "flow"),
        100.0 * share(largest_of_kernel(&traffic.survey), traffic)
    )
}

/// Returns the number of flows whose two directions a network card would put on different queues,
/// or 0 if the command does not keep directions together.
pub(super) fn torn(traffic: &TrafficExplanation) -> usize {
    let nic = FlowHasher::toeplitz(&HashKey::MICROSOFT);
    let queue = |key: &FlowKey| nic.hash(key).0 % NIC_ENTRIES % NIC_QUEUES;
    let two_way = traffic.survey.flows.iter().filter(|flow| flow.is_two_way);
    two_way.filter(|flow| flow.flow.protocol().is_some() && queue(&flow.flow) != queue(&flow.flow.reversed())).count()
}

fn one_sided(traffic: &TrafficExplanation) -> Option<String> {
    let (torn, two_way) = (torn(traffic), traffic.survey.flows.iter().filter(|flow| flow.is_two_way).count());
    if torn == 0 {
        return None;
    }
    let flows = traffic.survey.flows.len() as u64;
    let have = if flows == 1 { "has" } else { "have" };
    Some(format!(
        "directions: {} of {} {have} packets of both directions. A network card's default hash (Toeplitz with Microsoft's key, \
         {NIC_QUEUES} queues) puts the two directions of {:.0} % of them on different queues; steerage {} keeps them on one CPU.",
        grouped(two_way as u64),
        counted(flows, "flow"),
        percent(torn as f64, two_way as f64),
        traffic.basis.command.name
    ))
}

fn unparsed(traffic: &TrafficExplanation) -> Option<String> {
    let packets: u64 = traffic.survey.unparsed.values().sum();
    if share(packets, traffic) < WORTH_A_WORD {
        return None;
    }
    let mut reasons: Vec<_> = traffic.survey.unparsed.iter().collect();
    reasons.sort_by_key(|(reason, packets)| (std::cmp::Reverse(**packets), reason.as_str()));
    let reasons: Vec<String> =
        reasons.into_iter().map(|(reason, packets)| format!("{reason} ({})", grouped(*packets))).collect();
    let together = traffic.survey.flows.iter().filter(|flow| !is_ip(flow)).map(|flow| flow.weight.packets).max();
    let together = share(together.unwrap_or(0), traffic);
    let together = match together > ELEPHANT {
        true => format!(" The largest part that stays together, and so on one CPU, has {:.1} %.", 100.0 * together),
        false => String::new(),
    };
    Some(format!(
        "not IP: {:.1} % of the packets have no IP flow. They go by their MAC addresses and type, or else all together: \
         {}.{together}",
        100.0 * share(packets, traffic),
        reasons.join(", ")
    ))
}

fn fragments(traffic: &TrafficExplanation) -> Option<String> {
    let packets = traffic.survey.fragments;
    (share(packets, traffic) >= WORTH_A_WORD).then(|| {
        format!(
            "fragments: {:.1} % of the packets. All fragments of a datagram stay together. They go with their flow if the first \
             fragment comes first, and else by a key of their own.",
            100.0 * share(packets, traffic)
        )
    })
}

fn beyond(traffic: &TrafficExplanation) -> Option<String> {
    let packets = traffic.survey.beyond;
    let belong = if packets == 1 { "belongs" } else { "belong" };
    (packets > 0).then(|| {
        format!(
            "many flows: {} {belong} to flows beyond the first {}, which are not listed; the shares above include them.",
            counted(packets, "packet"),
            grouped(traffic.survey.flows.len() as u64)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::net::SocketAddrV4;

    use steerage::Affinity;
    use steerage::flow::FlowHash;

    use super::*;
    use crate::analysis::{AnalyzedFlow, Volume};

    fn survey(packets: u64, flows: u16, filled: usize) -> Analysis {
        let key = |port| FlowKey::v4(SocketAddrV4::new([10, 0, 0, 1].into(), port), "10.0.0.2:9".parse().unwrap(), 17);
        let flow = |port| AnalyzedFlow {
            flow: key(port),
            key: key(port),
            weight: Volume::default(),
            hash: FlowHash(0),
            is_two_way: false,
            in_tunnel: false,
        };
        let mut buckets = Box::new([Volume::default(); BUCKETS]);
        buckets[..filled].iter_mut().for_each(|bucket| bucket.packets = 1);
        Analysis {
            affinity: Affinity::BothDirections,
            all: Volume { packets, bytes: 64 * packets },
            buckets,
            flows: (0..flows).map(flow).collect(),
            beyond: 0,
            tunnels: HashMap::new(),
            outer_flows: 0,
            kernel_flows: Vec::new(),
            fragments: 0,
            unparsed: BTreeMap::new(),
            packet_detail: None,
        }
    }

    #[test]
    fn hashes_that_fill_few_buckets_are_named() {
        let note = hashes(true, &survey(10_000, 1000, 1)).unwrap();
        assert!(note.starts_with("hashes: the device's hashes put 1,000 flows into 1 of 4,096 buckets"), "{note}");
        for (of_device, packets, flows, filled, why) in [
            (false, 10_000, 1000, 1, "steerage's own hash"),
            (true, 9_999, 1000, 1, "too few packets"),
            (true, 10_000, 40, 40, "as few flows"),
            (true, 10_000, 1000, 41, "1 % of the buckets"),
        ] {
            assert_eq!(hashes(of_device, &survey(packets, flows, filled)), None, "{why}");
        }
        assert!(hashes(true, &survey(10_000, 1000, 40)).is_some());
    }
}
