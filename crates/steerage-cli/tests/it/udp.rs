//! Tests the device `udp:ADDR:PORT`.

use std::net::UdpSocket;

use serde_json::Value;
use steerage::flow::wire::FrameBuilder;
use steerage_fixtures::namespaces::{DATAGRAM_BYTES, DATAGRAMS, MESSAGE_BYTES, Namespaces, address, cutting_socket};
use steerage_fixtures::scratch::Scratch;

use crate::program::{Started, command, run};

/// In each transfer, both ends use 127.0.0.1, or both use ::1. The test has its own network
/// namespace.
const ENDS: [&str; 2] = ["127.0.0.1", "::1"];
const PORT: u16 = 4789;

const MESSAGES: u64 = 3;

fn started(namespaces: &Namespaces, args: &[&str]) -> Started {
    let args = [args, &["--virtual-cpus", "2", "--check-order", "--json", "-v"]].concat();
    Started::of(namespaces.within(0, || command(&args).spawn().unwrap()))
}

/// Sends from one socket for each loopback address.
fn send(namespaces: &Namespaces) {
    for ip in ENDS {
        let socket = namespaces.within(0, || cutting_socket(address(ip), DATAGRAM_BYTES));
        for _ in 0..MESSAGES {
            assert_eq!(socket.send_to(&[0x5a; MESSAGE_BYTES], (address(ip), PORT)).unwrap(), MESSAGE_BYTES);
        }
    }
}

#[test]
fn flows_of_peers_have_the_packets_of_the_wire() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let scratch = Scratch::new();
    let flows = scratch.join("flows.jsonl").to_str().unwrap().to_owned();
    for device in ["udp:[::]:4789", "udp:[::]:4789,queues=2"] {
        let run = started(&namespaces, &["meter", "--flows", &flows, device]);
        send(&namespaces);
        let report = run.stop_at_rest();
        let queues = report["snapshot"]["queues"].as_array().unwrap();
        let counted =
            |name: &str| -> u64 { queues.iter().map(|queue| queue["device_counts"][name].as_u64().unwrap_or(0)).sum() };
        assert_eq!(counted("wire_packets"), 2 * MESSAGES * DATAGRAMS as u64, "{report}");
        assert_eq!((counted("truncated"), counted("bad_datagrams"), counted("socket_drops")), (0, 0, 0));
        // On the loopback interface, the kernel does not cut a super-frame into datagrams.
        assert_eq!(
            (counted("super_frames"), &report["snapshot"]["received"]),
            (2 * MESSAGES, &Value::from(2 * MESSAGES))
        );

        let text = std::fs::read_to_string(&flows).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 2, "{text}");
        // The headers of IPv4, IPv6 and UDP have 20, 40 and 8 bytes.
        for (ip, headers) in ENDS.into_iter().zip([28, 48]) {
            let row = rows.iter().find(|row| row["destination"] == ip).unwrap();
            assert_eq!((&row["destination_port"], &row["source"]), (&Value::from(PORT), &Value::from(ip)));
            let bytes = MESSAGES * (MESSAGE_BYTES as u64 + DATAGRAMS as u64 * headers);
            assert_eq!(
                (&row["packets"], &row["bytes"]),
                (&Value::from(MESSAGES * DATAGRAMS as u64), &Value::from(bytes))
            );
        }
    }
}

/// The output of the device refuses packets whose source is not the address of the device's socket.
#[test]
fn only_packets_from_the_socket_leave_by_it() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let receiver = namespaces.within(0, || UdpSocket::bind((address(ENDS[0]), 9999)).unwrap());
    receiver.set_read_timeout(Some(steerage_fixtures::HANG)).unwrap();
    let scratch = Scratch::new();
    let file = scratch.join("sent.pcap").to_str().unwrap().to_owned();
    let frame = |source_port: u16, payload: &[u8]| {
        FrameBuilder::udp(([127, 0, 0, 1], source_port), ([127, 0, 0, 1], 9999)).packet(payload)
    };
    // A pcap header for raw IP packets (LINKTYPE_RAW is 101).
    let mut capture = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101].map(u32::to_ne_bytes).concat();
    let frames = [frame(PORT, b"first"), frame(PORT + 1, b"of another port"), frame(PORT, b"second")];
    for frame in &frames {
        let len = frame.len() as u32;
        capture.extend([1, 0, len, len].map(u32::to_ne_bytes).concat());
        capture.extend(frame);
    }
    std::fs::write(&file, capture).unwrap();
    let to = "udp:127.0.0.1:4789";
    for args in [["fanout", &file, "--to", to, "--json"].as_slice(), &["send", to, &file, "--json"]] {
        let ran = namespaces.within(0, || crate::program::Ran::of(command(args).output().unwrap()));
        let report = ran.report();
        assert_eq!(report["snapshot"]["dropped"]["tx_refused"], 1, "{report}");
        assert_eq!(report["snapshot"]["outputs"][0]["packets"], 2, "{report}");
        let mut buffer = [0; 100];
        for payload in [b"first".as_slice(), b"second"] {
            let (len, from) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from.port()), (payload, PORT));
        }
    }
}

#[test]
fn mistakes_say_what_to_type() {
    for (spec, says) in [
        ("udp:4789", "write `udp:0.0.0.0:4789`"),
        ("udp:127.0.0.1:4789,queues=0", "queues"),
        ("udp:127.0.0.1:4789,speed=9", "speed"),
    ] {
        let ran = run(&["count", spec]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.complaint().contains(says), "{ran:?}");
    }
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ran = run(&["count", &format!("udp:{}", taken.local_addr().unwrap())]);
    assert!(ran.complaint().contains("choose another port"), "{ran:?}");
}
