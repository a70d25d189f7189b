//! `steerage respond` as the host at the other end of a cable, with `steerage bench rr` as its
//! peer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};
use steerage_fixtures::namespaces::{Namespaces, address, ping, udp_exchange};
use steerage_fixtures::{HANG, exposition, is_installed};

use crate::metrics;
use crate::program::{Started, command};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const V4: &str = "10.210.0.2";
const V6: &str = "fd00:210::2";

/// Creates `c0`, whose kernel is the peer, and `s0`. No kernel has an address at `s0`.
fn cable() -> Option<Namespaces> {
    let namespaces = Namespaces::new(2)?;
    namespaces.veth((CLIENT, "c0"), (SERVER, "s0"));
    namespaces.address(CLIENT, 1, "c0");
    namespaces.must(CLIENT, "link set dev c0 gso_max_segs 1");
    Some(namespaces)
}

fn start(namespaces: &Namespaces, at: usize, more: &[&str]) -> Started {
    let host = ["--address", V4, "--address", "fd00:210::2/64", "--rr", "5000:1:1", "--rr", "5001:20:3000"];
    let args = [&["respond", "--virtual-cpus", "2", "--check-order", "--json", "-v"], &host[..], more].concat();
    Started::of(namespaces.within(at, || command(&args).spawn().unwrap()))
}

/// Acts as a peer: sends pings, uses the echo service, and sends requests with the program itself.
fn converse(namespaces: &Namespaces) {
    for to in [V4, V6] {
        namespaces.within(CLIENT, || {
            ping(address(to), 500);
            udp_exchange(SocketAddr::new(address(to), 7), 20, 100);
            let at = SocketAddr::new(address(to), 7);
            let mut stream = TcpStream::connect_timeout(&at, HANG).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            stream.write_all(b"what comes back?").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            assert_eq!(back, "what comes back?");
        });
    }
}

/// Runs a short load, and returns its report.
fn bench(namespaces: &Namespaces, at: usize, args: &[&str]) -> Value {
    let all = [&["bench", "rr"], args, &["--json", "--seconds", "0.3", "--warm-up", "0.1"]].concat();
    let output = namespaces.within(at, || command(&all).output().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["transactions"].as_u64().unwrap() > 0 && report["broken"] == json!(0), "{report}");
    let latency = &report["latency_nanos"];
    let nanos = ["p50", "p90", "p99", "p999", "max"].map(|key| latency[key].as_u64().unwrap());
    assert!(nanos.is_sorted() && nanos[0] > 0, "{report}");
    report
}

fn served(report: &Value, what: &str) -> u64 {
    report["respond"]["served"][what].as_u64().unwrap()
}

#[test]
fn by_packet_sockets() {
    let Some(namespaces) = cable() else { return };
    let started = start(&namespaces, SERVER, &["s0", metrics::ANY]);
    converse(&namespaces);
    for (port, sizes, n) in [("10.210.0.2:5000", ["1", "1"], "50"), ("[fd00:210::2]:5001", ["20", "3000"], "20")] {
        let report = bench(
            &namespaces,
            CLIENT,
            &[port, "-C", n, "--request", sizes[0], "--response", sizes[1], "--threads", "2"],
        );
        assert_eq!(report["connections"].to_string(), n);
    }
    let udp = bench(&namespaces, CLIENT, &["10.210.0.2:7", "--udp", "-C", "30"]);
    let at = metrics::address(&started);
    let text = namespaces.within(SERVER, || metrics::get(at));
    exposition::check_with_promtool(&text);
    let page = exposition::read(&text);
    let report = started.stop_at_rest();
    let respond = &report["respond"];
    for (name, count) in [
        ("respond_packets_total{fate=\"udp_echo\"}", &respond["served"]["udp_echo"]),
        ("respond_transactions_total", &respond["transactions"]),
        ("respond_tcp_bytes_total{direction=\"out\"}", &respond["tcp_bytes_out"]),
        ("respond_connections_opened_total", &respond["connections"]["opened"]),
    ] {
        let told = page.get(&format!("steerage_{name}"));
        assert!(told > 0.0 && told <= count.as_f64().unwrap(), "{name}: {told} of {count}");
    }
    for what in ["arp", "neighbour", "icmp_echo", "udp_echo", "syn", "tcp"] {
        assert!(served(&report, what) > 0, "{what}: {report}");
    }
    assert!(served(&report, "udp_echo") >= udp["transactions"].as_u64().unwrap());
    assert!(respond["connections"]["opened"].as_u64().unwrap() >= 72, "{report}");
    assert_eq!(respond["connections"]["ended"]["lost"], json!(0));
    let bytes = |key: &str| respond[key].as_u64().unwrap();
    assert!(bytes("tcp_bytes_out") > bytes("tcp_bytes_in") && bytes("transactions") > 0, "{report}");
}

