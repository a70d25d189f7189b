//! Runs each experiment for a short time. lab/page.py must be able to read the output.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use steerage_fixtures::namespaces::{Namespaces, address, ping};
use steerage_fixtures::{HANG, is_installed};

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steerage-lab"));
    command.args(args).stdin(Stdio::null());
    command
}

fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn page(args: &[&str]) -> Output {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.py");
    Command::new("python3").arg(page).args(args).output().unwrap()
}

/// lab/experiments.json describes all values of the output. Each compared series runs, or the
/// output states why it does not.
#[test]
fn every_experiment_runs_and_the_page_draws_it() {
    let output = lab(&["all", "scale", "--quick"]).output().unwrap();
    let lines = lines(&output);
    let described: Value = serde_json::from_str(include_str!("../../experiments.json")).unwrap();
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_else(|| panic!("{key} in {line}")).to_owned();
    let skipped: Vec<String> = lines.iter().filter_map(|line| line["skipped"].as_str().map(str::to_owned)).collect();
    let has_reason =
        |why: &String| ["take root", "takes 2 CPUs", "package iproute2"].iter().any(|known| why.contains(known));
    assert!(skipped.iter().all(has_reason), "{skipped:?}");
    let mut seen = BTreeSet::new();
    for line in lines.iter().filter(|line| line["values"].is_object()) {
        let name = text(line, "experiment");
        let about = &described[&name];
        assert_eq!(line["x"].is_number(), !text(about, "x").is_empty(), "{line}");
        let mut metrics = line["values"].as_object().unwrap().iter();
        let is_measured = |(metric, value): (&String, &Value)| {
            about["metrics"][metric].is_array() && value.as_f64().is_some_and(|value| value >= 0.0)
        };
        assert!(metrics.all(is_measured), "{line}");
        seen.insert((name, text(line, "series")));
    }
    let cpus = std::thread::available_parallelism().unwrap().get();
    let names: BTreeSet<&str> = seen.iter().map(|(name, _)| name.as_str()).collect();
    let of_peers = ["busy", "collector", "forward", "gateway", "hash", "listen", "load", "python", "rr"];
    let expected = described.as_object().unwrap().keys().filter(|name| !of_peers.contains(&name.as_str()));
    for name in expected.filter(|_| cpus == 2 && skipped.is_empty()) {
        assert!(names.contains(name.as_str()), "{name}: {names:?}");
        // Only the first series of each compared pair is checked, because the second may be that of
        // another program.
        let ours = described[name]["compared"].as_array().unwrap().iter().map(|pair| pair[0].as_str().unwrap());
        for series in ours.filter(|series| !series.starts_with("steerage ")) {
            assert!(seen.contains(&(name.clone(), series.to_owned())), "{name}: {series}");
        }
    }
    if !is_installed("python3", "python3") {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder).unwrap();
    let (runs, drawn) = (folder.join("runs.jsonl"), folder.join("page.html"));
    std::fs::write(&runs, &output.stdout).unwrap();
    let shown = page(&[runs.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(names.iter().all(|name| shown.contains(&format!("\n{name}: "))), "{shown}");
    let shown = page(&[runs.to_str().unwrap(), "-o", drawn.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let html = std::fs::read_to_string(&drawn).unwrap();
    assert!(html.matches("<svg").count() >= names.len() && html.contains("</html>"), "{html}");
}

/// A verdict needs at least three rounds.
#[test]
fn the_page_compares_within_rounds_and_keeps_near_and_far_apart() {
    if !is_installed("python3", "python3") {
        return;
    }
    let mut text = String::new();
    let mut line = |series: &str, round: usize, apart: [f64; 2], mpps: f64| {
        text += &serde_json::json!({
            "experiment": "handoff", "series": series, "x": 1, "round": round, "apart_ns": apart, "values": {"mpps": mpps},
        })
        .to_string();
        text.push('\n');
    };
    // Both rates fall from round to round, but the second rate is always 1.2 times the first.
    for round in 0..5 {
        line("forwarding, one CPU", round, [60.0, 61.0], 10.0 / (round + 1) as f64);
        line("forwarding, a collector", round, [60.0, 61.0], 12.0 / (round + 1) as f64);
    }
    line("forwarding, one CPU", 5, [200.0, 201.0], 1.0);
    line("forwarding, a collector", 5, [200.0, 201.0], 9.0);
    line("forwarding, a collector", 6, [60.0, 201.0], 9.0);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rounds.jsonl");
    std::fs::write(&file, text).unwrap();
    let shown = String::from_utf8(page(&[file.to_str().unwrap()]).stdout).unwrap();
    for said in [
        "near  1  1.20 times [1.20..1.20]",
        "far  1  too few runs (1 of 3)",
        "published: 1.43",
        "1 runs in which the CPUs moved",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn the_picture_shows_the_table() {
    if is_installed("python3", "python3") {
        let checked = page(&["--performance", "--check"]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn wrong_command_lines_are_refused() {
    for args in [
        "nonsense",
        "rps --rounds 0",
        "rps --seconds 0",
        "rps --cpus",
        "respond c0",
        "respond c0 --address 10.0.0",
        "load 127.0.0.1",
    ] {
        let output = lab(&args.split(' ').collect::<Vec<_>>()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{args}");
    }
    for (args, said) in [
        ("path --quick --cpus 0", "it takes 2 CPUs"),
        ("rps --cpus x", "the CPUs of --cpus"),
        ("load 127.0.0.1:9", "a connection: 127.0.0.1:9, with 0 connections made"),
        ("respond nowhere --address 10.0.0.2", "nowhere is no interface"),
        ("respond lo --address 127.0.0.1", "127.0.0.1 is this machine's own"),
    ] {
        let output = lab(&args.split(' ').collect::<Vec<_>>()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && err.lines().count() == 1 && err.contains(said), "{args}: {err}");
    }
}

fn respond(namespaces: &Namespaces, at: usize, device: &[&str]) -> Child {
    let host = ["--address", "10.210.0.2/24", "--rr", "5000:1:1", "--rr", "5001:20:3000", "--check-order"];
    let args = [&["respond"], device, &host].concat();
    let mut command = lab(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = namespaces.within(at, || command.spawn().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.as_mut().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// Pings the responder, then uses its echo service and its service for requests. Returns the
/// responder's counters.
fn converse(namespaces: &Namespaces, client: usize, mut child: Child) -> Value {
    namespaces.within(client, || {
        ping(address("10.210.0.2"), 500);
        let at = SocketAddr::new(address("10.210.0.2"), 7);
        let mut stream = TcpStream::connect_timeout(&at, HANG).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(b"what comes back?").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(std::io::read_to_string(&mut stream).unwrap(), "what comes back?");
    });
    // `load` fails if no transaction ends within the measured time.
    let rr = ["load", "10.210.0.2:5000", "-C", "20", "--seconds", "2", "--warm-up", "0.1"];
    let long = ["load", "10.210.0.2:5001", "-C", "20", "--request", "20", "--response", "3000", "--threads", "2"];
    let long = [&long[..], &["--seconds", "2", "--warm-up", "0.1"]].concat();
    for args in [&rr[..], &long] {
        let output = namespaces.within(client, || lab(args).output().unwrap());
        let values = &lines(&output)[0]["values"];
        assert!(values["ktps"].as_f64().unwrap() > 0.0 && values["broken"] == 0.0, "{values}");
        let times = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"].map(|key| values[key].as_f64().unwrap());
        assert!(times.is_sorted() && times[0] > 0.0, "{values}");
    }
    drop(child.stdin.take());
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    for what in ["icmp_echo", "syn", "tcp"] {
        assert!(report["served"][what].as_u64().unwrap() > 0, "{what}: {report}");
    }
    assert!(report["transactions"].as_u64().unwrap() > 0 && report["reordered"] == 0, "{report}");
    report
}

#[test]
fn respond_answers_by_each_device() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((0, "c0"), (1, "s0"));
    namespaces.address(0, 1, "c0");
    namespaces.must(0, "link set dev c0 gso_max_segs 1");
    converse(&namespaces, 0, respond(&namespaces, 1, &["s0"]));
    // Packets from the other end of a veth have no checksums.
    converse(&namespaces, 0, respond(&namespaces, 1, &["af_xdp:s0", "--trust-checksums"]));
    let tap = Namespaces::new(1).unwrap();
    let child = respond(&tap, 0, &["tap:t0"]);
    tap.address(0, 1, "t0");
    converse(&tap, 0, child);
}
