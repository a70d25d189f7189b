//! Tests with real captures if they are available, and with damaged captures.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use steerage::flow::wire::{FrameBuilder, protocol};
use steerage_fixtures::capture::pcap;
use steerage_fixtures::{is_installed, tshark};

use crate::program::{Started, command, report, run};

/// Writes a capture of frames of 60 bytes, one per second, and cuts the file to `length` bytes.
fn written(name: &str, frames: u32, length: usize) -> PathBuf {
    let mut file = pcap((0..frames).map(|second| (second, 0, [0; 60])));
    file.truncate(length);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

#[test]
fn afs_is_601_packets_in_order() {
    let Some(afs) = tshark::capture("afs.pcap") else { return };
    let afs = afs.to_str().unwrap();
    let report = report(&["count", afs, "--virtual-cpus", "2", "--cpus", "0-1", "--check-order"]);
    // The expected values are from capinfos.
    let got = ["received", "received_bytes", "delivered", "reordered"].map(|key| report["snapshot"][key].as_u64());
    assert_eq!(got, [601, 512_276, 601, 0].map(Some));
    assert_eq!((&report["ended_by"], &report["snapshot"]["queues"][0]["kind"]), (&json!("input"), &json!("capture")));
    // The expected values are from capinfos with `-T -a -e -u -s`.
    let expected = json!({
        "links": ["ethernet"],
        "first": "1999-11-11T21:46:16.463334000Z",
        "last": "1999-11-11T21:48:25.892866000Z",
        "recorded_seconds": 129.429_532,
        "filtered": 0,
        "bad_times": 0,
        "bytes_read": 521_916,
        "bytes_total": 521_916,
    });
    assert_eq!(report["capture"], expected);
    let page = run(&["count", afs, "--virtual-cpus", "2"]).out;
    let head = page.lines().next().unwrap();
    assert!(head.contains("  ethernet  601 packets  512,276 bytes  129.4 s recorded  read in "), "{head}");
}

/// Returns the number of packets and bytes that capinfos counts, or `None` if capinfos cannot read
/// the file.
fn of_capinfos(capture: &Path) -> Option<(u64, u64)> {
    let output = Command::new("capinfos").args(["-T", "-M", "-r", "-c", "-d"]).arg(capture).output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut fields = line.trim().split('\t').skip(1).map(|field| field.parse().ok());
    Some((fields.next()??, fields.next()??))
}

#[test]
fn three_commands_receive_what_capinfos_counts() {
    if !is_installed("capinfos", "tshark") {
        return;
    }
    let packed = ["w26.zst", "w27.zst"].into_iter().filter_map(|name| tshark::capture(&format!("repro/{name}")));
    // Some versions of capinfos cannot read zstd-compressed files.
    let packed = packed.filter(|capture| of_capinfos(capture).is_some());
    for capture in tshark::all_captures().into_iter().chain(packed) {
        let name = capture.to_str().unwrap();
        let expected = of_capinfos(&capture).unwrap_or_else(|| panic!("{name}"));
        for command in ["count", "meter"] {
            let report = report(&[command, name]);
            let got = ["received", "received_bytes"].map(|key| report["snapshot"][key].as_u64().unwrap());
            assert_eq!((got[0], got[1]), expected, "{command} {name}");
        }
        let explained: Value = serde_json::from_str(&run(&["explain", name, "--json"]).out).unwrap();
        let got = ["packets", "bytes"].map(|key| explained["traffic"][key].as_u64().unwrap());
        assert_eq!((got[0], got[1]), expected, "explain {name}");
    }
}

/// The compressed file needs a zstd dictionary that steerage does not have. capinfos refuses the
/// file, too.
#[test]
fn three_commands_name_the_dictionary_that_a_file_needs() {
    let Some(capture) = tshark::capture("repro/dict.zst") else { return };
    for command in ["count", "meter", "explain"] {
        let ran = run(&[command, capture.to_str().unwrap()]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.complaint().contains("it was packed with dictionary 420616711: unpack it with zstd -dc -D "));
    }
}

#[test]
fn several_files_are_one_capture() {
    let (a, b) = (written("a.pcap", 10, usize::MAX), written("b.pcap", 20, usize::MAX));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let all = report(&["count", a, b, a, "--virtual-cpus", "2", "--strict"]);
    assert_eq!((&all["snapshot"]["received"], &all["snapshot"]["queues"].as_array().unwrap().len()), (&json!(40), &1));
    assert_eq!(all["snapshot"]["queues"][0]["device"], format!("{a} {b} and 1 more"));
    // `-c` limits the packets of all devices together.
    let all = report(&["count", a, "synthetic:packets=1000", b, "--virtual-cpus", "2", "-c", "500"]);
    assert_eq!((&all["snapshot"]["received"], &all["snapshot"]["queues"].as_array().unwrap().len()), (&json!(500), &2));
    let paced = report(&["count", a, "--pace", "1000000", "--virtual-cpus", "1"]);
    assert_eq!((&paced["snapshot"]["received"], &paced["capture"]["recorded_seconds"]), (&json!(10), &json!(9.0)));
}

#[test]
fn standard_input_is_read_as_it_comes() {
    let file = fs::read(written("piped.pcap", 300, usize::MAX)).unwrap();
    let mut child = command(&["count", "-", "--virtual-cpus", "2", "--json"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    file.chunks(97).for_each(|piece| pipe.write_all(piece).unwrap());
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["snapshot"]["received"], &report["capture"]["bytes_total"]),
        (&json!(300), &json!(null)),
        "{report}"
    );
    assert_eq!((output.status.code(), &report["snapshot"]["queues"][0]["device"]), (Some(0), &json!("standard input")));

    let nothing = run(&["count", "-"]);
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.complaint().contains("standard input: cannot read the capture at byte 0: the file is empty"));
}

