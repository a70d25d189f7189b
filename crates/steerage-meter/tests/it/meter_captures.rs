//! Compares the flows of real captures with tshark's packet fields.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::path::Path;
use std::time::Duration;

use steerage::flow::Layers;
use steerage::{Builder, CpuMask, FlowKey, WallTime, flow::protocol};
use steerage_capture::Capture;
use steerage_fixtures::tshark::{PAYLOAD, all_captures, captures, tshark};
use steerage_meter::{FlowRecord, MeterOptions, Metered, Metering, Traffic};

const FIELDS: [&str; 17] = [
    "frame.protocols",
    "frame.len",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ip.len",
    "ip.id",
    "ip.frag_offset",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "ipv6.plen",
    "udp.port",
    "tcp.port",
    "sctp.port",
    "icmp.ident",
    "icmpv6.echo.identifier",
];

/// `None` for packets without IP, which tshark assigns to no flow.
type Way = Option<(SocketAddr, SocketAddr, u8)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums(u64, u64, u64);

impl AddAssign for Sums {
    fn add_assign(&mut self, more: Self) {
        (self.0, self.1, self.2) = (self.0 + more.0, self.1 + more.1, self.2 + more.2);
    }
}

type Ways = BTreeMap<String, Sums>;

fn number(text: &str) -> u32 {
    let text = text.trim();
    text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16)).expect("a number")
}

struct Told<'a> {
    layers: Vec<&'a str>,
    fields: &'a [String],
}

impl<'a> Told<'a> {
    fn of(fields: &'a [String]) -> Self {
        Self { layers: fields[0].split(':').take_while(|layer| !PAYLOAD.contains(layer)).collect(), fields }
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let at = FIELDS.iter().position(|field| *field == name).expect("a field asked for");
        self.fields[at].split(',').filter(|text| !text.is_empty())
    }

    /// Returns the innermost IP layer, without the packet that an ICMP error quotes.
    fn ip(&self) -> Option<usize> {
        let is_ip = |layer: &&str| matches!(*layer, "ip" | "ipv6");
        let end = self.layers.iter().position(|layer| matches!(*layer, "icmp" | "icmpv6")).unwrap_or(self.layers.len());
        self.layers[..end].iter().rposition(is_ip)
    }

    fn of_layer(&self, at: usize, field: &str) -> Option<&'a str> {
        let before = self.layers[..at].iter().filter(|layer| **layer == self.layers[at]).count();
        self.all(field).nth(before)
    }

    fn quotes(&self, ip: usize) -> bool {
        self.layers[ip + 1..].iter().any(|layer| matches!(*layer, "ip" | "ipv6"))
    }

    fn ports(&self, ip: usize) -> (u8, (u16, u16)) {
        let at = self.layers[ip + 1..].iter().position(|layer| !layer.starts_with("ipv6.")).map(|at| ip + 1 + at);
        let pair = |field: &str| {
            let layer = at.expect("there is one");
            let before = self.layers[..layer].iter().filter(|other| **other == self.layers[layer]).count();
            let mut ports = self.all(field).skip(2 * before).map(|port| number(port) as u16);
            ports.next().zip(ports.next()).unwrap_or((0, 0))
        };
        let twice = |field: &str| match self.all(field).last() {
            // In an ICMP error message, the identifier is that of the quoted packet.
            Some(id) if !self.quotes(ip) => (number(id) as u16, number(id) as u16),
            _ => (0, 0),
        };
        match at.map(|at| self.layers[at]) {
            Some("udp") => (protocol::UDP, pair("udp.port")),
            Some("tcp") => (protocol::TCP, pair("tcp.port")),
            Some("sctp") => (protocol::SCTP, pair("sctp.port")),
            Some("icmp") => (protocol::ICMP, twice("icmp.ident")),
            Some("icmpv6") => (protocol::ICMP6, twice("icmpv6.echo.identifier")),
            _ => {
                let field = if self.layers[ip] == "ip" { "ip.proto" } else { "ipv6.nxt" };
                (self.of_layer(ip, field).map_or(0, |text| number(text) as u8), (0, 0))
            }
        }
    }
}

