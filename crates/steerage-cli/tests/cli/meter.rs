//! `steerage meter`: flows of real captures against what tshark says of them, and the files that they are written to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::program::{report, run};

/// Options that have tshark read each frame by itself.
const BY_ITSELF: [&str; 6] =
    ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"];

const FIELDS: [&str; 9] = [
    "frame.protocols",
    "frame.len",
    "ip.src",
    "ip.dst",
    "ip.len",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.plen",
    "frame.time_epoch",
];

/// Where the innermost packet ends for us and tshark reads on: what an error quotes, and OpenFlow's payload.
const PAYLOAD: [&str; 3] = ["icmp", "icmpv6", "openflow"];

/// An IPv6 header, which `ipv6.plen` does not count.
const IPV6_HEADER: u64 = 40;

/// Packets, bytes on the wire and bytes of IP, by the two addresses in order; of what has none, by none.
type Totals = BTreeMap<Option<(String, String)>, (u64, u64, u64)>;

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(is_capture).collect();
    paths.retain(|path| fs::metadata(path).unwrap().len() > 0);
    paths.sort();
    paths
}

/// `None` where there is no tshark.
fn told(file: &Path) -> Option<Totals> {
    let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", "-E", "aggregator=,"])
        .args(BY_ITSELF)
        .args(fields)
        .arg("-r")
        .arg(file)
        .output();
    let Ok(output) = output else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "tshark is absent: install the package tshark");
        return None;
    };
    let mut totals = Totals::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<&str> = line.split(';').collect();
        let layers: Vec<&str> = fields[0].split(':').take_while(|layer| !PAYLOAD.contains(layer)).collect();
        let innermost = layers.iter().rposition(|layer| matches!(*layer, "ip" | "ipv6")).map(|at| layers[at]);
        let (pair, ip_bytes) = innermost.map_or((None, 0), |layer| {
            let nth = layers.iter().filter(|other| **other == layer).count() - 1;
            let of = |field: usize| fields[field].split(',').nth(nth).unwrap_or_default().to_owned();
            let (source, destination, length) = if layer == "ip" { (2, 3, 4) } else { (5, 6, 7) };
            let (a, b) = (of(source), of(destination));
            if a.is_empty() || b.is_empty() {
                // The frame ends within the header.
                return (None, 0);
            }
            let stated: u64 = of(length).parse().unwrap();
            let header = if layer == "ip" { 0 } else { IPV6_HEADER };
            (Some(if a < b { (a, b) } else { (b, a) }), stated + header)
        });
        let total = totals.entry(pair).or_default();
        total.0 += 1;
        total.1 += fields[1].parse::<u64>().unwrap();
        total.2 += ip_bytes;
    }
    Some(totals)
}

