//! Tests `--metrics`, the metrics that a run serves to Prometheus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;
use steerage_fixtures::exposition;

use crate::program::{Started, run};

pub(crate) const ANY: &str = "--metrics=127.0.0.1:0";

pub(crate) fn address(run: &Started) -> SocketAddr {
    let of_line =
        |line: &String| line.trim_end().strip_prefix("metrics at http://")?.strip_suffix("/metrics")?.parse().ok();
    run.said().iter().find_map(of_line).unwrap()
}

pub(crate) fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// The value of each counter lies between the values in an earlier and a later report.
#[test]
fn every_command_serves_them() {
    let file = std::env::temp_dir().join(format!("steerage-{}-metrics.pcapng", std::process::id()));
    let output = format!("pcap:{}", file.display());
    let endless = "synthetic:rate=20000,flows=50";
    let commands: [&[&str]; 4] = [
        &["count", endless, endless],
        &["meter", endless],
        &["fanout", endless, "--to", &output],
        &["send", &output, endless],
    ];
    for command in commands {
        let more = [ANY, "--virtual-cpus", "2", "--seconds", "0", "--json"];
        let mut run = Started::new(&[command, &more].concat());
        let address = address(&run);
        run.signal(Signal::SIGUSR1);
        let before: Value = serde_json::from_str(&run.line()).unwrap();
        let text = get(address);
        run.signal(Signal::SIGINT);
        let ran = run.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let after = ran.report();
        exposition::check_with_promtool(&text);
        let page = exposition::read(&text);
        let received = page.sum("steerage_received_packets_total");
        let within = |key: &str, value: f64| {
            let (least, most) = (before["snapshot"][key].as_u64().unwrap(), after["snapshot"][key].as_u64().unwrap());
            assert!((least as f64..=most as f64).contains(&value), "{key}: {least} {value} {most}");
        };
        within("received", received);
        within("delivered", page.sum("steerage_delivered_packets_total"));
        assert_eq!(page.families.contains(&"steerage_flows_active".to_owned()), command[0] == "meter");
        let sends = page.families.contains(&"steerage_output_packets_total".to_owned());
        assert_eq!(sends, ["fanout", "send"].contains(&command[0]));
        assert!(TcpStream::connect(address).is_err(), "it is served still");
    }
    std::fs::remove_file(&file).unwrap();
}

/// The port is printed even with `--quiet`, because only this line shows which port the kernel
/// chose.
#[test]
fn the_port_is_told_though_it_is_quiet() {
    let run = Started::new(&["count", "synthetic:rate=1000", ANY, "-q", "--virtual-cpus", "1", "--seconds", "0"]);
    let address = address(&run);
    assert!(get(address).contains("steerage_received_packets_total"));
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A browser that reaches this machine under the name of another site gets no metrics.
#[test]
fn a_strange_host_gets_nothing() {
    let args = ["count", "synthetic:rate=1000", ANY, "--metrics-host", "router.example", "--virtual-cpus", "1"];
    let run = Started::new(&[&args[..], &["--seconds", "0"]].concat());
    let address = address(&run);
    let ask = |host: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for host in ["router.example", &format!("Router.Example:{}", address.port()), &address.to_string(), own.trim()] {
        assert!(ask(host).starts_with("HTTP/1.1 200 OK\r\n"), "{host}");
    }
    let refused = ask("rebound.example");
    assert!(refused.starts_with("HTTP/1.1 421 ") && refused.contains("--metrics-host NAME"), "{refused}");
    assert!(!refused.contains("steerage_received"), "{refused}");
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code, Some(0));
}

#[test]
fn a_port_that_is_taken_ends_it_before_anything_else() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--metrics={}", taken.local_addr().unwrap());
    let ran = run(&["count", "no-such-file.pcap", &option]);
    let line = ran.complaint();
    assert_eq!(ran.code, Some(1));
    assert!(line.contains("cannot serve metrics at") && line.contains("choose another port"), "{line}");
}
