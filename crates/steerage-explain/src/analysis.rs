use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;

use steerage::flow::wire::ethertype;
use steerage::flow::{self, Dissection, End, HeaderKind, KernelFlow, Layers};
use steerage::{
    Affinity, Batch, Cpu, FlowKey, Handler, LinkType, Packet, Timestamp,
    flow::{FlowHash, FlowHasher, FlowParts, SteeringKey, SteeringKeys, bucket_of},
    limits::BUCKETS,
};

/// The maximum number of flows that are counted separately: 170 MiB at 170 bytes each. Packets of
/// flows beyond this number count only in the totals.
pub const ANALYSIS_FLOWS_MAX: usize = 1 << 20;

/// An amount of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The number of packets.
    pub packets: u64,
    /// The sum of the packets' lengths on the wire.
    pub bytes: u64,
}

impl AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// All packets with one flow key, in one direction or both ([`Analysis::affinity`]).
#[derive(Clone, Copy, Debug)]
pub struct AnalyzedFlow {
    /// The flow key of the first packet, in the direction of that packet.
    pub flow: FlowKey,
    /// The hashed key, made from `flow`, or from the datagram if the datagram's first fragment came
    /// late.
    pub key: FlowKey,
    /// The packets and bytes of the flow.
    pub weight: Volume,
    /// The hash by which the first packet was steered.
    pub hash: FlowHash,
    /// True if packets of both directions of the flow arrived.
    pub is_two_way: bool,
    /// True if the first packet of the flow arrived in a tunnel.
    pub in_tunnel: bool,
}

/// Details of one packet.
#[derive(Clone, Debug)]
pub struct PacketDetail {
    /// The captured bytes of the packet.
    pub data: Vec<u8>,
    /// The length of the packet on the wire, in bytes.
    pub wire_len: usize,
    /// The type of the packet's first header.
    pub link: LinkType,
    /// The hash by which the packet was steered.
    pub hash: FlowHash,
    /// The flow of the packet, like [`AnalyzedFlow::flow`].
    pub flow: FlowKey,
    /// The key that was hashed to steer the packet.
    pub key: FlowKey,
}

/// The result of [`Analyze`].
#[derive(Debug)]
pub struct Analysis {
    /// Which packets steering keeps together and [`Analyze`] counts as one flow.
    pub affinity: Affinity,
    /// The sum of all traffic.
    pub all: Volume,
    /// The traffic of each bucket.
    pub buckets: Box<[Volume; BUCKETS]>,
    /// The flows, in no particular order.
    pub flows: Vec<AnalyzedFlow>,
    /// The packets of all flows after the first [`ANALYSIS_FLOWS_MAX`].
    pub beyond: u64,
    /// The traffic in tunnels, by the type of the innermost tunnel.
    pub tunnels: HashMap<HeaderKind, Volume>,
    /// The number of flows if the outermost headers of tunnelled packets determine the flow.
    pub outer_flows: usize,
    /// The number of packets in each flow that Linux's own hash distinguishes, the largest number
    /// first. The list has at most [`ANALYSIS_FLOWS_MAX`] flows.
    pub kernel_flows: Vec<u64>,
    /// The number of packets that are fragments.
    pub fragments: u64,
    /// The packets whose flow is unknown, by reason.
    pub unparsed: BTreeMap<String, u64>,
    /// The requested packet, if it arrived.
    pub packet_detail: Option<PacketDetail>,
}

