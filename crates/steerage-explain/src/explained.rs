use std::borrow::Cow;

use steerage::flow::{FlowHash, FlowParts, HeaderKind, Layers};
use steerage::{FlowKey, Snapshot};

use super::analysis::{Analysis, AnalyzedFlow, Volume};
use super::basis::{AdviceBasis, Command};

/// The name that stands for a hash computed by the device.
pub(super) const DEVICE: &str = "device";

/// The numbers of CPUs for which an explanation shows how evenly the packets are spread.
pub(super) const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// The explanation of which CPU handles which packets. `Display` writes it as a page for people.
#[derive(Debug)]
pub struct Explanation {
    /// The subject of the explanation.
    pub what: Subject,
    /// The command of steerage that steers the packets.
    pub command: Command,
    /// The name of the hash function.
    pub hash: Cow<'static, str>,
    /// True if the hash key is random, so that each run has another key.
    pub random_key: bool,
    /// The number of flows to list, the largest first.
    pub top: usize,
}

impl Explanation {
    pub(super) fn is_by_device(&self) -> bool {
        self.hash == DEVICE
    }
}

/// The subject of an explanation.
#[derive(Debug)]
pub enum Subject {
    /// The explanation is about one flow.
    Flow(FlowExplanation),
    /// The explanation is about the traffic of devices.
    Traffic(Box<TrafficExplanation>),
}

/// A flow that the user named.
#[derive(Debug)]
pub struct FlowExplanation {
    /// The flow.
    pub flow: FlowKey,
    /// The key that is hashed for this flow.
    pub key: FlowKey,
    /// The hash of the key.
    pub hash: FlowHash,
}

/// An explanation of the traffic of devices.
#[derive(Debug)]
pub struct TrafficExplanation {
    /// The names of the devices.
    pub device: String,
    /// The analysis of the traffic.
    pub survey: Analysis,
    /// The ledger of the run.
    pub snapshot: Snapshot,
    /// The number of the packet that is shown in detail.
    pub packet: u64,
    /// Whether the outer or the inner headers determine the flow of a tunnelled packet.
    pub layers: Layers,
    /// The facts on which the advice is based, in addition to the traffic.
    pub basis: AdviceBasis,
}

impl TrafficExplanation {
    /// Returns all flows, those with the most packets first.
    pub fn largest(&self) -> Vec<AnalyzedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_cached_key(|flow| {
            (std::cmp::Reverse(flow.weight.packets), flow.flow.to_string(), flow.key.to_string())
        });
        flows
    }

    /// Returns the numbers of CPUs for which shares are shown: those in `CPUS`, and the number of
    /// candidate CPUs.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus = [&CPUS[..], &[self.basis.candidates.order.len()]].concat();
        cpus.retain(|cpus| *cpus > 1);
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Returns a description of a flow's key, or `None` if the key is readable by itself.
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

pub(super) fn name(flow: &FlowKey) -> String {
    described(flow).unwrap_or_else(|| flow.to_string())
}

/// Returns true if the flow consists of IP packets. Packets that are not IP also stay together, but
/// are not a conversation that could be divided.
pub(super) fn is_ip(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some()
}

/// Returns true for a fragmented datagram that has its own key, because its first fragment did not
/// arrive first.
pub(super) fn is_datagram(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some() && matches!(flow.key.parts(), FlowParts::Bytes { .. })
}

pub(super) fn tunnels(survey: &Analysis) -> Vec<(HeaderKind, Volume)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}
