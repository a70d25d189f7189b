//! Tests `steerage meter --export`: the IPFIX messages, and the errors if no collector accepts
//! them. The file export_collectors.rs tests `--export` with real collectors.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{dropped_by_the_kernel, tshark};

use crate::program::{Started, assert_lost_only_under_load, report, run, sum};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: usize,
    pub(crate) sequence: u32,
    domain: u32,
}

pub(crate) fn messages(mut bytes: &[u8]) -> Vec<(Header, Vec<Set>)> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<16>() {
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(header[..2], [0, 10], "the version");
        let header = Header { length: usize::from(word(0) as u16), sequence: word(8), domain: word(12) };
        if header.length > bytes.len() {
            break; // The connection was closed within a message.
        }
        messages.push((header, sets(&bytes[16..header.length])));
        bytes = &bytes[header.length..];
    }
    messages
}

/// The smallest id of steerage's options templates.
pub(crate) const OPTIONS: u16 = 33_024;

/// The id and the bytes of a set in an IPFIX message.
pub(crate) type Set = (u16, Vec<u8>);

fn sets(mut bytes: &[u8]) -> Vec<Set> {
    let mut sets = Vec::new();
    while !bytes.is_empty() {
        let [id, length] = [0, 2].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        sets.push((id, bytes[4..usize::from(length)].to_vec()));
        bytes = &bytes[usize::from(length)..];
    }
    sets
}

/// The length of the records of each IPFIX template, by the template's id.
#[derive(Default)]
pub(crate) struct Decoder(BTreeMap<u16, usize>);

impl Decoder {
    /// Returns the number of flow records and the number of options records in `sets`.
    pub(crate) fn records(&mut self, sets: &[Set]) -> (usize, usize) {
        let (mut flows, mut options) = (0, 0);
        for (id, bytes) in sets {
            match id {
                2 => self.learn(bytes, 4),
                3 => self.learn(bytes, 6),
                id => {
                    let length = self.0.get(id).unwrap_or_else(|| panic!("no template for {id}"));
                    assert_eq!(bytes.len() % length, 0, "a set of whole records");
                    *(if *id < OPTIONS { &mut flows } else { &mut options }) += bytes.len() / length;
                }
            }
        }
        (flows, options)
    }

    /// `elements` is the offset in a template at which the information elements begin.
    fn learn(&mut self, mut set: &[u8], elements: usize) {
        while !set.is_empty() {
            let word = |at: usize| u16::from_be_bytes([set[at], set[at + 1]]);
            let (mut at, mut length) = (elements, 0);
            for _ in 0..word(2) {
                length += usize::from(word(at + 2));
                at += if word(at) & 0x8000 == 0 { 4 } else { 8 };
            }
            self.0.insert(word(0), length);
            set = &set[at..];
        }
    }
}

pub(crate) fn output<'a>(report: &'a Value, to: &str) -> &'a Value {
    let outputs = report["app"]["flows"]["outputs"].as_array().unwrap();
    outputs.iter().find(|output| output["to"] == to).unwrap_or_else(|| panic!("{to}: {outputs:?}"))
}

fn only_output(report: &Value) -> &Value {
    &report["app"]["flows"]["outputs"][0]
}