/// If the first fragment of a datagram arrives first, the other fragments belong to its flow.
fn told(frames: &[Vec<String>]) -> Ways {
    let mut ways: Ways = BTreeMap::new();
    let mut datagrams: HashMap<(String, String, String), Way> = HashMap::new();
    for fields in frames {
        let frame = Told::of(fields);
        let bytes = u64::from(number(&fields[1]));
        let mut sums = Sums(1, bytes, 0);
        let mut way: Way = None;
        if let Some(ip) = frame.ip() {
            let is_v4 = frame.layers[ip] == "ip";
            let names = if is_v4 { ["ip.src", "ip.dst", "ip.len"] } else { ["ipv6.src", "ipv6.dst", "ipv6.plen"] };
            if let [Some(source), Some(destination), Some(len)] = names.map(|name| frame.of_layer(ip, name)) {
                sums.2 = u64::from(number(len)) + if is_v4 { 0 } else { 40 };
                let (protocol, (from, to)) = frame.ports(ip);
                let end = |address: &str, port| SocketAddr::new(address.parse().expect("an address"), port);
                way = Some((end(source, from), end(destination, to), protocol));
                if is_v4 {
                    let id = frame.of_layer(ip, "ip.id").expect("it has one").to_owned();
                    let name = (source.to_owned(), destination.to_owned(), id);
                    match number(frame.of_layer(ip, "ip.frag_offset").expect("it has one")) {
                        0 => drop(datagrams.insert(name, way)),
                        _ => way = datagrams.get(&name).copied().unwrap_or(way),
                    }
                }
            }
        }
        *ways.entry(shown(way)).or_default() += sums;
    }
    ways
}

fn shown(way: Way) -> String {
    way.map_or("no IP".to_owned(), |(source, destination, protocol)| format!("{protocol} {source} > {destination}"))
}

fn way_of(key: &FlowKey) -> Way {
    Some((key.source()?, key.destination()?, key.protocol()?))
}

fn metered(records: &[FlowRecord]) -> Ways {
    let mut ways: Ways = BTreeMap::new();
    let mut add = |way: Way, traffic: Traffic| {
        if traffic.packets > 0 {
            *ways.entry(shown(way)).or_default() += Sums(traffic.packets, traffic.bytes, traffic.ip_bytes);
        }
    };
    for record in records {
        let way = way_of(&record.key());
        add(way, record.forth());
        add(way.map(|(source, destination, protocol)| (destination, source, protocol)), record.back());
    }
    ways
}

/// Returns options with timeouts that no flow reaches, so that all records are written at the end.
pub(crate) fn endless() -> MeterOptions {
    let long = Duration::from_secs(1 << 32);
    MeterOptions { active: long, inactive: long, ..default() }
}

fn default() -> MeterOptions {
    // The meter runs long after the packets were recorded.
    let epoch = WallTime::from_nanos(4_000_000_000_000_000_000);
    MeterOptions { top: usize::from(u16::MAX), epoch, ..MeterOptions::default() }
}

pub(crate) fn meter(file: &Path, options: MeterOptions, cpus: usize) -> (Metered, Vec<FlowRecord>) {
    let metering = Metering::new(options, None);
    let input = Capture::open(file).expect("a capture").into_input();
    let instance = Builder::new().virtual_cpus(cpus).input(input).build(move |_| metering.meter()).expect("it builds");
    let outcome = instance.start().expect("it starts").join();
    let reports = outcome.reports.into_iter().map(|(_cpu, report)| report);
    let (metered, _) = Metered::of(reports, options.top);
    let records = metered.top.clone();
    assert_eq!(records.len() as u64, metered.total, "the top is of all of them");
    (metered, records)
}

#[test]
fn flows_are_those_of_tshark() {
    for path in all_captures() {
        let Some(frames) = tshark(&path, &FIELDS) else { return };
        let expected = told(&frames);
        // For packets without IP, tshark gives no length. A file without packets has no flows.
        for cpus in [1, 2, 4] {
            let (_, records) = meter(&path, endless(), cpus);
            assert_eq!(metered(&records), expected, "{} on {cpus} CPUs", path.display());
        }
    }
}

fn rows(records: &[FlowRecord]) -> Vec<String> {
    let mut rows: Vec<String> = records.iter().map(|record| serde_json::to_string(record).expect("JSON")).collect();
    rows.sort();
    rows
}

