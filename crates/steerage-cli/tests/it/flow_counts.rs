//! Tests the counts of a `steerage meter` that cannot write all flow records. Each output counts
//! every record as written or lost, and its file contains exactly the written records.

use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use nix::unistd::geteuid;
use serde_json::Value;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{exposition, skip};

use crate::export::{Decoder, messages, output};
use crate::metrics;
use crate::program::{Ran, Started, command, run};

/// Checks that each output counts every flow record as written, lost or waiting, or as an active
/// flow. Returns the number of records.
fn assert_counted(report: &Value) -> u64 {
    let flows = &report["app"]["flows"];
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key} in {of}"));
    let outputs = flows["outputs"].as_array().unwrap();
    let total = count(flows, "total");
    for output in outputs {
        let settled = count(output, "written") + count(output, "lost");
        assert_eq!(total, count(flows, "active") + count(output, "waiting") + settled, "{flows}");
        assert!(report["ended_by"].is_null() || count(output, "waiting") == 0, "{flows}");
    }
    assert_eq!(count(flows, "lost"), outputs.iter().map(|output| count(output, "lost")).sum::<u64>());
    total
}

/// Returns the report, which is on standard error because the flow records go to standard output.
fn report_of(err: &str) -> Value {
    let line = err.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{err}"));
    serde_json::from_str(line).unwrap()
}

/// Returns the only file in the directory whose name begins with `name`.
fn part(directory: &Path, name: &str) -> (String, Vec<u8>) {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|file| file.starts_with(name)).collect();
    assert!(matches!(&names[..], [part] if part.ends_with(".part")), "{name}: {names:?}");
    (names[0].clone(), fs::read(directory.join(&names[0])).unwrap())
}