#[test]
fn a_file_says_what_the_csv_says() {
    let directory = Scratch::new();
    for path in tshark::captures() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let [ipfix, csv] = ["ipfix", "csv"].map(|end| directory.join(format!("{name}.{end}")));
        let [capture, to_ipfix, to_csv] = [&path, &ipfix, &csv].map(|path| path.to_str().unwrap());
        let args = ["meter", capture, "--virtual-cpus", "2", "-q", "--export", to_ipfix, "--flows", to_csv];
        let ran = run(&args);
        // Some captures are truncated.
        assert!(matches!(ran.code, Some(0 | 1)), "{name}: {ran:?}");
        let mut expected: Vec<Vec<String>> = rows(&csv);
        let fields = [
            "cflow.srcaddr",
            "cflow.srcaddrv6",
            "cflow.srcmac",
            "cflow.dstaddr",
            "cflow.dstaddrv6",
            "cflow.dstmac",
            "cflow.protocol",
            "cflow.packets",
            "cflow.octets",
            "cflow.layer2_octet_delta_count",
            "cflow.flow_end_reason",
            "cflow.vlanid",
        ];
        let Some(messages) = tshark::tshark(&ipfix, &fields) else { return };
        assert!(!messages.is_empty(), "{name}");
        // For each field, tshark lists the values of all records of a message. The sums do not
        // depend on how records are grouped into messages.
        let sum = |nth: usize| numbers(&messages, nth).sum::<u64>();
        let total = |nth: usize| expected.iter().map(|row| row[nth].parse::<u64>().unwrap_or(0)).sum::<u64>();
        assert_eq!(sum(7), total(9) + total(12), "{name}: packets");
        assert_eq!(sum(8), total(11) + total(14), "{name}: octets");
        assert_eq!(sum(9), total(10) + total(13), "{name}: layer 2 octets");
        let values = |fields: &[usize]| {
            let values = messages.iter().flat_map(|message| fields.iter().flat_map(|field| message[*field].split(',')));
            let mut values: Vec<_> = values.filter(|value| !value.is_empty()).map(str::to_owned).collect();
            values.sort();
            values
        };
        let column = |rows: &mut Vec<Vec<String>>, nth: usize| {
            let mut values: Vec<_> =
                rows.iter().map(|row| row[nth].clone()).filter(|value| !value.is_empty()).collect();
            values.sort();
            values
        };
        assert_eq!(values(&[0, 1, 2]), column(&mut expected, 4), "{name}: sources");
        assert_eq!(values(&[3, 4, 5]), column(&mut expected, 6), "{name}: destinations");
        assert_eq!(values(&[6]), column(&mut expected, 3), "{name}: protocols");
        assert_eq!(values(&[11]), column(&mut expected, 17), "{name}: VLANs");
        let reasons = ["idle", "active", "finished", "forced", "resources"];
        let number = |reason: &String| (reasons.iter().position(|known| known == reason).unwrap() + 1).to_string();
        let mut ends: Vec<_> = column(&mut expected, 21).iter().map(number).collect();
        ends.sort();
        assert_eq!(values(&[10]), ends, "{name}: ends");
    }
}

fn rows(csv: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(csv).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

fn numbers(messages: &[Vec<String>], nth: usize) -> impl Iterator<Item = u64> {
    messages.iter().flat_map(move |message| message[nth].split(',')).filter_map(|number| number.parse().ok())
}

#[test]
fn times_and_tunnels() {
    let directory = Scratch::new();
    let read = |capture: &str, field: &str| {
        let path = tshark::capture(capture)?;
        let ipfix = directory.join("flows.ipfix");
        report(&["meter", path.to_str()?, "--virtual-cpus", "1", "--export", ipfix.to_str()?]);
        let messages = tshark::tshark(&ipfix, &[field])?;
        Some(messages.iter().map(|message| message[0].clone()).find(|value| !value.is_empty()).unwrap_or_default())
    };
    // The expected value is from `tshark -T fields -e vxlan.vni`, which prints 100 for each packet.
    let Some(segment) = read("vxlan.pcap", "cflow.layer2_segment_id") else { return };
    let expected = (1u64 << 56 | 100).to_string();
    assert!(segment.split(',').all(|id| id == expected), "{segment}");
    // The expected values are from `tshark -T fields -e geneve.vni`, which prints 0x0a and 0x0b.
    let keys = read("geneve.pcap", "cflow.pie.ntop.tunnel_id").unwrap();
    let mut keys: Vec<&str> = keys.split(',').collect();
    keys.sort_unstable();
    assert_eq!(keys, ["10", "11"]);
}

/// An IPFIX message, and its number of records.
type Counted = ((Header, Vec<Set>), usize);

/// Gives a collector's socket a receive buffer that holds all messages of a test, even if the
/// collector's thread does not run for a second.
pub(crate) fn enlarge_buffer(socket: &UdpSocket) {
    const BUFFER: usize = 8 << 20;
    // Without privileges, the kernel limits the receive buffer to twice `net.core.rmem_max`.
    if setsockopt(socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &BUFFER).unwrap();
    }
}

