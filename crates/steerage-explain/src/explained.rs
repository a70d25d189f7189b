use std::borrow::Cow;

use steerage::flow::{FlowHash, FlowParts, HeaderKind, Layers};
use steerage::{FlowKey, Snapshot};

use super::analysis::{Analysis, AnalyzedFlow, Volume};
use super::basis::{AdviceBasis, Command};

/// The name of a hash that the device computed.
pub(super) const DEVICE: &str = "device";

/// The numbers of CPUs for which an explanation shows how evenly they share the packets.
pub(super) const CPUS: [usize; 5] = [2, 4, 8, 16, 32];

/// Which CPU handles which packets. `Display` writes a page for people.
#[derive(Debug)]
pub struct Explanation {
    /// What is explained.
    pub what: Subject,
    /// The command that steers.
    pub command: Command,
    /// The name of the hash.
    pub hash: Cow<'static, str>,
    /// True if the hash key is random, so that each run has another one.
    pub random_key: bool,
    /// How many flows are listed, the largest first.
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

/// A flow that the user named.
#[derive(Debug)]
pub struct FlowExplanation {
    /// The flow.
    pub flow: FlowKey,
    /// The key that is hashed.
    pub key: FlowKey,
    /// The hash of the key.
    pub hash: FlowHash,
}

/// The traffic of devices.
#[derive(Debug)]
pub struct TrafficExplanation {
    /// The names of the devices.
    pub device: String,
    /// The traffic.
    pub survey: Analysis,
    /// The ledger of the run.
    pub snapshot: Snapshot,
    /// The packet that is shown in detail.
    pub packet: u64,
    /// Whether a tunnelled packet's outer or inner headers make its flow key.
    pub layers: Layers,
    /// What the advice is based on, besides the traffic.
    pub basis: AdviceBasis,
}

impl TrafficExplanation {
    /// Returns the flows with the most packets first.
    pub fn largest(&self) -> Vec<AnalyzedFlow> {
        let mut flows = self.survey.flows.clone();
        flows.sort_by_cached_key(|flow| {
            (std::cmp::Reverse(flow.weight.packets), flow.flow.to_string(), flow.key.to_string())
        });
        flows
    }

    /// Returns the numbers in `CPUS` and the number of candidate CPUs.
    pub(super) fn cpus(&self) -> Vec<usize> {
        let mut cpus = [&CPUS[..], &[self.basis.candidates.order.len()]].concat();
        cpus.retain(|cpus| *cpus > 1);
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }
}

/// Returns `None` if the key of the flow is readable by itself.
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

/// Packets without an IP header stay together too, but are no conversation that could be divided.
pub(super) fn is_ip(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some()
}

/// A datagram with a key of its own, because its first fragment did not arrive first.
pub(super) fn is_datagram(flow: &AnalyzedFlow) -> bool {
    flow.flow.protocol().is_some() && matches!(flow.key.parts(), FlowParts::Bytes { .. })
}

pub(super) fn tunnels(survey: &Analysis) -> Vec<(HeaderKind, Volume)> {
    let mut tunnels: Vec<_> = survey.tunnels.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    tunnels.sort_by_key(|(kind, weight)| (std::cmp::Reverse(weight.packets), kind.to_string()));
    tunnels
}
