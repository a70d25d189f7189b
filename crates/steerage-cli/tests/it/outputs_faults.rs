//! Tests what happens if a write to a capture file fails. After a failed write, the file must match
//! the report, and the error must state why the write failed. The file size limit `RLIMIT_FSIZE`
//! makes the kernel fail a write.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use steerage_fixtures::scratch::Scratch;

use crate::parallel::summary;
use crate::program::{Ran, assert_balanced};

/// The unit of `ulimit -f`, in bytes (POSIX).
const BLOCK: usize = 512;

/// The number of packets. In the capture file, each packet takes a little more than one unit of
/// `ulimit`. All packets together take more than one write (256 KiB).
const PACKETS: u64 = 620;
const INPUT: &str = "synthetic:packets=620,flows=50,size=600,seed=1";

/// Returns the tested limits of the file size. Some limits make a write fail in the middle, one
/// limit is reached exactly at the end of a write, and the highest limit makes no write fail.
fn limits() -> impl Iterator<Item = usize> {
    let whole = PACKETS as usize * 640 / BLOCK + 64;
    (0..8).chain((8..whole).step_by(61)).chain([whole])
}

/// Runs the program with a limit on the size of each file, in units of `ulimit`.
fn limited(blocks: usize, args: &[&str]) -> Ran {
    let script = "trap '' XFSZ; ulimit -f $1; program=$2; shift 2; exec \"$program\" \"$@\"";
    let mut shell = Command::new("dash");
    shell.args(["-c", script, "sh", &blocks.to_string(), env!("CARGO_BIN_EXE_steerage")]).args(args);
    Ran::of(shell.output().unwrap())
}

/// Returns the number of packets in a pcap file with nanoseconds, in this machine's byte order.
fn packets_in(file: &Path) -> u64 {
    let bytes = std::fs::read(file).unwrap_or_default();
    let (mut at, mut packets) = (24, 0);
    while let Some(head) = bytes.get(at + 8..at + 12) {
        at += 16 + u32::from_ne_bytes(head.try_into().unwrap()) as usize;
        packets += 1;
    }
    assert!(bytes.is_empty() || at == bytes.len(), "the file ends in the middle of a packet");
    packets
}

#[test]
fn a_capture_file_is_whole_and_the_run_fails_at_each_fault() {
    let scratch = Scratch::new();
    let mut succeeded = 0;
    for (nth, blocks) in limits().enumerate() {
        for command in ["send", "fanout"] {
            let file = scratch.join(format!("{command}{nth}.pcap"));
            let to = format!("pcap:{}", file.display());
            let args = match command {
                "send" => vec![command, &to, INPUT, "--virtual-cpus", "1", "--json"],
                _ => vec![command, INPUT, "--to", &to, "--virtual-cpus", "1", "--json"],
            };
            let ran = limited(blocks, &args);
            if ran.out.is_empty() {
                // With the smallest limit, not even the header of the capture can be written.
                assert!(blocks == 0 && ran.complaint().contains("File too large"), "{blocks}: {ran:?}");
                assert_eq!(ran.code, Some(1), "{blocks}: {ran:?}");
                continue;
            }
            let report: Value = serde_json::from_str(&ran.out).unwrap();
            assert_balanced(&report);
            let written = report["snapshot"]["outputs"][0]["packets"].as_u64().unwrap();
            assert_eq!(packets_in(&file), written, "{blocks}: {ran:?}");
            let all = written == PACKETS;
            assert_eq!(ran.code, Some(if all { 0 } else { 1 }), "{blocks}: {ran:?}");
            assert!(all || ran.complaint().contains("File too large"), "{blocks}: {ran:?}");
            succeeded += u64::from(all);
        }
    }
    assert!(succeeded >= 2, "the last limit is enough");
}

#[test]
fn a_job_gets_its_whole_file_or_is_not_run() {
    let mut succeeded = 0;
    for blocks in limits().filter(|blocks| *blocks > 0) {
        let script = format!("exec {} count {{file}} --json --quiet", env!("CARGO_BIN_EXE_steerage"));
        let args = ["parallel", INPUT, "-j", "2", "--json", "--tag", "--", "sh", "-c", &script];
        let ran = limited(blocks, &args);
        let summary = summary(&ran);
        let count = |key: &str| summary[key].as_u64().unwrap();
        assert_eq!((count("packets"), count("delivered") + count("lost")), (PACKETS, PACKETS), "{blocks}: {summary}");
        let all = count("lost") == 0;
        assert_eq!(ran.code, Some(if all { 0 } else { 255 }), "{blocks}: {ran:?}");
        assert!(all || ran.err.lines().last().unwrap().contains("File too large"), "{blocks}: {ran:?}");
        // Each job that started must have read all packets of its input.
        let mut run = 0;
        for job in summary["jobs"].as_array().unwrap() {
            let whole = job["incomplete"].is_null();
            assert_eq!(job["exit_status"], if whole { 0.into() } else { Value::Null }, "{blocks}: {job}");
            run += usize::from(whole);
            let report = ran.out.lines().find_map(|line| line.strip_prefix(&format!("{}\t", job["job"])));
            assert_eq!(report.is_some(), whole, "{blocks}: {ran:?}");
            if let Some(report) = report {
                let report: Value = serde_json::from_str(report).unwrap();
                assert_eq!(report["snapshot"]["received"], job["packets"], "{blocks}: {ran:?}");
            }
        }
        assert_eq!(ran.out.lines().count(), run, "{blocks}: {ran:?}");
        succeeded += usize::from(all);
    }
    assert!(succeeded > 0, "the last limit is enough");
}