/// Meters synthetic packets, and exports their flows by UDP. Returns the report, the IPFIX
/// messages, and the number of flow records in all messages.
fn export_by_udp(mtu: &str) -> (Value, Vec<Counted>, usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    enlarge_buffer(&socket);
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let address = socket.local_addr().unwrap();
    let (ended, has_ended) = mpsc::channel();
    let receiver = thread::spawn(move || {
        let (mut all, mut buffer) = (Vec::new(), [0; 65_535]);
        let (mut decoder, mut flows) = (Decoder::default(), 0);
        loop {
            // On the loopback interface, the socket has every datagram that was sent before this
            // check.
            let was_over = has_ended.try_recv().is_ok();
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = messages(&buffer[..length]).remove(0);
                assert_eq!(message.0.length, length, "one message in a datagram");
                let (more, options) = decoder.records(&message.1);
                flows += more;
                all.push((message, more + options));
            }
            if was_over {
                return (all, flows);
            }
        }
    });
    let to = format!("ipfix://{address}?mtu={mtu}&refresh=50ms&domain=7&rate=20000");
    let args = ["meter", "synthetic:packets=10000,flows=10000", "--virtual-cpus", "2"];
    let report = report(&[&args[..], &["--export", &to]].concat());
    ended.send(()).unwrap();
    let (all, flows) = receiver.join().unwrap();
    (report, all, flows)
}

/// The sequence number of an IPFIX message is the number of records in all earlier messages.
#[test]
fn datagrams_fit_and_are_numbered() {
    for (mtu, most) in [("1500", 1472), ("1280", 1252)] {
        let (report, all, flows) = loop {
            let dropped = dropped_by_the_kernel();
            let (report, all, flows) = export_by_udp(mtu);
            // If other tests overflow the kernel's backlog, which drops messages, the test exports
            // again.
            if only_output(&report)["messages"] == all.len() || dropped_by_the_kernel() == dropped {
                break (report, all, flows);
            }
        };
        let mut expected = 0;
        for ((header, _), records) in &all {
            assert!(header.length <= most && (header.domain, header.sequence) == (7, expected), "{header:?}");
            expected += *records as u32;
        }
        let full = all.iter().filter(|((header, _), _)| header.length > most - 120).count();
        assert!(full > all.len() / 2, "{full} full messages of {}", all.len());
        // The exporter repeats the templates every 50 ms. The export of thousands of records, one
        // per 50 us, takes several periods of 50 ms.
        let with_templates = all.iter().filter(|((_, sets), _)| sets.iter().any(|(id, _)| *id == 2)).count();
        assert!(with_templates >= 3, "{with_templates}");
        let output = only_output(&report);
        assert_eq!((&output["written"], &output["lost"]), (&report["app"]["flows"]["total"], &0.into()), "{output}");
        assert_eq!(output["written"], flows);
        assert_eq!(output["messages"], all.len());
        assert_eq!(output["bytes"], all.iter().map(|((header, _), _)| header.length).sum::<usize>());
    }
}

