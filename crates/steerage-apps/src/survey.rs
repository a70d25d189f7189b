//! Surveys traffic: which buckets its packets fall into, which flows are the largest, what hides flows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;

use steerage::flow::{self, Dissection, End, HeaderKind, Layers};
use steerage::{BUCKETS, Batch, Cpu, FlowHash, FlowKey, Handler, LinkType, Packet, bucket_of};

/// The most flows that are told apart. 120 bytes each, 120 MiB in all; packets of later flows count, but not by flow.
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

/// A flow, both directions together.
#[derive(Clone, Copy, Debug)]
pub struct SurveyedFlow {
    /// As its first packet was sent.
    pub key: FlowKey,
    /// All that came of it.
    pub weight: Weight,
    /// What its first packet was steered by.
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
    /// What it begins with.
    pub link: LinkType,
    /// What it was steered by.
    pub hash: FlowHash,
}

/// What a [`Survey`] found.
#[derive(Debug)]
pub struct Surveyed {
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
    /// Packets of which no flow is known, by the reason.
    pub unparsed: BTreeMap<String, u64>,
    /// The packet that was asked for, if there was such a one.
    pub specimen: Option<Specimen>,
}

/// Looks at every packet's headers and hash. Numbers packets as they come to it: for one CPU alone.
#[derive(Debug)]
pub struct Survey {
    layers: Layers,
    /// Number of the packet to keep a copy of, from 1.
    wanted: u64,
    flows: HashMap<FlowKey, SurveyedFlow>,
    outer: HashSet<FlowKey>,
    found: Surveyed,
}

impl Survey {
    /// Of the flows that `layers` says, with a copy of the packet of number `wanted`, from 1.
    pub fn new(layers: Layers, wanted: u64) -> Self {
        let found = Surveyed {
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
        Self { layers, wanted, flows: HashMap::new(), outer: HashSet::new(), found }
    }

    fn look_at(&mut self, packet: &Packet<'_>) {
        let (data, link, hash) = (packet.data(), packet.link(), packet.flow_hash());
        let weight = Weight { packets: 1, bytes: packet.wire_len() as u64 };
        self.found.all += weight;
        self.found.buckets[usize::from(bucket_of(hash))] += weight;
        if self.found.all.packets == self.wanted {
            let data = packet.segments().flatten().copied().collect();
            self.found.specimen = Some(Specimen { data, wire_len: packet.wire_len(), link, hash });
        }
        let headers = flow::dissect(data, link, self.layers);
        self.found.fragments += u64::from(headers.fragments[0].is_some());
        if !headers.is_flow {
            *self.found.unparsed.entry(why_unparsed(&headers)).or_default() += 1;
        }
        if let Some(tunnel) = headers.tunnel {
            *self.found.tunnels.entry(tunnel.kind).or_default() += weight;
            let outer = flow::dissect(data, link, Layers::Outer).key.both_directions();
            if self.outer.len() < SURVEY_FLOWS_MAX {
                self.outer.insert(outer);
            }
        }
        self.note(&headers, hash, weight);
    }

    fn note(&mut self, headers: &Dissection, hash: FlowHash, weight: Weight) {
        let (key, full) = (headers.key, self.flows.len() >= SURVEY_FLOWS_MAX);
        let new = SurveyedFlow {
            key,
            weight: Weight::default(),
            hash,
            is_two_way: false,
            in_tunnel: headers.tunnel.is_some(),
        };
        let flow = match self.flows.get_mut(&key.both_directions()) {
            Some(flow) => flow,
            None if full => {
                self.found.beyond += 1;
                return;
            }
            None => self.flows.entry(key.both_directions()).or_insert(new),
        };
        flow.weight += weight;
        flow.is_two_way |= flow.key != key;
    }
}

/// In the words of the report.
fn why_unparsed(headers: &Dissection) -> String {
    match headers.end {
        End::UnknownEtherType(0x0806) => "ARP".to_owned(),
        end => end.to_string(),
    }
}

impl Handler for Survey {
    type Moved = ();
    type Report = Surveyed;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            self.look_at(&packet);
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
    use steerage::Builder;
    use steerage_device::synthetic::SyntheticOptions;

    use super::*;

    #[test]
    fn everything_is_in_a_bucket_and_of_a_flow() {
        let options = SyntheticOptions { packets: Some(5_000), flows: 50, ..SyntheticOptions::default() };
        // Order is checked so that packets are hashed though there is one CPU only.
        let builder = Builder::new().virtual_cpus(1).check_order(true).input(options.open().unwrap());
        let instance = builder.build(|_| Survey::new(Layers::Inner, 17)).unwrap();
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
        let key = flow::dissect(&specimen.data, specimen.link, Layers::Inner).key.both_directions();
        let flow = found.flows.iter().find(|flow| flow.key.both_directions() == key).unwrap();
        assert_eq!(flow.hash, specimen.hash);
    }
}
