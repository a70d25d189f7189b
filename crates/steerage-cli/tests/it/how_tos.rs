//! Runs the commands for nfdump and pmacct from docs/meter.md exactly as they are written, in a
//! network namespace. `.ci/parquet` runs the commands for DuckDB, which need a Python package. The
//! expected counts are from tshark.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_installed, skip, tshark};

const PAGE: &str = include_str!("../../../../docs/meter.md");

/// The time limit in seconds for the start of a collector, for reading all datagrams, and for its
/// end. Collectors need less time.
const PATIENCE: &str = "120";

/// The sections whose commands this test or `.ci/parquet` runs.
pub(crate) const SECTIONS: [&str; 3] = ["nfdump", "pmacct", "DuckDB"];

/// The two addresses of the capture's largest flow, as `tshark -T fields` prints them.
const LARGEST: [&str; 2] = ["10.20.0.45", "198.51.100.34"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

pub(crate) fn section(heading: &str) -> &'static str {
    let section = PAGE.split_once(&format!("\n### {heading}\n")).expect("a section").1;
    section.split_once("\n### ").map_or(section, |(section, _)| section)
}

/// A bash function that checks whether the collector has read all datagrams. In /proc/net/udp, the
/// lengths of the send queue and the receive queue follow the addresses.
const IS_READ: &str =
    "is_read() { ! grep -qE ':1283 .*:0000 .. [0-9A-F]+:0*[1-9A-F]' /proc/net/udp*; }\nexport -f is_read";

fn commands(heading: &str) -> String {
    let blocks = section(heading).split("```sh\n").skip(1).map(|block| block.split_once("```").expect("an end").0);
    let lines = blocks.flat_map(str::lines).filter(|line| !line.starts_with("sudo "));
    lines.map(|line| format!("{}{line}\n", waits(line))).collect()
}

/// Returns commands that wait until a slow collector is ready for `line`, a command of the page.
fn waits(line: &str) -> &'static str {
    if line.starts_with("steerage ") {
        // nfacctd has two processes, and each reports when it is ready.
        "until_true 'grep -q :1283 /proc/net/udp*'\n\
         until_true '! grep -q nfacctd log || { grep -q \"cache entries\" log && grep -q \"waiting for\" log; }'\n"
    } else if line.starts_with("kill ") && line.contains("%1") {
        // nfacctd prints its records when it ends, but not the records that it received shortly
        // before.
        "until_true is_read\n\
         before=$(grep -c 'Purging cache - END' log || true)\nexport before\n\
         until_true '((  $(grep -c \"Purging cache - END\" log) >= before + 2 ))'\n"
    } else if line == "cat flows.txt" {
        "until_true 'grep -q 198.51.100.34 flows.txt'\n"
    } else if line.starts_with("kill ") {
        "until_true is_read\n"
    } else if line.starts_with("nfdump ") {
        "until_true '! kill -0 $(cat nfcapd.pid 2>/dev/null || echo 0x) 2>/dev/null'\n"
    } else {
        ""
    }
}

fn run(heading: &str) -> Option<String> {
    let directory = Scratch::new();
    symlink(examples(), directory.join("examples")).unwrap();
    symlink(env!("CARGO_BIN_EXE_steerage"), directory.join("steerage")).unwrap();
    let until = format!(
        "until_true() {{ timeout {PATIENCE} bash -c \"until $1; do sleep 0.02; done\" || {{ echo \"never: $1\" >&2; exit 1; }}; }}"
    );
    let script = format!("exec 2>log\nip link set lo up\nPATH=$PWD:$PATH\n{until}\n{IS_READ}\n{}", commands(heading));
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

/// Returns, for each frame, the source, the destination, and the number that tshark gives to the
/// connection. All frames contain IP packets. Returns `None` if tshark is not installed.
fn frames() -> Option<Vec<Vec<String>>> {
    tshark::tshark(&examples().join("demo.pcapng"), &["ip.src", "ip.dst", "tcp.stream", "udp.stream"])
}

#[test]
fn how_to_nfdump() {
    if !is_installed("nfdump", "nfdump") {
        return;
    }
    let (Some(printed), Some(frames)) = (run("nfdump"), frames()) else { return };
    let flows: BTreeSet<[&str; 2]> = frames.iter().map(|frame| [&*frame[2], &*frame[3]]).collect();
    assert!(printed.contains(&format!("total flows: {},", flows.len())), "{printed}");
    assert!(printed.contains(LARGEST[0]) && printed.contains(LARGEST[1]), "{printed}");
}

#[test]
fn how_to_pmacct() {
    if !is_installed("nfacctd", "pmacct") {
        return;
    }
    let (Some(printed), Some(frames)) = (run("pmacct"), frames()) else { return };
    // nfacctd prints its records once per second.
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
    let header = rows.iter().find(|row| row.first() == Some(&"SRC_IP")).unwrap_or_else(|| panic!("{printed}"));
    let packets = header.iter().position(|column| *column == "PACKETS").unwrap();
    let counted = |is_counted: &dyn Fn(&[&str]) -> bool| -> usize {
        rows.iter()
            .filter(|row| row.len() == header.len() && is_counted(row))
            .filter_map(|row| row[packets].parse::<usize>().ok())
            .sum()
    };
    let of_largest = frames.iter().filter(|frame| frame[..2] == LARGEST).count();
    assert_eq!((counted(&|_| true), counted(&|row| row[..2] == LARGEST)), (frames.len(), of_largest), "{printed}");
}