/// Each TCP connection to a collector begins with templates and with new sequence numbers.
#[test]
fn a_collector_that_comes_and_goes_costs_no_packets() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (done, is_done) = mpsc::channel();
    let collector = thread::spawn(move || {
        let mut connections = Vec::new();
        // The IPFIX collector reads at least one whole message from each of the first three
        // connections.
        for taken in [20_000, 40_000, 70_000, usize::MAX] {
            let (mut stream, _) = listener.accept().unwrap();
            if taken == usize::MAX {
                done.send(()).unwrap();
            }
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while bytes.len() < taken {
                match stream.read(&mut buffer) {
                    Ok(length) if length > 0 => bytes.extend_from_slice(&buffer[..length]),
                    _ => break,
                }
            }
            connections.push(bytes);
        }
        connections
    });
    let to = format!("ipfix+tcp://{address}");
    // Each flow has a packet every 2 s and ends 1 s after its packet, so each packet becomes a
    // record.
    let device = "synthetic:flows=4000,rate=2000";
    let args = ["meter", device, "--inactive", "1", "--seconds", "0", "--virtual-cpus", "2", "--json", "--export", &to];
    let run = Started::new(&args);
    is_done.recv().unwrap();
    let report = run.stop(Signal::SIGINT);
    let connections = collector.join().unwrap();
    // On a loaded machine, a packet CPU may stop for a moment, and the source of the packets does
    // not wait for the CPU. At this rate, the backlog holds the packets of half a second.
    assert_lost_only_under_load(&report);
    assert!(10 * sum(&report["snapshot"]["dropped"]) <= report["snapshot"]["received"].as_u64().unwrap(), "{report}");
    let output = output(&report, &to);
    let [written, lost, total, made] =
        [&output["written"], &output["lost"], &report["app"]["flows"]["total"], &output["connections"]]
            .map(|n| n.as_u64().unwrap());
    assert_eq!((written + lost, made), (total, 3), "{output}");
    let mut arrived = 0;
    for bytes in &connections {
        // The decoder can read only records that follow their template in the same connection.
        let (messages, mut decoder) = (messages(bytes), Decoder::default());
        assert_eq!(messages[0].0.sequence, 0, "a connection begins anew");
        arrived += messages.iter().map(|(_, sets)| decoder.records(sets).0 as u64).sum::<u64>();
    }
    assert!(arrived > 0 && arrived <= written, "{arrived} of {written}");
}

/// No record of a capture may be lost, so a run that reads a capture does not start if no IPFIX
/// collector accepts its connection.
#[test]
fn a_collector_that_is_down() {
    // No process listens on the port of a closed socket.
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = format!("ipfix+tcp://{nowhere}");
    let live =
        ["meter", "synthetic:flows=1000,rate=50000,packets=20000", "--virtual-cpus", "2", "--json", "--export", &to];
    let run = Started::new(&live);
    let report = run.stop(Signal::SIGINT);
    let output = output(&report, &to);
    assert_eq!((&output["written"], &output["lost"]), (&0.into(), &report["app"]["flows"]["total"]), "{output}");
    assert_eq!(report["app"]["flows"]["lost"], report["app"]["flows"]["total"]);
    assert_eq!(report["snapshot"]["dropped"], serde_json::json!({}));

    let ran = crate::program::run(&["meter", "synthetic:packets=1000", "--export", &to]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = format!("steerage: cannot export flows to {to}: Connection refused");
    assert!(ran.complaint().starts_with(&expected) && ran.err.contains("start the collector"), "{ran:?}");
}

/// The kernel reports the UDP datagrams that the collector's host refuses.
#[test]
fn refused_datagrams_are_seen() {
    let nowhere: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = format!("ipfix://{nowhere}");
    let report = report(&["meter", "synthetic:packets=5000,flows=5000", "--virtual-cpus", "1", "--export", &to]);
    assert!(output(&report, &to)["refusals"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn wrong_destinations_are_2() {
    for (args, says) in [
        ("--export collector:4739", "or ipfix://HOST:PORT for a collector"),
        ("--export netflow://collector", "write ipfix://HOST:PORT"),
        ("--export ipfix://collector?mtu=9", "mtu=9"),
        ("--export -", "use --flows -"),
        ("--export a.ipfix --export a.ipfix", "twice"),
        ("--flows a.ipfix --export a.ipfix", "twice"),
        ("--export ipfix://127.0.0.1 --rotate 5m", "does not rotate"),
        ("--rotate 5m", "--export"),
    ] {
        let ran = run(&[&["meter", "synthetic:packets=1"], &args.split(' ').collect::<Vec<_>>()[..]].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{args}: {ran:?}");
        assert!(ran.complaint().contains(says), "{args}: {ran:?}");
    }
    let ran = run(&["meter", "synthetic:packets=1", "--export", "ipfix://no.such.host.invalid"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.complaint().starts_with("steerage: cannot export flows to ipfix://no.such.host.invalid:4739: "),
        "{ran:?}"
    );
}