/// The flows that are written, as JSON.
fn flows(args: &[&str]) -> Vec<Value> {
    let ran = run(&[&["meter", "--flows", "-", "--json", "-q"], args].concat());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn totals(flows: &[Value]) -> Totals {
    let mut totals = Totals::new();
    let count = |flow: &Value, key: &str| flow[key].as_u64().unwrap_or(0);
    for flow in flows {
        let is_ip = flow["kind"] != "link";
        let (a, b) = (flow["source"].as_str().unwrap().to_owned(), flow["destination"].as_str().unwrap().to_owned());
        let pair = is_ip.then(|| if a < b { (a, b) } else { (b, a) });
        let total = totals.entry(pair).or_default();
        total.0 += count(flow, "packets") + count(flow, "packets_back");
        total.1 += count(flow, "bytes") + count(flow, "bytes_back");
        total.2 += count(flow, "ip_bytes") + count(flow, "ip_bytes_back");
    }
    totals
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that tests nothing has to say so")]
fn totals_of_real_captures_are_those_that_tshark_gives() {
    let captures = captures();
    if captures.is_empty() {
        eprintln!("skipped: shared/captures is not beside the workspace");
    }
    for path in captures {
        let Some(told) = told(&path) else { return eprintln!("skipped: tshark is absent") };
        let name = path.to_str().unwrap();
        for cpus in ["1", "4"] {
            assert_eq!(totals(&flows(&[name, "--virtual-cpus", cpus])), told, "{name} on {cpus} CPUs");
        }
    }
}

/// A pcap of UDP packets over IPv4, `(second, source's last byte)` each, to 10.0.0.200 port 9.
fn written(name: &str, packets: &[(u32, u8)]) -> PathBuf {
    let mut file = Vec::new();
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    for (second, from) in packets {
        let mut frame = [0_u8; 60];
        (frame[12], frame[14], frame[17], frame[23]) = (8, 0x45, 46, 17);
        (frame[26], frame[29], frame[30], frame[33]) = (10, *from, 10, 200);
        (frame[35], frame[37], frame[39]) = (9, 9, 26);
        [*second, 0, 60, 60].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(frame);
    }
    let path = folder(name).join("in.pcap");
    fs::write(&path, file).unwrap();
    path
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("meter-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_report_tells_the_flows() {
    let path = written("report", &[(1, 1), (1, 2), (2, 2), (3, 2), (100, 1)]);
    let report = report(&["meter", path.to_str().unwrap(), "-n", "1", "--virtual-cpus", "2"]);
    // The first flow pauses for 99 s: two records.
    assert_eq!((&report["flows"]["total"], &report["flows"]["evicted"]), (&json!(3), &json!(0)), "{report}");
    let top = report["flows"]["top"].as_array().unwrap();
    assert_eq!((top.len(), &top[0]["source"], &top[0]["packets"]), (1, &json!("10.0.0.2"), &json!(3)), "{report}");
    let page = run(&["meter", path.to_str().unwrap(), "--virtual-cpus", "2"]);
    assert!(page.out.contains("3 flows (udp 3), 0 evicted"), "{page:?}");
    assert!(page.out.contains(" udp 10.0.0.2:9 > 10.0.0.200:9 "), "{page:?}");
}

#[test]
fn timeouts_end_records() {
    let path = written("timeouts", &[(1, 1), (5, 1), (9, 1), (13, 1), (40, 1)]);
    let path = path.to_str().unwrap();
    let ends = |args: &[&str]| -> Vec<(Value, Value)> {
        let flows = flows(&[&[path, "--virtual-cpus", "1"], args].concat());
        flows.into_iter().map(|flow| (flow["packets"].clone(), flow["end"].clone())).collect()
    };
    let record = |packets: u64, end: &str| (json!(packets), json!(end));
    assert_eq!(ends(&[]), [record(5, "forced")]);
    assert_eq!(ends(&["--inactive", "20"]), [record(4, "idle"), record(1, "forced")]);
    let active = ends(&["--active", "10"]);
    assert_eq!(active.iter().map(|(packets, _)| packets.as_u64().unwrap()).sum::<u64>(), 5);
    assert_eq!(active[0].1, "active", "{active:?}");
}

#[test]
fn more_flows_than_there_may_be_make_room() {
    let packets: Vec<(u32, u8)> = (1..=100).map(|from| (1, from)).collect();
    let path = written("room", &packets);
    let report = report(&["meter", path.to_str().unwrap(), "--max-flows", "10", "--virtual-cpus", "1"]);
    assert_eq!((&report["flows"]["total"], &report["flows"]["evicted"]), (&json!(100), &json!(90)), "{report}");
}

#[test]
fn files_have_their_names_once_they_are_complete() {
    // A packet a second, each of a flow that has been idle for longer than a flow may be.
    let packets: Vec<(u32, u8)> = (0..900).map(|second| (second, (second % 200) as u8)).collect();
    let path = written("files", &packets);
    let folder = path.parent().unwrap();
    let pattern = folder.join("flows-%H%M.csv");
    let args = [
        "meter",
        path.to_str().unwrap(),
        "--flows",
        pattern.to_str().unwrap(),
        "--rotate",
        "5m",
        "--virtual-cpus",
        "1",
    ];
    let ran = run(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.retain(|name| name != "in.pcap");
    assert!(names.len() > 1 && names.iter().all(|name| name.ends_with(".csv")), "{names:?}");
    let mut rows = 0;
    for name in &names {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        assert!(text.starts_with("first,last,kind,protocol,"), "{name}: {text}");
        rows += text.lines().count() - 1;
    }
    assert_eq!(rows, 900, "{names:?}");
}

#[test]
fn where_nothing_can_be_written_it_says_so() {
    let path = written("unwritable", &[(1, 1)]);
    let path = path.to_str().unwrap();
    let ran = run(&["meter", path, "--flows", "/dev/null/flows.csv"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.complaint().contains("/dev/null/flows.csv"), "{ran:?}");
    for (name, said) in [("flows.txt", ".csv"), ("flows-%Q.csv", "%Q")] {
        let ran = run(&["meter", path, "--flows", name]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.complaint().contains(said), "{ran:?}");
    }
}
