//! The subject of an explanation: a flow, or the traffic of devices.

use std::borrow::Cow;

use steerage::flow::{FlowHash, FlowParts, HeaderKind, Layers};
use steerage::{FlowKey, Snapshot};

use super::analysis::{Analysis, AnalyzedFlow, Volume};
use super::basis::{AdviceBasis, Command};

/// The name that the report shows for a hash that the device computed.
pub(super) const DEVICE: &str = "device";

/// For each number of CPUs in this list, the explanation shows how evenly the CPUs would share the
/// packets.
pub(super) const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// Explains which CPU handles which packets. The `Display` form of an explanation is a page for
/// people.
#[derive(Debug)]
pub struct Explanation {
    /// What is explained.
    pub what: Subject,
    /// The command whose steering is explained.
    pub command: Command,
    /// The name of the hash.
    pub hash: Cow<'static, str>,
    /// Whether the secret key of the flow hash is random. If the hash key is random, each run uses
    /// a different key.
    pub random_key: bool,
    /// The number of flows that the explanation lists, the largest first.
    pub top: usize,
}

impl Explanation {
    pub(super) fn is_by_device(&self) -> bool {
        self.hash == DEVICE
    }
}

/// What is explained.
#[derive(Debug)]
pub enum Subject {
    /// One flow.
    Flow(FlowExplanation),
    /// The traffic of devices.
    Traffic(Box<TrafficExplanation>),
}

/// The explanation of a flow that the user named on the command line.
#[derive(Debug)]
pub struct FlowExplanation {
    /// The flow.
    pub flow: FlowKey,
    /// The flow key that is hashed for the flow.
    pub key: FlowKey,
    /// The hash of the key.
    pub hash: FlowHash,
}

/// The explanation of a device's traffic.
#[derive(Debug)]
pub struct TrafficExplanation {
    /// The names of the devices.
    pub device: String,
    /// The traffic.
    pub survey: Analysis,
    /// The ledger of the run that examined the traffic.
    pub snapshot: Snapshot,
    /// The number of the packet that the explanation shows in detail.
    pub packet: u64,
    /// Whether the flow key of a tunnelled packet is made from the packet's outer or inner headers.
    pub layers: Layers,
    /// The information on which the advice is based, in addition to the traffic.
    pub basis: AdviceBasis,
}

impl TrafficExplanation {
    /// The flows, in descending order of their number of packets.
    pub fn largest(&self) -> Vec<AnalyzedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_cached_key(|flow| {
            (std::cmp::Reverse(flow.weight.packets), flow.flow.to_string(), flow.key.to_string())
        });
        flows
    }

    /// The numbers of CPUs for which the explanation shows how evenly CPUs would share the packets:
    /// the numbers in `CPUS`, and the number of candidate CPUs.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus = [&CPUS[..], &[self.basis.candidates.order.len()]].concat();
        cpus.retain(|cpus| *cpus > 1);
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// A description of the flow. `None` if the flow's key is readable and needs no description.
pub(super) fn described(flow: &FlowKey) -> Option<String> {
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
pub(super) fn name(flow: &FlowKey) -> String {
    described(flow).unwrap_or_else(|| flow.to_string())
}

/// Whether this is a flow of IP. Steering also keeps packets without an IP header together, but
/// such packets are not a conversation and cannot be divided into flows.
pub(super) fn is_ip(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some()
}

/// Whether the flow is a fragmented datagram that has its own key because its first fragment did
/// not arrive first.
pub(super) fn is_datagram(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some() && matches!(flow.key.parts(), FlowParts::Bytes { .. })
}

/// The kinds of tunnels in the traffic, in descending order of their number of packets.
pub(super) fn tunnels(survey: &Analysis) -> Vec<(HeaderKind, Volume)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}