#[test]
fn a_silent_pipe_does_not_hold_up_the_stop() {
    let mut child =
        command(&["count", "-", "--virtual-cpus", "2", "--json", "-v"]).stdin(Stdio::piped()).spawn().unwrap();
    let pipe = child.stdin.take();
    let run = Started::of(child);
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!((ran.code, &ran.report()["ended_by"]), (Some(0), &json!("signal")));
    drop(pipe);
}

#[test]
fn a_whole_file() {
    let whole = written("whole.pcap", 100, usize::MAX);
    let report = report(&["count", whole.to_str().unwrap(), "--virtual-cpus", "4", "--strict"]);
    assert_eq!((&report["snapshot"]["received"], &report["snapshot"]["received_bytes"]), (&json!(100), &json!(6000)));
}

#[test]
fn a_file_that_breaks_off_is_reported_up_to_there() {
    let record = 16 + 60;
    let cut = written("cut.pcap", 3, 24 + 2 * record + 30);
    let ran = run(&["count", cut.to_str().unwrap(), "--virtual-cpus", "2", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report = ran.report();
    assert_eq!((&report["snapshot"]["received"], &report["snapshot"]["delivered"]), (&json!(2), &json!(2)));
    assert_eq!(
        (&report["ended_by"], &report["snapshot"]["queues"][0]["error"]["offset"]),
        (&json!("error"), &json!(24 + 2 * record))
    );
    let message = report["snapshot"]["queues"][0]["error"]["message"].as_str().unwrap();
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

/// 64 flows in one tunnel are spread by default. With `--outer`, the whole tunnel is one flow.
#[test]
fn a_tunnel_can_stay_together() {
    let file = pcap((0..64_u8).map(|flow| {
        let inner = FrameBuilder::udp(([192, 0, 2, flow], 7), ([192, 0, 2, 200], 9)).packet(&[]);
        let frame = FrameBuilder::ip([10, 0, 0, 1], [10, 0, 0, 2], protocol::IPV4).frame(&inner);
        (0, 0, frame)
    }));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tunnel.pcap");
    fs::write(&path, file).unwrap();
    let cpus_at_work = |more: &[&str]| {
        // With a fixed key, each run steers the flows to the same CPUs.
        let args = ["count", path.to_str().unwrap(), "--virtual-cpus", "4", "--hash", "toeplitz", "--policy", "hash"];
        let report = report(&[&args[..], more].concat());
        let cpus = report["snapshot"]["cpus"].as_array().unwrap();
        cpus.iter().filter(|cpu| cpu["processed"].as_u64().unwrap() > 0).count()
    };
    assert_eq!((cpus_at_work(&[]), cpus_at_work(&["--outer"])), (4, 1));
}

/// gzip(1) and tshark also read exactly 5 packets.
#[test]
fn bytes_after_compressed_data_are_named_on_standard_error() {
    let Some(path) = tshark::capture("outside/gzip-trailing-zeros.pcapng.gz") else { return };
    let path = path.to_str().unwrap();
    let ran = run(&["count", path, "--virtual-cpus", "1", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, report["snapshot"]["received"].as_u64()), (Some(0), Some(5)));
    assert!(ran.err.starts_with(&format!("steerage: {path}: the last ")), "{}", ran.err);
    assert!(ran.err.ends_with(" bytes are not compressed data and were ignored\n"), "{}", ran.err);
}
