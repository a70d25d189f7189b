//! Finds real captures, and returns the output of tshark for a capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{report_skip, skip};

const BY_ITSELF: [&str; 6] =
    ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"];

/// Protocols that tshark dissects, but that steerage treats as payload. OpenFlow is a control
/// protocol over TCP whose messages contain packets of other networks.
pub const PAYLOAD: [&str; 1] = ["openflow"];

const NO_CAPTURES: &str = "the captures are not part of the repository";

/// The folder of real captures: shared/captures, beside the workspace.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures")
}

/// Returns the captures in [`folder`]. If the folder is missing, prints why and returns an empty
/// list.
pub fn captures() -> Vec<PathBuf> {
    captures_in(&folder())
}

/// Returns the captures of [`captures`], and the captures that reproduce fixed defects.
pub fn all_captures() -> Vec<PathBuf> {
    let folder = folder();
    [captures_in(&folder), captures_in(&folder.join("repro"))].concat()
}

fn captures_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        report_skip(NO_CAPTURES);
        return Vec::new();
    };
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(is_capture).collect();
    paths.sort();
    paths
}

/// Returns the capture with this name in [`folder`]. If the capture is missing, prints why and
/// returns `None`.
pub fn capture(name: &str) -> Option<PathBuf> {
    let path = folder().join(name);
    if !path.exists() {
        report_skip(NO_CAPTURES);
        return None;
    }
    Some(path)
}

/// Returns the output of a Wireshark tool. `None` if the tool is not installed (in CI, the test
/// fails).
pub fn output(tool: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(tool).args(arguments).arg(file).output() else {
        skip(&format!("{tool} is absent: install the package tshark"));
        return None;
    };
    // For a truncated capture, Wireshark's tools print the complete packets and then fail.
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the values of `fields` of each frame. `None` if tshark is not installed (in CI, the test
/// fails).
pub fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    read(file, fields, &BY_ITSELF)
}

/// Like [`tshark`], but reassembles IP fragments and TCP segments.
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
