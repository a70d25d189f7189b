//! Signals and closed pipes: how a run is asked for a report, and how it ends before its time.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{Started, assert_balanced, command};

/// Traffic without an end, and slow enough that it takes no CPU from the other tests.
const ENDLESS: [&str; 6] = ["count", "synthetic:rate=20000,queues=2", "--virtual-cpus", "2", "--seconds", "0"];

fn endless(more: &[&str]) -> Started {
    Started::new(&[&ENDLESS, more].concat())
}

fn parse(line: &str) -> Value {
    let report = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_balanced(&report);
    report
}

#[test]
fn usr1_reports_and_goes_on() {
    let mut run = endless(&["--json"]);
    let mut received = 0;
    // Until packets have come between two reports.
    while received == 0 {
        run.signal(Signal::SIGUSR1);
        let report = parse(&run.line());
        assert_eq!((&report["type"], &report["ended_by"]), (&"report".into(), &Value::Null));
        received = report["received"].as_u64().unwrap();
    }
    run.signal(Signal::SIGINT);
    let ran = run.end();
    let report = ran.report();
    assert_eq!((ran.code, &report["ended_by"]), (Some(0), &"signal".into()));
    assert!(report["received"].as_u64().unwrap() >= received);
}

#[test]
fn int_and_term_end_a_run_well() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let run = endless(&["--json", "--strict"]);
        run.signal(signal);
        let ran = run.end();
        let report = ran.report();
        assert_eq!((ran.code, &report["ended_by"]), (Some(0), &"signal".into()), "{ran:?}");
        assert_eq!((&report["in_flight"], &report["reordered"]), (&0.into(), &0.into()));
    }
}

#[test]
fn a_report_for_people_while_it_runs_says_so() {
    let mut run = endless(&[]);
    run.signal(Signal::SIGUSR1);
    let head = run.line();
    assert!(head.starts_with("synthetic:rate=20000,queues=2  ") && head.contains("so far, in "), "{head}");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.end().code, Some(0));
}

/// The report is too long for the pipe, and nobody reads it: so the program hangs in its last write.
#[test]
fn a_second_int_quits_whatever_hangs() {
    let many = ["count", "synthetic:rate=1", "--virtual-cpus", "500", "--backlog", "16", "--seconds", "0", "--json"];
    let mut run = Started::new(&many);
    run.signal(Signal::SIGINT);
    assert_eq!(run.byte(), b'{');
    run.signal(Signal::SIGINT);
    assert_eq!(run.end_unread(), Some(130));
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let mut child = command(&["count", "-c", "1000", "--virtual-cpus", "2"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_report_that_nobody_reads_ends_the_run() {
    let mut run = endless(&[]).close_out();
    run.signal_to_death(Signal::SIGUSR1);
    let ran = run.end();
    assert_eq!(ran.code, Some(0));
    assert!(!ran.err.contains("steerage: "), "{ran:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["count", "-c", "1000", "--virtual-cpus", "2"]).stdout(full).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err.starts_with("steerage: cannot write the report") && err.lines().count() == 1, "{err}");
}
