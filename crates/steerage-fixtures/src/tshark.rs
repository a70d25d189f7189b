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

/// The reason that a test prints if it is skipped because it needs a real capture.
const NO_CAPTURES: &str = "the captures are not part of the repository";

/// The folder that contains real captures: shared/captures, in the directory that contains the
/// workspace.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures")
}

/// The captures in [`folder`]. If the folder of captures does not exist, the list is empty, and the
/// reason is printed to standard error.
pub fn captures() -> Vec<PathBuf> {
    captures_in(&folder())
}

/// The paths of all real captures, including captures that reproduce defects that are now fixed.
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

/// Returns the capture with this name in the folder of real captures ([`folder`]). If the capture
/// does not exist, the result is `None`, and the reason is printed to standard error.
pub fn capture(name: &str) -> Option<PathBuf> {
    let path = folder().join(name);
    if !path.exists() {
        report_skip(NO_CAPTURES);
        return None;
    }
    Some(path)
}

/// Runs one of Wireshark's command-line tools on a capture, and returns its output. If the tool is
/// not installed, returns `None`. In CI, the test then fails.
pub fn output(tool: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(tool).args(arguments).arg(file).output() else {
        skip(&format!("{tool} is absent: install the package tshark"));
        return None;
    };
    // If a capture is truncated, Wireshark's tools print the complete packets of the capture and
    // then fail.
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the values of the tshark fields `fields` of each frame, with all occurrences of each
/// field. If tshark is not installed, returns `None`. In CI, the test then fails.
pub fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    read(file, fields, &BY_ITSELF)
}

/// Does the same as [`tshark`], but the tool also reassembles IP fragments and TCP segments.
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
