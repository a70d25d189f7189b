//! Tests `--interval`, which prints a report of each interval. The sums over all reports must equal
//! the final report.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::program::{Started, assert_balanced, command, objects, run, sum};

/// A packet source that does not end, and is slow enough to leave CPU time for other tests.
const ENDLESS: &str = "synthetic:rate=20000,flows=50";

/// Runs a command until it has printed three reports of 10 ms. Returns all of its lines.
fn three(command: &str, more: &[&str]) -> Vec<String> {
    let args = [command, ENDLESS, "--virtual-cpus", "2", "--seconds", "0", "--interval", "10ms"];
    let mut run = Started::new(&[&args[..], more].concat());
    let mut lines: Vec<String> = (0..3).map(|_| run.line().trim_end().to_owned()).collect();
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    lines.extend(ran.out.lines().map(str::to_owned));
    lines
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn differences_add_up_to_the_report() {
    for command in ["count", "meter"] {
        let mut intervals = objects(&three(command, &["--json"]).join("\n"));
        let report = intervals.pop().unwrap();
        assert_eq!(report["type"], "report");
        assert_balanced(&report);
        assert!(intervals.iter().all(|interval| interval["type"] == "interval" && interval["schema"] == 2));

        for key in ["received", "received_bytes", "delivered"] {
            let sum: u64 = intervals.iter().map(|interval| number(interval, &format!("/difference/{key}"))).sum();
            let last = number(intervals.last().unwrap(), &format!("/total/{key}"));
            assert_eq!((sum, last), (number(&report, &format!("/snapshot/{key}")), sum), "{command}: {key}");
        }
        for cpu in 0..2 {
            let path = format!("/cpus/{cpu}/processed");
            assert_eq!(
                intervals.iter().map(|i| number(i, &path)).sum::<u64>(),
                number(&report, &format!("/snapshot{path}")),
                "{command}"
            );
        }
        let seconds: Vec<f64> = intervals.iter().map(|interval| interval["seconds"].as_f64().unwrap()).collect();
        assert!(seconds.is_sorted(), "{seconds:?}");
        let lengths: f64 = intervals.iter().map(|interval| interval["interval_seconds"].as_f64().unwrap()).sum();
        // The length of each interval is rounded to a microsecond.
        assert!((lengths - seconds.last().unwrap()).abs() < 1e-6 * (1.0 + intervals.len() as f64), "{intervals:?}");
        for interval in &intervals {
            let dropped: u64 = sum(&interval["total"]["dropped"]);
            let accounted = number(interval, "/total/delivered") + dropped + number(interval, "/in_flight");
            assert_eq!(number(interval, "/total/received"), accounted, "{interval}");
        }
    }
}

#[test]
fn a_meter_tells_how_many_flows_there_are() {
    let lines = objects(&three("meter", &["--json", "--max-flows", "20", "-t", "0"]).join("\n"));
    let (report, intervals) = lines.split_last().unwrap();
    let last = &intervals.last().unwrap()["flows"];
    let flows = &report["app"]["flows"];
    assert_eq!(last, &json!({ "active": 0, "total": flows["total"], "evicted": flows["evicted"], "lost": 0 }));
    for pair in intervals.windows(2) {
        for path in ["/flows/total", "/flows/evicted"] {
            // The program does not read all counts of flows at the same instant, so a count may be
            // too low by one for each CPU that evicts a flow.
            assert!(number(&pair[0], path) <= number(&pair[1], path) + 2, "{pair:?}");
        }
        assert!(number(&pair[0], "/flows/active") <= 20 + 2, "{pair:?}");
    }
}

/// The counts of flows are exact: all 50 flows have appeared, and none has ended.
#[test]
fn usr1_tells_of_flows_too() {
    let endless = ["meter", ENDLESS, "--virtual-cpus", "2", "--seconds", "0", "--json"];
    let mut run = Started::new(&endless);
    let flows = loop {
        run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&run.line()).unwrap();
        assert_eq!(report["ended_by"], Value::Null);
        if number(&report, "/app/flows/active") == 50 {
            break report["app"]["flows"].clone();
        }
    };
    assert_eq!(flows, json!({ "active": 50, "total": 50, "evicted": 0, "lost": 0, "outputs": [] }));
    run.signal(Signal::SIGINT);
    let last = run.end().report();
    assert_eq!((number(&last, "/app/flows/active"), number(&last, "/app/flows/total")), (0, 50));
}

