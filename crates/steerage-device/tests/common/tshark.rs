//! What tshark says of real captures: shared by the tests of several crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options that have each frame read by itself.
const BY_ITSELF: [&str; 6] =
    ["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-o", "tcp.desegment_tcp_streams:FALSE"];

/// What is payload to us and tshark reads on in: OpenFlow, a control protocol in TCP, quotes packets of other networks.
#[allow(dead_code, reason = "not every test that asks tshark looks into payload")]
pub(crate) const PAYLOAD: [&str; 1] = ["openflow"];

/// The captures of shared/captures, beside the workspace; none if they are not there.
pub(crate) fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures");
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: there is no {}", folder.display());
        return Vec::new();
    };
    let is_capture = |path: &PathBuf| path.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(is_capture).collect();
    paths.sort();
    paths
}

/// Of each frame these fields, all occurrences of each. `None` where there is no tshark.
pub(crate) fn tshark(file: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", "-E", "aggregator=,"])
        .args(BY_ITSELF)
        .args(fields)
        .arg("-r")
        .arg(file)
        .output();
    let Ok(output) = output else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "tshark is absent: install the package tshark");
        eprintln!("skipped: tshark is absent");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}
