//! Runs the commands that docs/meter.md has for nfdump and pmacct, exactly as printed, in their own
//! network namespace. `.ci/parquet` runs the commands for DuckDB, since they need the feature
//! `parquet` and a Python package.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use steerage_fixtures::{skip, tshark};

use crate::export::directory;

const PAGE: &str = include_str!("../../../../docs/meter.md");

/// Longer than any collector takes to start, to read and to end.
const PATIENCE: &str = "30";

/// The shell commands of a section, except those that need an interface.
fn commands(heading: &str) -> String {
    let section = PAGE.split_once(&format!("\n### {heading}\n")).expect("a section").1;
    let section = section.split_once("\n### ").map_or(section, |(section, _)| section);
    let blocks = section.split("```sh\n").skip(1).map(|block| block.split_once("```").expect("an end").0);
    let lines = blocks.flat_map(str::lines).filter(|line| !line.starts_with("sudo "));
    lines.map(|line| format!("{}{line}\n", waits(line))).collect()
}

/// The commands that wait as a user would before the next command. Collectors are slower than a
/// script.
fn waits(line: &str) -> &'static str {
    if line.starts_with("steerage ") {
        // nfacctd has two processes, and each of them reports when it is ready.
        "until_true 'grep -q :1283 /proc/net/udp*'\n\
         until_true '! grep -q nfacctd log || { grep -q \"cache entries\" log && grep -q \"waiting for\" log; }'\n"
    } else if line.starts_with("kill ") && line.contains("%1") {
        // nfacctd prints its records at its end, but not those that it has only just read.
        "until_true '! grep :1283 /proc/net/udp* | grep -v :00000000'\n\
         before=$(grep -c 'Purging cache - END' log || true)\nexport before\n\
         until_true '((  $(grep -c \"Purging cache - END\" log) >= before + 2 ))'\n"
    } else if line == "cat flows.txt" {
        "until_true 'grep -q 131.151.32.21 flows.txt'\n"
    } else if line.starts_with("kill ") {
        "until_true '! grep :1283 /proc/net/udp* | grep -v :00000000'\n"
    } else if line.starts_with("nfdump ") {
        "until_true '! kill -0 $(cat nfcapd.pid 2>/dev/null || echo 0x) 2>/dev/null'\n"
    } else {
        ""
    }
}

/// Runs the commands of a section in an empty directory that has the capture. Returns their output.
fn run(heading: &str) -> Option<String> {
    let capture = tshark::capture("afs.pcap")?;
    let directory = directory(&format!("how-to-{heading}"));
    symlink(capture, directory.join("afs.pcap")).unwrap();
    symlink(env!("CARGO_BIN_EXE_steerage"), directory.join("steerage")).unwrap();
    let until = format!(
        "until_true() {{ timeout {PATIENCE} bash -c \"until $1; do sleep 0.02; done\" || {{ echo \"never: $1\" >&2; exit 1; }}; }}"
    );
    let script = format!("exec 2>log\nip link set lo up\nPATH=$PWD:$PATH\n{until}\n{}", commands(heading));
    let shell = Command::new("unshare")
        .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc", &script])
        .current_dir(&directory)
        .stdin(Stdio::null())
        .output();
    let Ok(shell) = shell.inspect_err(|error| skip(&format!("unshare: {error}"))) else { return None };
    let said = String::from_utf8_lossy(&shell.stderr).into_owned();
    if said.contains("unshare failed") {
        skip("namespaces take root");
        return None;
    }
    let log = fs::read_to_string(directory.join("log"));
    assert!(shell.status.success(), "{script}\n{shell:?}\n{log:?}");
    Some(String::from_utf8(shell.stdout).unwrap())
}

#[test]
fn how_to_nfdump() {
    if Command::new("nfdump").arg("-V").output().is_err() {
        return skip("nfdump is absent: install the package nfdump");
    }
    let Some(printed) = run("nfdump") else { return };
    // `steerage meter afs.pcap` counts 601 packets. nfdump knows only the IP packets among them.
    assert!(printed.contains("131.151.32.21") && printed.contains("total flows: 19"), "{printed}");
}

#[test]
fn how_to_pmacct() {
    if Command::new("nfacctd").arg("-V").output().is_err() {
        return skip("nfacctd is absent: install the package pmacct");
    }
    let Some(printed) = run("pmacct") else { return };
    assert!(printed.contains("SRC_IP") && printed.contains("131.151.32.21"), "{printed}");
}