#[test]
fn records_are_the_same_on_any_number_of_cpus() {
    for path in captures() {
        for options in [endless(), default()] {
            let one = rows(&meter(&path, options, 1).1);
            for cpus in [2, 4] {
                assert_eq!(rows(&meter(&path, options, cpus).1), one, "{} on {cpus} CPUs", path.display());
            }
        }
    }
}

#[test]
fn the_outermost_flows_of_tunnels() {
    let Some(path) = captures().into_iter().find(|path| path.ends_with("vxlan.pcap")) else { return };
    let metering = Metering::new(MeterOptions { layers: Layers::Outer, ..endless() }, None);
    let input = Capture::open(&path).expect("a capture").into_input();
    let builder = Builder::new().virtual_cpus(2).layers(Layers::Outer).input(input);
    let outcome = builder.build(move |_| metering.meter()).unwrap().start().unwrap().join();
    let (metered, _) = Metered::of(outcome.reports.into_iter().map(|(_, report)| report), 100);
    // tshark -r vxlan.pcap -T fields -e ip.src -e ip.dst -e udp.srcport -e frame.len -E
    // occurrence=f
    let Some(frames) = tshark(&path, &FIELDS) else { return };
    let bytes: u64 = frames.iter().map(|fields| u64::from(number(&fields[1]))).sum();
    assert_eq!(metered.top.iter().map(FlowRecord::bytes).sum::<u64>(), bytes);
    assert!(metered.top.iter().all(|record| {
        record.key().destination().map(|end| end.port()) == Some(4789) && record.key().protocol() == Some(protocol::UDP)
    }));
}

#[test]
fn moves_lose_nothing() {
    const FLOWS: u64 = 500;
    const PACKETS: u64 = 200_000;
    let spec = format!("synthetic:flows={FLOWS},packets={PACKETS},zipf=1.0,mix=udp4+tcp4+udp6+tcp6+vlan,seed=7");
    let by_flow = |cpus: usize, change: bool| {
        let metering = Metering::new(endless(), None);
        let input = steerage_device::open(&spec).expect("a device");
        let builder = Builder::new().virtual_cpus(cpus).input(input);
        let running = builder.build(move |_| metering.meter()).unwrap().start().unwrap();
        let handle = running.handle();
        let mut masks = 0;
        while change && !handle.is_finished() {
            let list = ["0", "1-3", "0-3", "2", "0,3"][masks % 5];
            let mask = CpuMask::parse_list(list, cpus).expect("a list");
            let _ = handle.set_rps_cpus(&mask);
            masks += 1;
            std::thread::yield_now();
        }
        let outcome = running.join();
        let (metered, _) = Metered::of(outcome.reports.into_iter().map(|(_, report)| report), FLOWS as usize);
        let records: BTreeMap<String, (u64, u64)> = metered
            .top
            .iter()
            .map(|record| {
                let key = record.key().both_directions().to_string();
                (key, (record.forth().packets + record.back().packets, record.bytes()))
            })
            .collect();
        assert_eq!(records.len() as u64, metered.total, "one record for each flow");
        assert_eq!(records.values().map(|(packets, _)| packets).sum::<u64>(), PACKETS);
        (records, outcome.snapshot.moves.buckets)
    };
    let (still, _) = by_flow(1, false);
    let (moving, buckets) = by_flow(4, true);
    assert!(buckets > 0, "nothing moved");
    assert_eq!(moving, still);
}

#[test]
fn too_many_flows_make_room_and_all_are_counted() {
    let metering = Metering::new(MeterOptions { flows_max: 100, ..endless() }, None);
    let input = steerage_device::open("synthetic:flows=5000,packets=50000,zipf=1.0").expect("a device");
    let outcome =
        Builder::new().virtual_cpus(2).input(input).build(move |_| metering.meter()).unwrap().start().unwrap();
    let reports = outcome.join().reports.into_iter().map(|(_, report)| report);
    let (metered, open) = Metered::of(reports, usize::from(u16::MAX));
    let packets: u64 = metered.top.iter().map(|record| record.forth().packets + record.back().packets).sum();
    assert_eq!(packets, 50_000);
    let open = open.into_records();
    assert!(open.len() <= 101, "{}", open.len());
    assert_eq!(metered.total, metered.evicted + open.len() as u64);
    assert!(metered.evicted > 5000 - 100);
}
