//! Tests `steerage explain`, which describes flows and packets, and whether the traffic can be
//! spread over CPUs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use steerage::flow::wire::FrameBuilder;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::{is_installed, tshark};

use crate::program::{assert_balanced, run};

pub(crate) const KEY: &str = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa";

pub(crate) fn explained(args: &[&str]) -> Value {
    let ran = run(&[&["explain"], args, &["--json"]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// A UDP frame of 60 bytes from 10.0.0.`from` to 10.0.0.`to`, with port 9 on both sides.
pub(crate) fn udp(from: u8, to: u8) -> Vec<u8> {
    FrameBuilder::udp(([10, 0, 0, from], 9), ([10, 0, 0, to], 9)).frame_of(60)
}

fn written(name: &str, packets: &[(u8, u8)]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, pcap(packets.iter().map(|(from, to)| (0, 0, udp(*from, *to))))).unwrap();
    path
}

#[test]
fn a_flow_and_its_way_back_go_to_one_cpu() {
    let there = explained(&["tcp 10.0.0.1:5 > 10.0.0.2:80", "--hash-key", KEY]);
    let words = explained(&["tcp", "10.0.0.1:5", ">", "10.0.0.2:80", "--hash-key", KEY]);
    assert_eq!(words["flow"], there["flow"]);
    let half = run(&["explain", "tcp", "10.0.0.1:5"]);
    assert_eq!(half.code, Some(2));
    assert!(half.complaint().contains("steerage explain 'tcp 10.0.0.1:5 > ADDRESS:PORT'"), "{half:?}");
    let back = explained(&["tcp 10.0.0.2:80 > 10.0.0.1:5", "--hash-key", KEY]);
    assert_eq!(there["flow"]["flow"], "tcp 10.0.0.1:5 > 10.0.0.2:80");
    for field in ["key", "hash", "bucket", "cpus"] {
        assert_eq!(there["flow"][field], back["flow"][field], "{field}");
    }
    assert_eq!(there["random_hash_key"], false);
    let bucket = there["flow"]["bucket"].as_u64().unwrap();
    assert_eq!(there["flow"]["cpus"]["8"], json!(bucket * 8 / 4096));
}

#[test]
fn without_packets_there_are_no_tables() {
    let path = written("no-packets.pcap", &[]);
    let ran = run(&["explain", path.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("  0 packets  0 bytes  0 flows\n"), "{}", ran.out);
    assert!(ran.out.contains("\nno packets, so there is no advice: "), "{}", ran.out);
    assert!(!ran.out.contains(" % ") && !ran.out.contains("packet 1"), "{}", ran.out);
}

/// A test vector of Microsoft's "RSS hash verification suite". steerage hashes the endpoint with
/// the lower address as the source.
#[test]
fn toeplitz_is_that_of_network_cards() {
    let explained = explained(&["tcp 66.9.149.187:2794 > 161.142.100.80:1766", "--hash", "toeplitz"]);
    assert_eq!((&explained["flow"]["hash"], &explained["random_hash_key"]), (&json!("0x51ccc178"), &json!(false)));
}

#[test]
fn a_flow_that_is_none_is_a_wrong_command_line() {
    for (text, said) in [
        ("http 10.0.0.1:5 > 10.0.0.2:80", "no such protocol"),
        ("tcp 10.0.0.1:5 > 10.0.0.2", "both have a port"),
        ("tcp 10.0.0.1:5 > [fd00::1]:5", "both are IPv4"),
        ("a > b", "no such protocol"),
    ] {
        let ran = run(&["explain", text]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{text}");
        assert!(ran.complaint().contains(said), "{ran:?}");
    }
}

#[test]
fn a_packet_is_taken_apart() {
    let path = written("explain.pcap", &[(1, 2), (2, 1), (3, 4)]);
    let path = path.to_str().unwrap();
    let third = explained(&[path, "--packet", "3", "--hash-key", KEY]);
    let packet = &third["traffic"]["packet"];
    assert_eq!((&packet["number"], &packet["length"], &packet["end"]), (&json!(3), &json!(60), &json!("complete")));
    assert_eq!(packet["flow"], "udp 10.0.0.3:9 > 10.0.0.4:9");
    let headers: Vec<_> = packet["headers"].as_array().unwrap().iter().map(|h| (&h["kind"], &h["offset"])).collect();
    assert_eq!(headers, [(&json!("Ethernet"), &json!(0)), (&json!("IPv4"), &json!(14)), (&json!("UDP"), &json!(34))]);

    let named = explained(&["udp 10.0.0.3:9 > 10.0.0.4:9", "--hash-key", KEY]);
    assert_eq!(named["flow"]["bucket"], packet["bucket"]);
    // The capture has only three packets.
    assert!(explained(&[path, "--packet", "4"])["traffic"]["packet"].is_null());
}

/// If a part of a packet is missing or was not parsed, `explain` says so in words, and prints no
/// empty fields and no zeros.
#[test]
fn what_is_not_there_or_not_read_is_said() {
    let page = |path: &Path, args: &[&str]| {
        let ran = run(&[&["explain", path.to_str().unwrap()], args].concat());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        ran.out
    };
    let plain = written("explain-few.pcap", &[(1, 2), (2, 1), (3, 4)]);
    assert!(page(&plain, &["--packet", "9"]).contains("\npacket 9   there are only 3 packets\n"));

    // The captures contain USB packets, which the program does not parse, and frames without any
    // bytes.
    let usb = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-usb.pcap");
    let mut file = pcap((0..20).map(|_| (0, 0, [1; 64])));
    file[20] = 220;
    fs::write(&usb, file).unwrap();
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-empty.pcap");
    fs::write(&empty, pcap((0..20).map(|_| (0, 0, [])))).unwrap();
    for (path, what, why) in [
        (usb, "packets of a link type that is not read", "64 bytes; no header was read: a link type that is not read"),
        (empty, "empty packets", "0 bytes; no header was read: cut off within a header"),
    ] {
        let text = page(&path, &[]);
        for line in [format!("packet 1   {why}"), format!("flow       {what}"), format!("key        {what}")] {
            assert!(text.lines().any(|of_page| of_page == line), "{line}: {text}");
        }
        assert!(text.contains(&format!("100.0 %    {what}, 20 packets")), "{text}");
        // Packets that cannot be parsed share a bucket, but are not a flow.
        assert!(!text.contains("00:00:00") && !text.contains("bytes ,") && !text.contains("\nelephants: "), "{text}");
        assert!(text.contains("\nnot IP: 100.0 % "), "{text}");
    }
}

/// A packet in an IPv4-in-IPv4 tunnel has an inner and an outer header.
#[test]
fn a_tunnel_goes_by_its_inner_flow_or_its_outer() {
    let path = written("explain-tunnel.pcap", &[(1, 2)]);
    let mut file = fs::read(&path).unwrap();
    let frame = 24 + 16;
    file[frame + 23] = 4;
    let inner = file[frame + 14..frame + 34].to_vec();
    file[frame + 34..frame + 54].copy_from_slice(&inner);
    (file[frame + 34 + 9], file[frame + 34 + 15], file[frame + 34 + 19]) = (50, 3, 4);
    fs::write(&path, file).unwrap();
    let path = path.to_str().unwrap();
    for (args, flow) in [(&[][..], "esp 10.0.0.3 > 10.0.0.4"), (&["--outer"], "protocol-4 10.0.0.1 > 10.0.0.2")] {
        let explained = explained(&[&[path, "--hash-key", KEY], args].concat());
        let packet = &explained["traffic"]["packet"];
        assert_eq!(packet["flow"], flow);
        let named = self::explained(&[flow, "--hash-key", KEY]);
        assert_eq!(named["flow"]["bucket"], packet["bucket"], "{flow}");
    }
}

#[test]
fn one_large_flow_is_an_elephant() {
    let mut packets = vec![(1, 2); 30];
    packets.extend([(2, 1); 10]);
    packets.extend((3..63).map(|from| (from, 200)));
    let path = written("elephant.pcap", &packets);
    let explained = explained(&[path.to_str().unwrap()]);
    let traffic = &explained["traffic"];
    assert_eq!((&traffic["packets"], &traffic["bytes"], &traffic["flows"]), (&json!(100), &json!(6000), &json!(61)));
    // The output of `explain` contains the packet counts that a run's report contains.
    assert_balanced(&json!({ "ended_by": "input", "snapshot": explained["snapshot"] }));
    assert_eq!(explained["snapshot"]["received"], 100);
    let largest = &traffic["largest"][0];
    assert_eq!((&largest["flow"], &largest["packets"]), (&json!("udp 10.0.0.1:9 > 10.0.0.2:9"), &json!(40)));
    assert_eq!(largest["two_way"], true);
    assert!(traffic["notes"][0].as_str().unwrap().starts_with("elephants: 1 flow has "), "{traffic}");
    for spread in traffic["spread"].as_array().unwrap() {
        assert!(spread["busiest_packets"].as_f64().unwrap() >= 0.4, "{spread}");
    }
}

#[test]
fn a_file_that_breaks_off_is_explained_up_to_there() {
    let path = written("explain-cut.pcap", &[(1, 2), (2, 1), (3, 4)]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let ran = run(&["explain", path.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("  2 packets  120 bytes  1 flow\n"), "{ran:?}");
    assert!(ran.complaint().contains("at byte"), "{ran:?}");
    let ran = run(&["explain", "no-such-file.pcap"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    ran.complaint();
}

#[test]
fn every_capture_is_explained() {
    let has_capinfos = is_installed("capinfos", "tshark");
    for path in tshark::all_captures() {
        let name = path.to_str().unwrap();
        let ran = run(&["explain", name, "--json"]);
        if fs::metadata(&path).unwrap().len() == 0 {
            assert_eq!(ran.code, Some(1), "{ran:?}");
            continue;
        }
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        let explained: Value = serde_json::from_str(&ran.out).unwrap();
        if has_capinfos {
            let counted = Command::new("capinfos").args(["-TrmMc", name]).output().unwrap();
            let counted = String::from_utf8(counted.stdout).unwrap();
            let counted: u64 = counted.trim().rsplit(',').next().unwrap().parse().unwrap();
            assert_eq!(explained["traffic"]["packets"], json!(counted), "{name}");
        }
    }
}
