//! Surveys traffic: which buckets its packets fall into, which flows are the largest, what hides flows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;

use steerage::flow::{self, Dissection, End, HeaderKind, Layers};
use steerage::{
    Affinity, BUCKETS, Batch, Cpu, FlowHash, FlowHasher, FlowKey, FlowParts, Handler, LinkType, Packet, SteeringKey,
    SteeringKeys, Timestamp, bucket_of,
};

/// The most flows that are told apart. 170 bytes each, 170 MiB in all; packets of later flows count, but not by flow.
pub const SURVEY_FLOWS_MAX: usize = 1 << 20;

/// Packets, and their bytes on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// How many.
    pub packets: u64,
    /// Their lengths together.
    pub bytes: u64,
}

impl AddAssign for Weight {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// A flow: all packets with the same key, which steering never separates. It is both directions of a conversation or one
/// of them, as the survey's affinity says.
#[derive(Clone, Copy, Debug)]
pub struct SurveyedFlow {
    /// The flow of its first packet, in the direction in which that packet was sent.
    pub flow: FlowKey,
    /// The key that is hashed for each of its packets. For most flows it is made of `flow`; a datagram whose first fragment
    /// did not come first has a key of its own.
    pub key: FlowKey,
    /// All of its packets.
    pub weight: Weight,
    /// The hash by which its first packet was steered.
    pub hash: FlowHash,
    /// Whether packets of both directions came.
    pub is_two_way: bool,
    /// Whether its first packet came in a tunnel.
    pub in_tunnel: bool,
}

/// One packet, looked at closely.
#[derive(Clone, Debug)]
pub struct Specimen {
    /// Its bytes as far as they are there.
    pub data: Vec<u8>,
    /// Its length on the wire, in bytes.
    pub wire_len: usize,
    /// The type of its first header.
    pub link: LinkType,
    /// The hash by which it was steered.
    pub hash: FlowHash,
    /// Its flow, as [`SurveyedFlow::flow`].
    pub flow: FlowKey,
    /// The key that was hashed.
    pub key: FlowKey,
}

/// What a [`Survey`] found.
#[derive(Debug)]
pub struct Surveyed {
    /// Which packets steering keeps together, and so what counts as a flow here.
    pub affinity: Affinity,
    /// All packets.
    pub all: Weight,
    /// Those of each bucket.
    pub buckets: Box<[Weight; BUCKETS]>,
    /// The flows, in no order.
    pub flows: Vec<SurveyedFlow>,
    /// Packets of flows beyond [`SURVEY_FLOWS_MAX`].
    pub beyond: u64,
    /// Packets in tunnels, by the innermost.
    pub tunnels: HashMap<HeaderKind, Weight>,
    /// How many flows the outermost headers of those packets tell apart.
    pub outer_flows: usize,
    /// Fragments.
    pub fragments: u64,
    /// Packets without a known flow, by the reason.
    pub unparsed: BTreeMap<String, u64>,
    /// The packet that was asked for, if there was one of that number.
    pub specimen: Option<Specimen>,
}

/// Looks at every packet's headers and hash. It numbers packets as they come, so it is for an instance of one CPU, with
/// [hashes at arrival](steerage::Builder::always_hash).
///
/// `BOTH` says what is surveyed: the flows of handlers that keep both directions together, or of those that keep each direction
/// together by itself ([`Affinity`]).
pub struct Survey<const BOTH: bool> {
    layers: Layers,
    hasher: FlowHasher,
    /// Number of the packet to keep a copy of, from 1.
    wanted: u64,
    /// By queue.
    keys: Vec<SteeringKeys>,
    /// By the key that is hashed.
    flows: HashMap<FlowKey, SurveyedFlow>,
    outer: HashSet<FlowKey>,
    found: Surveyed,
}

impl<const BOTH: bool> std::fmt::Debug for Survey<BOTH> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Survey of {} packets", self.found.all.packets)
    }
}

impl<const BOTH: bool> Survey<BOTH> {
    /// For an instance with this hash and these layers. Keeps a copy of packet number `wanted`, from 1.
    pub fn new(hasher: FlowHasher, layers: Layers, wanted: u64) -> Self {
        let found = Surveyed {
            affinity: Self::AFFINITY,
            all: Weight::default(),
            buckets: Box::new([Weight::default(); BUCKETS]),
            flows: Vec::new(),
            beyond: 0,
            tunnels: HashMap::new(),
            outer_flows: 0,
            fragments: 0,
            unparsed: BTreeMap::new(),
            specimen: None,
        };
        Self { layers, hasher, wanted, keys: Vec::new(), flows: HashMap::new(), outer: HashSet::new(), found }
    }

