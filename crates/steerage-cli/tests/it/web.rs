//! Tests `--web`, the live page of a run, with an HTTP client. `.ci/browser` tests the page in
//! Chromium.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::until;

use crate::program::{self, Started, run};

pub(crate) const ANY: &str = "--web=127.0.0.1:0";

pub(crate) fn address(run: &Started) -> (SocketAddr, String) {
    let address = |line: &String| {
        let (address, key) = line.trim_end().strip_prefix("live page at http://")?.split_once("/#")?;
        Some((address.parse().ok()?, key.to_owned()))
    };
    run.said().iter().find_map(address).unwrap()
}

fn try_get(address: SocketAddr, path: &str, headers: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    Ok(body.to_owned())
}

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    try_get(address, path, headers).unwrap()
}

/// Requests reports until the run has ended, as a live page that is open in a browser does.
pub(crate) fn last_report(address: SocketAddr) -> Value {
    let mut last = Value::Null;
    while let Ok(text) = try_get(address, "/report", "") {
        last = serde_json::from_str(&text).unwrap();
    }
    last
}

/// Requests the report, with or without the live page's key.
pub(crate) fn report(address: SocketAddr, key: Option<&str>) -> Value {
    let header = key.map_or(String::new(), |key| format!("Authorization: Bearer {key}\r\n"));
    serde_json::from_str(&get(address, "/report", &header)).unwrap()
}

/// Only a live page that sends its key gets data about the traffic.
#[test]
fn every_command_serves_it() {
    let scratch = Scratch::new();
    let output = format!("pcap:{}", scratch.join("x.pcap").display());
    let endless = "synthetic:rate=20000,flows=50";
    let commands: [&[&str]; 5] = [
        &["count", endless],
        &["meter", endless],
        &["fanout", endless, "--to", &output],
        &["send", &output, endless],
        &["parallel", endless, "-j", "2"],
    ];
    for command in commands {
        let more: &[&str] = match command[0] {
            // `-v` must come before the `--` of `parallel`.
            "parallel" => &["-v", "--", "sh", "-c", "cat > /dev/null"],
            _ => &["-v", "--virtual-cpus", "2", "--json"],
        };
        let args = [command, &[ANY, "--seconds", "0"], more].concat();
        let run = Started::of(program::command(&args).spawn().unwrap());
        let (address, key) = address(&run);
        let mut public = Value::Null;
        until("there are packets", || {
            public = report(address, None);
            public["snapshot"]["received"].as_u64() > Some(0)
        });
        assert_eq!((&public["type"], public.get("traffic")), (&Value::from("report"), None), "{public}");
        assert!(report(address, Some(&key)).get("traffic").is_some());
        assert!(report(address, Some("0000")).get("traffic").is_none());
        assert!(get(address, "/", "").contains("<title>steerage</title>"));
        run.signal(Signal::SIGINT);
        assert_eq!(last_report(address)["ended_by"], "signal", "{command:?}");
        assert_eq!(run.end().code, Some(0), "{command:?}");
    }
}

/// The program prints the address of the live page even with `--quiet`, because only this line
/// contains the page's key.
#[test]
fn the_key_is_told_though_it_is_quiet() {
    let run = Started::new(&["count", "synthetic:rate=1000", ANY, "-q", "--virtual-cpus", "1", "--seconds", "0"]);
    let (address, key) = address(&run);
    assert!(report(address, Some(&key)).get("traffic").is_some());
    run.signal(Signal::SIGINT);
    last_report(address);
    assert_eq!(run.end().code, Some(0));
}

#[test]
fn a_port_that_is_taken_ends_it_before_anything_else() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--web={}", taken.local_addr().unwrap());
    let ran = run(&["count", "no-such-file.pcap", &option]);
    let line = ran.complaint();
    assert_eq!(ran.code, Some(1));
    assert!(line.contains("cannot serve a live page at") && line.contains("choose another port"), "{line}");
}

/// The live page of `top` shows that the run has ended, and later the next run with this control
/// socket.
#[test]
fn top_serves_the_page_of_a_run() {
    let scratch = Scratch::new();
    let socket = scratch.join("x.sock");
    let to = socket.to_str().unwrap();
    let meter = || {
        let args = ["meter", "synthetic:rate=20000,flows=50", "--virtual-cpus", "2", "--seconds", "0", "--json"];
        Started::new(&[&args[..], &["--socket", to]].concat())
    };
    let run = meter();
    let top = Started::new(&["top", ANY, "--to", to, "--interval", "50ms"]);
    let (address, key) = address(&top);
    let mut started = Vec::new();
    let mut flows_are_shown = || {
        until("the largest flows are known", || {
            let private = report(address, Some(&key));
            started.push(private["started"].clone());
            private["traffic"]["top"].is_array()
        });
        assert!(report(address, None).get("traffic").is_none());
    };
    flows_are_shown();
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code, Some(0));
    until("the page says that the run is gone", || report(address, None)["gone"].is_string());
    let run = meter();
    flows_are_shown();
    assert_ne!(started.first(), started.last());
    top.signal(Signal::SIGINT);
    assert_eq!(top.end().code, Some(0));
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code, Some(0));
}
