//! Tests `-f` with capture files: every command must get the packets that `tcpdump -r FILE EXPR`
//! shows.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use steerage_fixtures::{skip, tshark};

use crate::parallel::summary;
use crate::program::{Ran, command, report, run};

/// A filter that matches some of the 601 packets of the capture. All packets of the capture differ.
const EXPRESSION: &str = "udp src port 7001 or (ip[6:2] & 0x1fff != 0)";

/// Returns the capture, and tcpdump's line for each packet that passes the filter.
fn afs() -> Option<(String, Vec<String>)> {
    let afs = tshark::capture("afs.pcap")?.to_str()?.to_owned();
    let Some(lines) = shown(&afs, EXPRESSION) else {
        skip("tcpdump is absent");
        return None;
    };
    assert!(lines.len() > 100 && lines.len() < 500, "{}", lines.len());
    Some((afs, lines))
}

/// Returns tcpdump's lines for the packets that pass the filter, sorted.
fn shown(file: &str, expression: &str) -> Option<Vec<String>> {
    let output = Command::new("tcpdump").args(["-nn", "-tt", "-xx", "-r", file, "--", expression]).output().ok()?;
    // After the first line of each packet, tcpdump prints indented lines with the packet's bytes.
    let text = String::from_utf8(output.stdout).unwrap().replace("\n\t", " ");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Some(lines)
}

fn made(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filters");
    fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

#[test]
fn count_and_meter_receive_what_passes() {
    let Some((afs, passed)) = afs() else { return };
    let counts = [json!(passed.len()), json!(601 - passed.len())];
    for command in ["count", "meter"] {
        let report = report(&[command, &afs, "-f", EXPRESSION, "--virtual-cpus", "2", "--strict"]);
        assert_eq!([&report["snapshot"]["received"], &report["capture"]["filtered"]], counts.each_ref(), "{command}");
    }
    let page = run(&["count", &afs, "-f", EXPRESSION, "--virtual-cpus", "2"]).out;
    let line = format!("filtered    {} packets that did not match -f", 601 - passed.len());
    assert!(page.lines().any(|of_page| of_page == line), "{page}");
    // `-c` counts only packets that pass the filter.
    let first = report(&["count", &afs, "-f", EXPRESSION, "--virtual-cpus", "2", "-c", "7"]);
    assert_eq!((&first["snapshot"]["received"], &first["ended_by"]), (&json!(7), &json!("packets")));
    let numbers = Command::new("tcpdump").args(["-y", "EN10MB", "-ddd", EXPRESSION]).output().unwrap().stdout;
    let path = made("numbers");
    fs::write(&path, numbers).unwrap();
    let by_numbers = report(&["count", &afs, "-f", &format!("@{}", path.display()), "--virtual-cpus", "2"]);
    assert_eq!([&by_numbers["snapshot"]["received"], &by_numbers["capture"]["filtered"]], counts.each_ref());
}

#[test]
fn a_pipe_is_filtered_too() {
    let Some((afs, passed)) = afs() else { return };
    let mut piped = command(&["count", "-", "-f", EXPRESSION, "--virtual-cpus", "1", "--json"]);
    let report = Ran::of(piped.stdin(File::open(&afs).unwrap()).output().unwrap()).report();
    assert_eq!(
        [&report["snapshot"]["received"], &report["capture"]["filtered"]],
        [&json!(passed.len()), &json!(601 - passed.len())]
    );
    // The link type of a pipe is unknown until data arrives.
    let mut cat = Command::new("cat").arg(&afs).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut piped = command(&["count", "-", "-f", EXPRESSION, "--virtual-cpus", "1", "--json"]);
    let report = Ran::of(piped.stdin(cat.stdout.take().unwrap()).output().unwrap()).report();
    cat.wait().unwrap();
    assert_eq!(
        [&report["snapshot"]["received"], &report["capture"]["filtered"]],
        [&json!(passed.len()), &json!(601 - passed.len())]
    );
}

#[test]
fn explain_looks_at_what_passes() {
    let Some((afs, passed)) = afs() else { return };
    let ran = run(&["explain", &afs, "-f", EXPRESSION, "--json"]);
    let explained: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(explained["traffic"]["packets"], passed.len(), "{ran:?}");
    let wrong = run(&["explain", "synthetic", "-f", EXPRESSION]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.complaint().contains("synthetic is neither"), "{wrong:?}");
}

#[test]
fn fanout_and_send_write_what_passes() {
    let Some((afs, passed)) = afs() else { return };
    let to: Vec<String> = ["sent", "a", "b"].map(|name| made(&format!("{name}.pcap")).display().to_string()).into();
    let pcap = |path: &String| format!("pcap:{path}");
    report(&["send", &pcap(&to[0]), &afs, "-f", EXPRESSION]);
    assert_eq!(shown(&to[0], "").unwrap(), passed);
    let both = ["--to", &pcap(&to[1]), "--to", &pcap(&to[2])];
    let split = report(&[["fanout", &afs, "-f", EXPRESSION].as_slice(), &both, &["--virtual-cpus", "2"]].concat());
    assert_eq!(split["capture"]["filtered"], 601 - passed.len());
    let mut all = [shown(&to[1], "").unwrap(), shown(&to[2], "").unwrap()].concat();
    all.sort();
    assert_eq!(all, passed);
}

#[test]
fn the_jobs_of_parallel_read_what_passes() {
    let Some((afs, passed)) = afs() else { return };
    let job = ["--", "tcpdump", "-nn", "-tt", "-xx", "-r", "-"];
    let ran = run(&[&["parallel", &afs, "-f", EXPRESSION, "-j", "2", "--json"], job.as_slice()].concat());
    let summary = summary(&ran);
    assert_eq!((&summary["packets"], &summary["filtered"]), (&json!(passed.len()), &json!(601 - passed.len())));
    let first = |lines: &[String]| {
        let mut first: Vec<String> =
            lines.iter().map(|line| line.split(" 0x0000:").next().unwrap().to_owned()).collect();
        first.sort();
        first
    };
    // If the outputs of jobs are merged line by line, the program may put lines of other jobs
    // between the lines of a packet.
    let lines: Vec<String> = ran.out.lines().filter(|line| !line.starts_with('\t')).map(str::to_owned).collect();
    assert_eq!(first(&lines), first(&passed).iter().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_compiled_is_said_before_anything_is_read() {
    let Some((afs, _)) = afs() else { return };
    for (device, text) in [(afs.as_str(), "port"), ("-", "port")] {
        let ran = run(&["count", device, "-f", text]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.complaint().contains("tcpdump refuses the filter `port`: "), "{ran:?}");
    }
}