    fn look_at(&mut self, packet: &Packet<'_>, queue: usize, now: Timestamp) {
        let (data, link, hash) = (packet.data(), packet.link(), packet.flow_hash());
        let weight = Weight { packets: 1, bytes: packet.wire_len() as u64 };
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
            self.found.specimen = Some(Specimen { data, wire_len: packet.wire_len(), link, hash, flow, key });
        }
        self.found.fragments += u64::from(headers.fragments[0].is_some());
        if !headers.is_flow {
            *self.found.unparsed.entry(why_unparsed(&headers)).or_default() += 1;
        }
        if let Some(tunnel) = headers.tunnel {
            *self.found.tunnels.entry(tunnel.kind).or_default() += weight;
            let outer = Self::AFFINITY.key(flow::dissect(data, link, Layers::Outer).key);
            if self.outer.len() < SURVEY_FLOWS_MAX {
                self.outer.insert(outer);
            }
        }
        let in_tunnel = headers.tunnel.is_some();
        self.note(SurveyedFlow { flow, key, weight, hash, is_two_way: false, in_tunnel });
    }

    /// Counts the packet of the flow that it would be if it were the only one.
    fn note(&mut self, new: SurveyedFlow) {
        let full = self.flows.len() >= SURVEY_FLOWS_MAX;
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

/// The flow as people know it. A datagram with a key of its own goes by addresses and protocol: its ports were not known when
/// the first of its fragments came.
fn shown(key: &SteeringKey, headers: &Dissection) -> FlowKey {
    match (key.flow.parts(), headers.key.parts()) {
        (FlowParts::Bytes { .. }, FlowParts::V4 { source, destination, protocol }) => {
            FlowKey::v4((source.0, 0), (destination.0, 0), protocol)
        }
        (FlowParts::Bytes { .. }, FlowParts::V6 { source, destination, protocol }) => {
            FlowKey::v6((source.0, 0), (destination.0, 0), protocol)
        }
        _ => key.flow,
    }
}

/// In the words of the report.
fn why_unparsed(headers: &Dissection) -> String {
    match headers.end {
        End::UnknownEtherType(0x0806) => "ARP".to_owned(),
        end => end.to_string(),
    }
}

impl<const BOTH: bool> Handler for Survey<BOTH> {
    const AFFINITY: Affinity = if BOTH { Affinity::BothDirections } else { Affinity::OneDirection };

    type Moved = ();
    type Report = Surveyed;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let queue = batch.queue();
        for packet in batch.iter_mut() {
            self.look_at(&packet, queue, cpu.now());
        }
    }

    fn finish(mut self) -> Surveyed {
        self.found.flows = self.flows.into_values().collect();
        self.found.outer_flows = self.outer.len();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use steerage::{Builder, HashKey};
    use steerage_device::synthetic::SyntheticOptions;

    use super::*;

    #[test]
    fn everything_is_in_a_bucket_and_of_a_flow() {
        all_of_it::<true>();
        all_of_it::<false>();
    }

    fn all_of_it<const BOTH: bool>() {
        let options = SyntheticOptions { packets: Some(5_000), flows: 50, ..SyntheticOptions::default() };
        let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
        let builder = Builder::new().virtual_cpus(1).always_hash(true).hash(hasher.clone());
        let survey = move |_| Survey::<BOTH>::new(hasher.clone(), Layers::Inner, 17);
        let instance = builder.input(options.open().unwrap()).build(survey).unwrap();
        let outcome = instance.start().unwrap().join();
        let (_, found) = outcome.reports.into_iter().next().unwrap();

        let sum = |weights: &mut dyn Iterator<Item = Weight>| {
            weights.fold(Weight::default(), |mut all, weight| {
                all += weight;
                all
            })
        };
        assert_eq!(found.all, Weight { packets: 5_000, bytes: 5_000 * 64 });
        assert_eq!(sum(&mut found.buckets.iter().copied()), found.all);
        assert_eq!(sum(&mut found.flows.iter().map(|flow| flow.weight)), found.all);
        assert_eq!(found.flows.len(), 50);
        assert_eq!((found.beyond, found.fragments, found.unparsed.len(), found.tunnels.len()), (0, 0, 0, 0));
        let specimen = found.specimen.unwrap();
        let flow = found.flows.iter().find(|flow| flow.key == specimen.key).unwrap();
        assert_eq!((flow.flow, flow.hash), (specimen.flow, specimen.hash));
        let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
        assert!(found.flows.iter().all(|flow| flow.hash == hasher.hash(&flow.key)));
        let dissected = flow::dissect(&specimen.data, specimen.link, Layers::Inner).key;
        assert_eq!((specimen.flow, specimen.key), (dissected, found.affinity.key(dissected)));
    }
}
