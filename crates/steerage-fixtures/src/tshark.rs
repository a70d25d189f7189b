//! Real captures, and what tshark says of them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;

/// Options that make tshark read each frame by itself.
const BY_ITSELF: [&str; 6] =
    ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"];

/// Protocols that are payload to us, but not to tshark: OpenFlow, a control protocol over TCP, quotes packets of other networks.
pub const PAYLOAD: [&str; 1] = ["openflow"];

/// The folder of real captures: shared/captures, beside the workspace.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures")
}

/// The captures of that folder; none, with the reason on standard error, if there is no such folder.
pub fn captures() -> Vec<PathBuf> {
    captures_in(&folder())
}

/// The same with those that show a defect which was found once.
pub fn all_captures() -> Vec<PathBuf> {
    let folder = folder();
    [captures_in(&folder), captures_in(&folder.join("repro"))].concat()
}

fn captures_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        let _ = writeln!(io::stderr(), "skipped: there is no {}", folder.display());
        return Vec::new();
    };
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(is_capture).collect();
    paths.sort();
    paths
}

/// The capture of this name in that folder; `None`, with the reason on standard error, if it is not there.
pub fn capture(name: &str) -> Option<PathBuf> {
    let path = folder().join(name);
    if !path.exists() {
        let _ = writeln!(io::stderr(), "skipped: there is no {}", path.display());
        return None;
    }
    Some(path)
}

/// The output of one of Wireshark's tools. `None` if the tool is absent; in CI a failure.
pub fn output(tool: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(tool).args(arguments).arg(file).output() else {
        skip(&format!("{tool} is absent: install the package tshark"));
        return None;
    };
    // If a capture is cut short, the tools print what there is and then fail.
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// These fields of each frame, all occurrences of each. `None` if there is no tshark; in CI a failure.
pub fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    read(file, fields, &BY_ITSELF)
}

/// The same, if tshark puts fragments and segments together.
pub fn tshark_reassembled(file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    read(file, fields, &[])
}

fn read(file: &Path, fields: &[&str], options: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut arguments = vec!["-n", "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", "-E", "aggregator=,"];
    arguments.extend(options);
    arguments.extend(fields.iter().flat_map(|field| ["-e", *field]));
    arguments.push("-r");
    let text = output("tshark", &arguments, file)?;
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}
