//! Capture files: real ones where they are there, and broken ones made here.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::program::{report, run};

/// A capture of shared/captures, beside the workspace.
fn shared(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures").join(name);
    path.exists().then(|| path.to_str().unwrap().to_owned())
}

/// A pcap with `frames` of 60 bytes, cut to `length`.
fn written(name: &str, frames: u32, length: usize) -> PathBuf {
    let mut file = Vec::new();
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    for second in 0..frames {
        [second, 0, 60, 60].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend([0; 60]);
    }
    file.truncate(length);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that tests nothing has to say so")]
fn afs_is_601_packets_in_order() {
    let Some(afs) = shared("afs.pcap") else {
        eprintln!("skipped: shared/captures is not beside the workspace");
        return;
    };
    let report = report(&["count", &afs, "--virtual-cpus", "2", "--cpus", "0-1", "--check-order"]);
    // Counts by capinfos.
    let got = ["received", "received_bytes", "delivered", "reordered"].map(|key| report[key].as_u64());
    assert_eq!(got, [601, 512_276, 601, 0].map(Some));
    assert_eq!((&report["ended_by"], &report["queues"][0]["kind"]), (&json!("input"), &json!("capture")));
}

#[test]
fn a_whole_file() {
    let whole = written("whole.pcap", 100, usize::MAX);
    let report = report(&["count", whole.to_str().unwrap(), "--virtual-cpus", "4", "--strict"]);
    assert_eq!((&report["received"], &report["received_bytes"]), (&json!(100), &json!(6000)));
}

#[test]
fn a_file_that_breaks_off_is_reported_up_to_there() {
    let record = 16 + 60;
    let cut = written("cut.pcap", 3, 24 + 2 * record + 30);
    let ran = run(&["count", cut.to_str().unwrap(), "--virtual-cpus", "2", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = ran.report();
    assert_eq!((&report["received"], &report["delivered"]), (&json!(2), &json!(2)));
    assert_eq!((&report["ended_by"], &report["input"]["offset"]), (&json!("error"), &json!(24 + 2 * record)));
    let message = report["input"]["error"].as_str().unwrap();
    assert_eq!(ran.complaint(), format!("steerage: {message}"));
    assert!(message.contains("cut.pcap") && message.contains("at byte 176"), "{message}");

    let page = run(&["count", cut.to_str().unwrap(), "--virtual-cpus", "2"]);
    assert_eq!(page.code, Some(1));
    assert!(page.out.contains("received    2 = delivered 2 + dropped 0 + in flight 0\n"), "{page:?}");
}

#[test]
fn what_is_no_capture_gives_no_report() {
    let empty = written("empty.pcap", 0, 0);
    let ran = run(&["count", empty.to_str().unwrap(), "--json"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    ran.complaint();
}