#[test]
fn a_line_each_for_people() {
    let lines = three("count", &[]);
    let head = lines.iter().position(|line| line.starts_with("synthetic:")).unwrap();
    assert!(head >= 4, "{lines:?}");
    let number = |word: &str| word.replace(',', "").parse::<u64>().unwrap();
    let mut packets = 0;
    for line in &lines[..head] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words[0].len() == "2026-11-21T04:15:35.284Z".len() && words[0].ends_with('Z'), "{line}");
        // With a single packet, the report says "packet".
        let packets_word = words[2].trim_end_matches('s');
        assert_eq!((packets_word, words[4], words[8].ends_with("bit/s")), ("packet", "bytes", true), "{line}");
        packets += number(words[1]);
    }
    assert!(lines[head].contains(&format!("  {} packets  ", with_commas(packets))), "{lines:?}");

    let lossy =
        run(&["count", "synthetic:rate=1000000000,packets=10000000", "--virtual-cpus", "2", "--interval", "1h"]);
    let line = lossy.out.lines().next().unwrap();
    assert!(line.contains("  busiest CPU ") && line.contains(" %: device "), "{line}");
}

fn with_commas(number: u64) -> String {
    let digits: Vec<char> = number.to_string().chars().rev().collect();
    let parts: Vec<String> = digits.chunks(3).map(|part| part.iter().collect()).collect();
    parts.join(",").chars().rev().collect()
}

#[test]
fn beside_flows_on_standard_output_they_go_to_standard_error() {
    let args = ["meter", "synthetic:packets=1000,flows=50", "--virtual-cpus", "1", "--interval", "1h", "--json"];
    let args = [&args[..], &["--flows", "-"]].concat();
    let ran = run(&args);
    assert_eq!((ran.code, objects(&ran.out).len()), (Some(0), 50), "{ran:?}");
    let types: Vec<Value> = objects(&ran.err).iter().map(|object| object["type"].clone()).collect();
    assert_eq!(types, ["interval", "report"]);

    let quiet = run(&[&args[..], &["-q"]].concat());
    assert_eq!((quiet.code, objects(&quiet.out).len(), quiet.err.as_str()), (Some(0), 50, ""), "{quiet:?}");
}

/// Flow records go to standard output, so the requested report goes to standard error.
#[test]
fn usr1_keeps_off_the_flows() {
    let endless = ["meter", ENDLESS, "--virtual-cpus", "1", "--seconds", "0", "--flows", "-"];
    let mut run = Started::new(&[&endless[..], &["--json"]].concat());
    run.signal(Signal::SIGUSR1);
    let report: Value = serde_json::from_str(&run.error_line()).unwrap();
    assert_eq!((&report["type"], &report["ended_by"]), (&json!("report"), &Value::Null));
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert!(objects(&ran.out).iter().all(|flow| flow["kind"] == "udp"), "{ran:?}");
}

#[test]
fn quiet_is_about_standard_error_alone() {
    let ran = run(&["count", "synthetic:packets=10", "--virtual-cpus", "1", "--interval", "1h", "--json", "-q"]);
    assert_eq!((ran.err.as_str(), objects(&ran.out).len()), ("", 2), "{ran:?}");
}

/// The pipe has room for only a few lines. The last interval report covers all intervals that could
/// not be printed.
#[test]
fn a_reader_that_stalls_does_not_hold_up_the_run() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stalled-intervals");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    let flows = directory.join("flows.csv");
    let (read, write) = std::io::pipe().unwrap();
    fcntl(&write, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let args = ["meter", ENDLESS, "--virtual-cpus", "1", "--seconds", "1", "--interval", "10ms", "--json", "-t", "0"];
    let mut started = command(&[&args[..], &["--flows", flows.to_str().unwrap()]].concat());
    let mut child = started.stdout(write).spawn().unwrap();
    // Dropping `started` closes this process's copy of the pipe's writing end.
    drop(started);
    // The file of flow records gets its final name at the end of the run.
    let begun = Instant::now();
    while !flows.exists() {
        assert!(begun.elapsed() < Duration::from_secs(100), "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut lines = objects(&std::io::read_to_string(read).unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let report = lines.pop().unwrap();
    assert!(lines.len() <= 4096 / 300 + 2, "{}", lines.len());
    let received: u64 = lines.iter().map(|interval| number(interval, "/difference/received")).sum();
    assert_eq!(received, number(&report, "/snapshot/received"));
}

/// If a run ends exactly with an interval, the program reports this interval only once.
#[test]
fn the_last_interval_is_the_rest() {
    let args = ["count", ENDLESS, "--virtual-cpus", "1", "--seconds", "0.01", "--interval", "10ms", "--json"];
    let types: Vec<Value> = objects(&run(&args).out).iter().map(|object| object["type"].clone()).collect();
    assert_eq!(types, ["interval", "report"]);
}