/// The programs that users usually try on a host first.
#[test]
fn ping_and_nc_are_answered() {
    let Some(namespaces) = cable() else { return };
    let started = start(&namespaces, SERVER, &["s0"]);
    let asked = |line: &str| {
        let output = namespaces.within(CLIENT, || Command::new("sh").args(["-c", line]).output().unwrap());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {said} {}", String::from_utf8_lossy(&output.stderr));
        said
    };
    if is_installed("ping", "iputils-ping") {
        for line in [format!("ping -c 3 -i 0.2 {V4}"), format!("ping -6 -c 3 -i 0.2 -s 1400 {V6}")] {
            assert!(asked(&line).contains(" 0% packet loss"), "{line}");
        }
    }
    if is_installed("nc", "netcat-openbsd") {
        for to in [V4, V6] {
            assert_eq!(asked(&format!("echo what comes back | nc -N -w 30 {to} 7")), "what comes back\n");
        }
    }
    assert!(served(&started.stop_at_rest(), "neighbour") > 0);
}

#[test]
fn by_a_tap_and_by_af_xdp() {
    let Some(namespaces) = cable() else { return };
    let tap = Namespaces::new(1).unwrap();
    let started = start(&tap, CLIENT, &["tap:t0"]);
    tap.address(CLIENT, 1, "t0");
    converse(&tap);
    bench(&tap, CLIENT, &["10.210.0.2:5000", "-C", "10"]);
    assert!(served(&started.stop_at_rest(), "tcp") > 0);

    // Packets from the other end of a veth have no checksums.
    let started = start(&namespaces, SERVER, &["af_xdp:s0", "--trust-checksums"]);
    converse(&namespaces);
    bench(&namespaces, CLIENT, &["[fd00:210::2]:5000", "-C", "10"]);
    assert!(served(&started.stop_at_rest(), "tcp") > 0);
}

#[test]
fn what_cannot_be_is_refused() {
    let Some(namespaces) = cable() else { return };
    let refused = |args: &[&str], code: i32, said: &str| {
        let output = namespaces.within(CLIENT, || command(args).output().unwrap());
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && err.contains(said), "{args:?}: {err}");
    };
    refused(&["respond", "c0", "--address", "10.210.0.1"], 1, "10.210.0.1 is this machine's own");
    refused(&["respond", "c0", "lo", "--address", V4], 1, "2 devices");
    refused(&["respond", "capture.pcap", "--address", V4], 1, "nothing to answer by");
    refused(&["respond", "lo", "--address", "127.0.0.1"], 1, "no address of a host on a link");
    refused(&["respond", "c0", "--address", V4, "--address", V4], 1, "given twice");
    refused(&["respond", "c0", "--address", V4, "--rr", "7:1:1"], 1, "port 7 is given twice");
    refused(&["respond", "c0", "--address", "10.0.0"], 2, "write an address");
    refused(&["respond", "c0", "--address", V4, "--mac", "03:00:00:00:00:01"], 1, "of a group");
    refused(&["respond", "c0"], 2, "--address");
    // No server listens on this port.
    refused(&["bench", "rr", "127.0.0.1:9"], 1, "cannot connect to 127.0.0.1:9, with 0 connections made");
    refused(&["bench", "rr", "127.0.0.1"], 2, "write such as");
    refused(&["bench", "rr", "127.0.0.1:9", "--udp", "--seconds", "0.1", "--warm-up", "0.1"], 1, "no response");
}
