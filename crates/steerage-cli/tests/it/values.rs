//! Captures for which the program once printed a wrong value. tshark prints the expected values.
//! The captures are not in the repository. The unit tests of steerage-flow and steerage-meter
//! contain frames like those of the captures.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use steerage::flow::wire::FrameBuilder;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::skip;
use steerage_fixtures::tshark;

use crate::program::run;

/// Returns the flow records in the order of their first packets, or `None` if the capture does not
/// exist.
fn records(name: &str) -> Option<Vec<Value>> {
    let capture = tshark::capture(&format!("outside/{name}"))?;
    let capture = capture.to_str().unwrap();
    let scratch = Scratch::new();
    let to = scratch.join("flows.jsonl").to_str().unwrap().to_owned();
    let ran = run(&["meter", capture, "--names", "--flows", &to, "-q", "--virtual-cpus", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut records: Vec<Value> =
        fs::read_to_string(&to).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.sort_by_key(|record| record["first"].as_str().map(str::to_owned));
    Some(records)
}

/// The expected value "-" stands for no value.
fn check(name: &str, columns: &str, expected: &[&str]) {
    let Some(records) = records(name) else { return };
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let row = |record: &Value| columns.split(' ').map(|column| text(&record[column])).collect::<Vec<_>>().join(" ");
    assert_eq!(records.iter().map(row).collect::<Vec<_>>(), expected, "{name}");
}

const COUNTS: &str = "retransmitted retransmitted_back out_of_order out_of_order_back";

#[test]
fn repeated_segments() {
    check("dup-syn.pcap", COUNTS, &["1 0 0 0"]);
    check("dup-fin.pcap", COUNTS, &["1 0 0 0"]);
    check("dup-segments.pcap", COUNTS, &["3 2 0 0"]);
    check("syn-fin-twice.pcap", COUNTS, &["2 2 0 0"]);
}

#[test]
fn sequence_numbers_begin_connections() {
    let columns = format!("{COUNTS} handshake_us packets packets_back");
    check("port-reused-without-close.pcap", &columns, &["0 0 0 0 20000 5 1", "0 0 0 0 20000 10 9"]);
    check("late-syn.pcap", "source_port packets packets_back", &["80 3 5"]);
    check("clock-back-in-handshake.pcap", "handshake_us", &["-"]);
}

#[test]
fn cut_headers() {
    check("tcp-snaplen-70-ipv6.pcap", "source_port tcp_flags tcp_flags_back", &["1000 19 19"]);
}

#[test]
fn names_behind_a_beginning() {
    check("fast-open.pcap", "http_host", &["www.example.com"]);
    // tshark misses the host of the sixth request, because it does not know the method BITS_POST.
    // RFC 9110, 9.1, allows any token as a method.
    check("http-methods.pcap", "http_host", &["www.example.com"; 6]);
}

#[test]
fn doubled_fragments() {
    check("fragments-twice.pcap", "protocol source_port destination_port packets", &["17 4000 5000 4"]);
}

#[test]
fn links_and_tags() {
    check("unread-link-radiotap.pcap", "kind source destination ethertype packets", &["other - - - 1"]);
    check("pbb-vlan-1.pcap", "source vlan vlan_inner", &["10.1.1.1 1 2"]);
    check("missing-three-vlan-tags.pcap", "source source_port vlan vlan_inner", &["10.1.1.1 1111 10 20"]);
}

#[test]
fn overlays() {
    let columns = "source source_port destination_port tunnel tunnel_id";
    check("missing-mpls-pw-cw.pcap", columns, &["10.1.1.1 1111 2222 MPLS 17"]);
    check("missing-vxlan-gpe.pcap", columns, &["10.1.1.1 1111 2222 VXLAN-GPE 42"]);
}

#[test]
fn packets_without_a_time() {
    let Some(records) = records("spb-among-epb.pcapng") else { return };
    let first = records.iter().map(|record| record["first"].as_str().unwrap().get(..4).unwrap());
    assert_eq!(first.collect::<Vec<_>>(), ["2023"], "{records:?}");
}

/// If the port of VXLAN is set, `meter`, `explain` and the flow hash use the inner headers.
#[test]
fn vxlan_on_a_chosen_port() {
    let inner = FrameBuilder::udp(([10, 1, 1, 1], 1111), ([10, 1, 1, 2], 2222)).frame(b"data");
    let header = [8, 0, 0, 0, 0, 0, 42, 0];
    let outer = FrameBuilder::udp(([192, 0, 2, 1], 50_000), ([192, 0, 2, 2], 9999));
    let frame = outer.frame(&[&header[..], &inner].concat());
    let scratch = Scratch::new();
    let capture = scratch.join("vxlan.pcap");
    fs::write(&capture, pcap([(1_700_000_000, 0, &frame)])).unwrap();
    let capture = capture.to_str().unwrap();
    for (arguments, flow) in [(&[][..], "192.0.2.1:50000"), (&["--vxlan-port", "7,9999"], "10.1.1.1:1111")] {
        for command in ["meter", "explain"] {
            let ran = run(&[&[command, capture, "--virtual-cpus", "2"], arguments].concat());
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert!(ran.out.contains(flow), "{command} {flow}: {ran:?}");
        }
    }
    assert_eq!(run(&["meter", capture, "--vxlan-port", "1,2,3,4,5"]).code, Some(2));
    assert_eq!(run(&["meter", capture, "--vxlan-port", "0"]).code, Some(2));
}

/// The script `.ci/values`, which compares steerage's values with those of tshark, must report that
/// steerage fails.
#[test]
fn the_comparison_notices_failures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(root.join("tests/it/values_test.py")).arg(root.join("../../.ci/values"));
    match python.output() {
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr)),
        Err(error) => skip(&format!("no python3: {error}")),
    }
}