#[test]
fn a_full_disk_has_what_counts_as_written() {
    if !geteuid().is_root() {
        return skip("mounting takes root");
    }
    let scratch = Scratch::new();
    let (small, saved) = (scratch.join("small"), scratch.join("saved"));
    [&small, &saved].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    // The file system of each output is too small for all records.
    let names = ["a.csv", "b.jsonl", "c.ipfix"];
    let script = "cd \"$1\" && mkdir a b c || exit 99
        for each in a b c; do mount -t tmpfs -o size=300k tmpfs $each || exit 99; done
        \"$0\" meter synthetic:packets=200000,flows=50000 --virtual-cpus 2 --json \
            --flows \"$1/a/a.csv\" --export \"$1/b/b.jsonl\" --export \"$1/c/c.ipfix\"
        code=$?
        cp */* \"$2\"
        exit $code";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_steerage")])
        .args([&small, &saved])
        .output();
    let ran = Ran::of(ran.unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = ran.report();
    assert!(assert_counted(&report) > 0);
    for name in names {
        let directory = small.join(&name[..1]);
        let counts = output(&report, directory.join(name).to_str().unwrap());
        let (part, bytes) = part(&saved, name);
        let lines = || {
            assert_eq!(bytes.last(), Some(&b'\n'), "{name} ends with a whole line");
            bytes.iter().filter(|byte| **byte == b'\n').count()
        };
        let records = match name {
            "a.csv" => lines() - 1,
            "b.jsonl" => {
                let text = std::str::from_utf8(&bytes).unwrap();
                assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["first"].is_string()));
                lines()
            }
            _ => {
                let (all, mut decoder) = (messages(&bytes), Decoder::default());
                assert_eq!(all.iter().map(|(header, _)| header.length).sum::<usize>(), bytes.len());
                all.iter().map(|(_, sets)| decoder.records(sets).0).sum()
            }
        };
        assert_eq!(counts["written"], records, "{name}: {counts}");
        assert!(counts["lost"].as_u64() > Some(0) && counts["written"].as_u64() > Some(0), "{counts}");
        assert!(ran.complaint().contains(directory.join(part).to_str().unwrap()), "{ran:?}");
    }
    assert_eq!(ran.complaint().matches("No space left on device").count(), 3, "{ran:?}");
}

#[test]
fn a_full_device_has_nothing() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let args = ["meter", "synthetic:packets=50000,flows=20000", "--virtual-cpus", "2", "--flows", "-", "--json"];
    let ran = Ran::of(command(&args).stdout(Stdio::from(full)).output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = report_of(&ran.err);
    let total = assert_counted(&report);
    let counts = output(&report, "standard output");
    assert_eq!((&counts["written"], &counts["lost"]), (&0.into(), &total.into()), "{counts}");
    assert!(ran.err.contains("cannot write flows to standard output: No space left on device"), "{ran:?}");
}

/// If the disk is full, the file at standard output is cut off after the last complete line, like
/// other output files.
#[test]
fn a_full_disk_at_standard_output() {
    if !geteuid().is_root() {
        return skip("mounting takes root");
    }
    let scratch = Scratch::new();
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" || exit 99
        \"$0\" meter synthetic:packets=50000,flows=20000 --virtual-cpus 2 --json --flows - > \"$1/flows\"
        code=$?
        cat \"$1/flows\"
        exit $code";
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_steerage")]).arg(&*scratch);
    let ran = Ran::of(shell.output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let report = report_of(&ran.err);
    assert_counted(&report);
    let counts = output(&report, "standard output");
    assert!(ran.out.ends_with('\n') && counts["lost"].as_u64() > Some(0), "{counts}");
    assert_eq!(counts["written"], ran.out.lines().count(), "{counts}");
}

#[test]
fn a_reader_that_has_enough_leaves_the_rest_lost() {
    let args = ["meter", "synthetic:flows=100000", "--seconds", "0", "--max-flows", "1000", "--virtual-cpus", "1"];
    let mut run = Started::new(&[&args[..], &["--flows", "-", "--json"]].concat());
    assert!(run.line().starts_with('{'));
    let ran = run.close_out().end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = report_of(&ran.err);
    let total = assert_counted(&report);
    let counts = output(&report, "standard output");
    assert!(counts["written"].as_u64() > Some(0) && counts["lost"].as_u64() > Some(0), "{counts} {total}");
}

/// The IPFIX collector ends while the packet source waits for it, and is not started again.
#[test]
fn a_collector_that_goes_away_leaves_the_rest_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The records do not fit into the kernel's buffers (about 4 MB at the sender). When the
    // collector closes the connection, the exporter has not written all records.
    setsockopt(&listener, RcvBuf, &8192).unwrap();
    let to = format!("ipfix+tcp://{}", listener.local_addr().unwrap());
    let collector = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 20_000]).unwrap();
    });
    let source = "synthetic:packets=400000,flows=200000";
    let ran = run(&["meter", source, "--virtual-cpus", "2", "--json", "--export", &to]);
    collector.join().unwrap();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = ran.report();
    assert_counted(&report);
    let lost = output(&report, &to)["lost"].as_u64().unwrap();
    assert!(lost > 0, "{report}");
    let complaint = ran.complaint();
    assert!(complaint.contains(&format!("cannot export flows to {to}: Connection refused")), "{complaint}");
    assert!(complaint.contains(&format!("and {lost} flows were not sent")), "{complaint}");
}

/// Only an ICMP error from the collector's host shows that no program listens on the port.
#[test]
fn datagrams_that_nobody_takes_are_counted() {
    let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = format!("ipfix://{nowhere}");
    let args = ["meter", "synthetic:packets=50000,flows=20000", "--virtual-cpus", "2", "--json", "--export"];
    let ran = run(&[&args[..], &[&format!("{to}?rate=max")]].concat());
    let report = ran.report();
    assert_counted(&report);
    let counts = output(&report, &to);
    assert!(counts["refusals"].as_u64() > Some(0), "{counts}");
    assert_eq!(ran.code, Some(i32::from(counts["lost"].as_u64() > Some(0))), "{ran:?}");
}

/// Reports and metrics count every flow record exactly once. At the end, no record waits.
#[test]
fn counts_add_up_during_the_run() {
    let scratch = Scratch::new();
    let [csv, ipfix] = ["flows.csv", "flows.ipfix"].map(|name| scratch.join(name).to_str().unwrap().to_owned());
    let args = ["meter", "synthetic:flows=30000,rate=100000", "--max-flows", "2000", "--seconds", "0", "--json"];
    let args = [&args[..], &["--virtual-cpus", "2", "--flows", &csv, "--export", &ipfix, metrics::ANY]].concat();
    let mut run = Started::new(&args);
    let mut settled = 0;
    while settled < 20_000 {
        run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&run.line()).unwrap();
        assert_counted(&report);
        settled = report["app"]["flows"]["outputs"][0]["written"].as_u64().unwrap();
        let page = exposition::read(&metrics::get(metrics::address(&run)));
        let [records, written, lost, waiting] =
            ["records_total", "records_written_total", "records_lost_total", "records_waiting"]
                .map(|name| page.get(&format!("steerage_flow_{name}")));
        assert_eq!(2.0 * records, written + lost + waiting);
        assert!(written >= settled as f64, "{written} {settled}");
    }
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    assert_counted(&report);
    assert_eq!(output(&report, &csv)["written"], fs::read_to_string(&csv).unwrap().lines().count() - 1);
}
