//! `bench report`: merges and shows measurements.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use steerage_fixtures::scratch::Scratch;

use crate::program::{Ran, command, run};

/// Writes a file into `scratch`, and returns its path.
fn write(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn sample(series: &str, value: f64) -> Value {
    json!({"experiment": "e", "series": series, "x": 20.0, "round": 0, "placement": "near", "values": {"mpps": value}})
}

/// A report of one round, as `bench --rounds 1 --json` prints it.
fn report() -> Value {
    json!({
        "schema": 1,
        "machine": {"cpu": "a CPU", "cpus": 2, "kernel": "6.1", "virtual_machine": false, "version": "0.1", "command": "bench e",
            "started": "2026-11-21T10:00:00Z", "seconds": 1.5},
        "experiments": [{"name": "e", "title": "an experiment", "question": "Does it pay?", "published": "", "x": "work, ns",
            "metrics": [{"name": "mpps", "title": "received", "unit": "Mpps", "more_is_better": true}],
            "compared": [{"of": "ours", "over": "plain", "metric": "mpps"}],
            "charts": [{"title": "Received", "kind": "bars", "metric": "mpps", "series": ["ours", "plain"]}],
            "samples": [sample("plain", 10.0), sample("ours", 20.0)], "skipped": []}],
    })
}

/// The lines of three rounds, each followed by a measurement of a peer.
fn lines() -> String {
    let turn = |peer| format!("{}\n{}\n", report(), sample("a peer", peer));
    [16.0, 15.0, 17.0].map(turn).concat()
}

fn report_on(args: &[&str]) -> Ran {
    run(&[&["bench", "report"], args].concat())
}

#[test]
fn a_peers_lines_are_folded_into_the_report() {
    let scratch = Scratch::new();
    let file = write(&scratch, "lines.jsonl", &lines());
    let ran = report_on(&[&file]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    for expected in [
        "e: an experiment",
        "a peer     3  16.00 [15.00..17.00]",
        "ours over plain, received (more is better):\n    near  20  2.00 times [2.00..2.00]\n",
        "ours over a peer, received (more is better):\n    near  20  1.25 times [1.18..1.33]\n",
    ] {
        assert!(ran.out.contains(expected), "{expected}: {}", ran.out);
    }
    assert!(ran.out.lines().all(|line| line.chars().count() <= 100), "{}", ran.out);
}

#[test]
fn a_report_in_json_can_be_read_again() {
    let scratch = Scratch::new();
    let file = write(&scratch, "lines.jsonl", &lines());
    let first = report_on(&[&file, "--json"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let rounds = |text: &str| {
        let report: Value = serde_json::from_str(text).unwrap();
        let samples = report["experiments"][0]["samples"].as_array().unwrap().clone();
        samples.iter().map(|one| (one["series"].to_string(), one["round"].as_u64().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(rounds(&first.out).len(), 9);
    assert_eq!(rounds(&first.out).iter().map(|(_, round)| round).max(), Some(&2));
    let again = write(&scratch, "again.json", &first.out);
    assert_eq!(report_on(&[&again, "--json"]).out, first.out);
    // The same report is accepted through a pipe, and with indentation.
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&first.out).unwrap()).unwrap();
    let mut child = command(&["bench", "report", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(pretty.as_bytes()).unwrap();
    let piped = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), report_on(&[&file]).out);
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let file = write(&scratch, "lines.jsonl", &lines());
    let page = write(&scratch, "page.html", "what was there before");
    let ran = report_on(&[&file, "--html", &page]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out), (Some(0), "", format!("wrote {page}\n")));
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"), "{text}");
    assert!(text.contains("ours over a peer") && text.contains("<svg"), "{text}");
    let left: Vec<_> = fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    // A device is written to, and not replaced by a regular file.
    assert_eq!(report_on(&[&file, "--html", "/dev/null"]).code, Some(0));
    assert!(!Path::new("/dev/null").is_file());
    let missing = scratch.join("missing/page.html");
    let ran = report_on(&[&file, "--html", missing.to_str().unwrap()]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.complaint().contains("cannot write it"), "{ran:?}");
}

#[test]
fn what_cannot_be_folded_is_named_with_its_place() {
    let scratch = Scratch::new();
    let after = |bad: &str| {
        let file = write(&scratch, "bad.jsonl", &format!("{}\n{bad}\n", report()));
        let ran = report_on(&[&file]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        let (_, told) = ran.complaint().split_once("bad.jsonl, ").unwrap_or_else(|| panic!("{ran:?}"));
        told.to_owned()
    };
    assert!(after("rte_ring 12.3").starts_with("line 2: this is no JSON ("));
    assert!(after("{\"series\": \"a peer\"}").starts_with("line 2: this is no sample (missing field `experiment`)"));
    let other = sample("a peer", 1.0).to_string().replace("\"e\"", "\"other\"");
    assert!(after(&other).starts_with("line 2: no report has an experiment `other`, only e: "));
    let missing = report_on(&["nowhere.json"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.complaint().contains("nowhere.json: cannot read it"), "{missing:?}");
    let alone = write(&scratch, "alone.jsonl", &sample("a peer", 1.0).to_string());
    assert!(report_on(&[&alone]).complaint().contains("no report came before this line"));
    assert_eq!(report_on(&[]).code, Some(2));
}