/// Analyzes the headers and the hash of every packet.
///
/// The instance must have exactly one CPU, because packets are numbered by arrival. The instance
/// must compute [hashes at arrival](steerage::Builder::always_hash). With `BOTH`, both directions
/// of a conversation are one flow ([`Affinity`]).
///
/// ```
/// use steerage::flow::{FlowHasher, HashKey, Layers};
/// use steerage::{Builder, Input};
/// use steerage_explain::{Analysis, Analyze};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let queue = steerage_device::synthetic::SyntheticOptions::new().packets(1000).flows(10);
/// # let input: Input = queue.open()?;
/// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
/// let builder = Builder::new().virtual_cpus(1).input(input).always_hash(true).hash(hasher.clone());
/// let running = builder.build(move |_| Analyze::<true>::new(hasher.clone(), Layers::Inner, 1))?.start()?;
/// let (_cpu, found): (_, Analysis) = running.join().reports.remove(0);
/// assert_eq!((found.all.packets, found.flows.len()), (1000, 10));
/// let first = found.packet_detail.expect("there is a packet with the number 1");
/// println!("the first packet belongs to {}", first.flow);
/// # Ok(())
/// # }
/// ```
pub struct Analyze<const BOTH: bool> {
    layers: Layers,
    hasher: FlowHasher,
    /// The number of the packet to copy, counted from 1.
    wanted: u64,
    keys: Vec<SteeringKeys>,
    flows: HashMap<FlowKey, AnalyzedFlow>,
    outer: HashSet<FlowKey>,
    kernel: HashMap<KernelFlow, u64>,
    unparsed: HashMap<End, u64>,
    found: Analysis,
}

impl<const BOTH: bool> std::fmt::Debug for Analyze<BOTH> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Analyze, {} packets so far", self.found.all.packets)
    }
}

impl<const BOTH: bool> Analyze<BOTH> {
    /// Creates an analysis with this hasher and these layers. The analysis copies the packet with
    /// the number `wanted`, counted from 1.
    pub fn new(hasher: FlowHasher, layers: Layers, wanted: u64) -> Self {
        let found = Analysis {
            affinity: Self::AFFINITY,
            all: Volume::default(),
            buckets: Box::new([Volume::default(); BUCKETS]),
            flows: Vec::new(),
            beyond: 0,
            tunnels: HashMap::new(),
            outer_flows: 0,
            kernel_flows: Vec::new(),
            fragments: 0,
            unparsed: BTreeMap::new(),
            packet_detail: None,
        };
        let (keys, flows, outer, unparsed) = (Vec::new(), HashMap::new(), HashSet::new(), HashMap::new());
        Self { layers, hasher, wanted, keys, flows, outer, kernel: HashMap::new(), unparsed, found }
    }

    fn analyze(&mut self, packet: &Packet<'_>, queue: usize, now: Timestamp) {
        let (data, link, hash) = (packet.data(), packet.link(), packet.flow_hash());
        let weight = Volume { packets: 1, bytes: packet.wire_len() as u64 };
        self.found.all += weight;
        self.found.buckets[usize::from(bucket_of(hash))] += weight;
        let headers = flow::dissect(data, link, self.layers);
        if self.keys.len() <= queue {
            self.keys.resize_with(queue + 1, || SteeringKeys::new(self.hasher.clone(), Self::AFFINITY));
        }
        let key = self.keys[queue].of(&headers, now);
        let (flow, key) = (shown(&key, &headers), key.hashed);
        if self.found.all.packets == self.wanted {
            let data = packet.segments().flatten().copied().collect();
            self.found.packet_detail = Some(PacketDetail { data, wire_len: packet.wire_len(), link, hash, flow, key });
        }
        self.found.fragments += u64::from(headers.fragments[0].is_some());
        if !headers.is_flow {
            *self.unparsed.entry(headers.end).or_default() += 1;
        }
        if let Some(tunnel) = headers.tunnel {
            *self.found.tunnels.entry(tunnel.kind).or_default() += weight;
            let outer = Self::AFFINITY.key(flow::dissect(data, link, Layers::Outer).key);
            if self.outer.len() < ANALYSIS_FLOWS_MAX {
                self.outer.insert(outer);
            }
        }
        let kernel = match self.layers {
            Layers::Inner => KernelFlow::of(data, &headers),
            Layers::Outer => KernelFlow::of(data, &flow::dissect(data, link, Layers::Inner)),
        };
        if self.kernel.len() < ANALYSIS_FLOWS_MAX || self.kernel.contains_key(&kernel) {
            *self.kernel.entry(kernel).or_default() += 1;
        }
        let in_tunnel = headers.tunnel.is_some();
        self.count(AnalyzedFlow { flow, key, weight, hash, is_two_way: false, in_tunnel });
    }

    fn count(&mut self, new: AnalyzedFlow) {
        let full = self.flows.len() >= ANALYSIS_FLOWS_MAX;
        let Some(known) = self.flows.get_mut(&new.key) else {
            if full {
                self.found.beyond += 1;
            } else {
                self.flows.insert(new.key, new);
            }
            return;
        };
        known.weight += new.weight;
        known.is_two_way |= known.flow != new.flow;
    }
}

/// A fragmented datagram with its own key is shown with addresses and protocol only: the fragment
/// that arrived first had no ports.
fn shown(key: &SteeringKey, headers: &Dissection) -> FlowKey {
    let is_custom = || matches!(key.flow.parts(), FlowParts::Bytes { .. });
    if headers.key.protocol().is_some() && is_custom() { headers.key.without_ports() } else { key.flow }
}

fn why_unparsed(end: End) -> String {
    match end {
        End::UnknownEtherType(ethertype::ARP) => "ARP".to_owned(),
        end => end.to_string(),
    }
}

impl<const BOTH: bool> Handler for Analyze<BOTH> {
    const AFFINITY: Affinity = if BOTH { Affinity::BothDirections } else { Affinity::OneDirection };

    type Moved = ();
    type Report = Analysis;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let queue = batch.queue();
        for packet in batch.iter_mut() {
            self.analyze(&packet, queue, cpu.now());
        }
    }

    fn finish(mut self, _cpu: &mut Cpu) -> Analysis {
        self.found.flows = self.flows.into_values().collect();
        self.found.unparsed = self.unparsed.into_iter().map(|(end, packets)| (why_unparsed(end), packets)).collect();
        self.found.outer_flows = self.outer.len();
        self.found.kernel_flows = self.kernel.into_values().collect();
        self.found.kernel_flows.sort_unstable_by(|one, other| other.cmp(one));
        self.found
    }
}

#[cfg(test)]
mod tests {
    use steerage::{Builder, flow::HashKey};
    use steerage_device::synthetic::SyntheticOptions;

    use super::*;

    #[test]
    fn everything_is_in_a_bucket_and_of_a_flow() {
        all_of_it::<true>();
        all_of_it::<false>();
    }

    fn all_of_it<const BOTH: bool>() {
        let options = SyntheticOptions::new().packets(5_000).flows(50);
        let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
        let builder = Builder::new().virtual_cpus(1).always_hash(true).hash(hasher.clone());
        let analyze = move |_| Analyze::<BOTH>::new(hasher.clone(), Layers::Inner, 17);
        let instance = builder.input(options.open().unwrap()).build(analyze).unwrap();
        let outcome = instance.start().unwrap().join();
        let (_, found) = outcome.reports.into_iter().next().unwrap();

        let sum = |weights: &mut dyn Iterator<Item = Volume>| {
            weights.fold(Volume::default(), |mut all, weight| {
                all += weight;
                all
            })
        };
        assert_eq!(found.all, Volume { packets: 5_000, bytes: 5_000 * 64 });
        assert_eq!(sum(&mut found.buckets.iter().copied()), found.all);
        assert_eq!(sum(&mut found.flows.iter().map(|flow| flow.weight)), found.all);
        assert_eq!(found.flows.len(), 50);
        assert_eq!((found.beyond, found.fragments, found.unparsed.len(), found.tunnels.len()), (0, 0, 0, 0));
        let detail = found.packet_detail.unwrap();
        let flow = found.flows.iter().find(|flow| flow.key == detail.key).unwrap();
        assert_eq!((flow.flow, flow.hash), (detail.flow, detail.hash));
        let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
        assert!(found.flows.iter().all(|flow| flow.hash == hasher.hash(&flow.key)));
        let dissected = flow::dissect(&detail.data, detail.link, Layers::Inner).key;
        assert_eq!((detail.flow, detail.key), (dissected, found.affinity.key(dissected)));
    }
}
