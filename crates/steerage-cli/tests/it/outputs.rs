//! Tests outputs to capture files and FIFOs, while disks are full, readers are slow or missing, or
//! another user has created links. The counts in the report must match the contents of the files.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};
use steerage_fixtures::capture::whole_packets;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_installed, is_root, skip};

use crate::program::{Ends, Started, assert_balanced, command, report, run};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the number of packets in the file, which must be complete.
fn capinfos(file: &Path) -> Option<u64> {
    let Ok(output) = Command::new("capinfos").args(["-c", "-M", "-T", "-r"]).arg(file).output() else {
        skip("capinfos is absent: install the package tshark");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    let out = String::from_utf8(output.stdout).unwrap();
    Some(out.trim().rsplit('\t').next().unwrap().parse().unwrap_or_else(|_| panic!("{out}")))
}

/// Returns the number of packets in the file, which must be complete.
fn count(file: &Path) -> Value {
    report(&["count", text(file), "--virtual-cpus", "1"])["snapshot"]["received"].clone()
}

/// Opens a new FIFO, without reading anything yet.
fn reader(pipe: &Path) -> File {
    mkfifo(pipe, Mode::S_IRWXU).unwrap();
    File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(pipe).unwrap()
}

fn drain(pipe: &mut File) -> Vec<u8> {
    let mut all = Vec::new();
    match pipe.read_to_end(&mut all) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => panic!("{error}"),
        _ => all,
    }
}

/// Requests reports until `reached` returns true.
fn wait_until(run: &mut Started, what: &str, mut reached: impl FnMut(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&run.line()).unwrap();
        assert_balanced(&report);
        if reached(&report) {
            return report;
        }
        assert!(start.elapsed() < HANG, "{what}: {report}");
    }
}

#[test]
fn a_full_disk_holds_as_many_packets_as_are_reported() {
    if !is_root() {
        return;
    }
    let directory = Scratch::new();
    let (small, saved) = (directory.join("small"), directory.join("saved"));
    [&small, &saved].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    // Two outputs share a file system with too little space for either output.
    let script = "mount -t tmpfs -o size=1m tmpfs \"$1\" || exit 99
        \"$0\" fanout synthetic:packets=40000,flows=300 --virtual-cpus 2 --json \
            --to \"pcap:$1/a.pcapng\" --to \"pcap:$1/b.pcapng\" --to \"pcap:$2/c.pcapng\"
        code=$?
        cp \"$1\"/* \"$2\"
        exit $code";
    let program = env!("CARGO_BIN_EXE_steerage");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, program, text(&small), text(&saved)])
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_balanced(&report);
    assert_eq!(report["snapshot"]["in_flight"], 0);
    let lost: u64 =
        ["tx_full", "tx_refused", "tx_lost"].iter().filter_map(|why| report["snapshot"]["dropped"][why].as_u64()).sum();
    assert!(lost > 0 && report["snapshot"]["dropped"]["tx_lost"].as_u64() > Some(0), "{report}");
    assert_eq!(report["snapshot"]["delivered"].as_u64().unwrap() + lost, 40_000);
    // Each file contains all packets that the report counts.
    assert_eq!(err.lines().count(), 1, "{err}");
    for (nth, name) in ["a.pcapng", "b.pcapng", "c.pcapng"].iter().enumerate() {
        let output = &report["snapshot"]["outputs"][nth];
        assert_eq!(output["error"].is_null(), nth == 2, "{output}");
        assert_eq!(err.contains(name), nth < 2, "{err}");
        let file = saved.join(name);
        assert_eq!(count(&file), output["packets"], "{output}");
        assert!(capinfos(&file).is_none_or(|packets| output["packets"] == packets), "{output}");
        assert!(output["packets"].as_u64() > Some(1000), "{output}");
    }
}

#[test]
fn a_stuck_output_loses_only_its_own_and_a_stop_completes_the_others() {
    let directory = Scratch::new();
    let (pipe, file) = (directory.join("pipe"), directory.join("file.pcapng"));
    let mut stuck = reader(&pipe);
    let to = [&pipe, &file].map(|path| format!("pcap:{}", path.display()));
    let from = "synthetic:rate=50000,flows=300,size=1500";
    let args = ["fanout", from, "--to", &to[0], "--to", &to[1], "--virtual-cpus", "2", "--seconds", "0", "--json"];
    let mut run = Started::new(&args);
    // A report during the run already shows the losses of a blocked output.
    let before = wait_until(&mut run, "drops", |report| {
        report["snapshot"]["outputs"][0]["dropped"]["tx_full"].as_u64() > Some(0)
    });
    assert_eq!(before["snapshot"]["outputs"][1]["dropped"], json!({}));
    let written = before["snapshot"]["outputs"][1]["packets"].as_u64();
    wait_until(&mut run, "the other output", |report| report["snapshot"]["outputs"][1]["packets"].as_u64() > written);
    run.signal(Signal::SIGTERM);
    let ran = run.end();
    let report = ran.report();
    assert_eq!(
        (ran.code, &report["ended_by"], &report["snapshot"]["in_flight"]),
        (Some(1), &json!("signal"), &json!(0))
    );
    let complaint = ran.err.lines().last().unwrap();
    assert!(complaint.contains("pipe: cannot write to: its reader takes nothing any more"), "{complaint}");
    assert!(report["snapshot"]["dropped"]["tx_lost"].as_u64() > Some(0), "{report}");
    assert_eq!(report["snapshot"]["outputs"][0]["packets"], whole_packets(&drain(&mut stuck)));
    assert_eq!(report["snapshot"]["outputs"][1]["packets"], count(&file));
    assert!(capinfos(&file).is_none_or(|packets| report["snapshot"]["outputs"][1]["packets"] == packets));
}

/// Synthetic traffic without a rate can pause, so the run loses no packets although the reader
/// starts late.
#[test]
fn a_slow_fanout_output_slows_a_file_and_loses_nothing() {
    let directory = Scratch::new();
    let (pipe, file, copy) = (directory.join("pipe"), directory.join("file.pcapng"), directory.join("copy.pcapng"));
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let to = [&pipe, &file].map(|path| format!("pcap:{}", path.display()));
    let args = [
        "fanout",
        "synthetic:packets=100000,flows=300,size=1500",
        "--to",
        &to[0],
        "--to",
        &to[1],
        "--virtual-cpus",
        "2",
    ];
    let mut child = command(&[&args[..], &["--json", "-v"]].concat());
    // `open` returns only after the program has opened the other end of the FIFO.
    let child = child.spawn().unwrap();
    let mut slow = File::open(&pipe).unwrap();
    let mut run = Started::of(child);
    // From a source that can wait, a CPU puts at most 8 MiB into its output buffer, half of the
    // CPU's share. The 75 MB of packets for the FIFO do not fit into the buffer.
    wait_until(&mut run, "a full buffer", |report| {
        report["snapshot"]["outputs"][0]["held"].as_u64() > Some((7 << 20) / 1500)
    });
    std::io::copy(&mut slow, &mut File::create(&copy).unwrap()).unwrap();
    let ran = run.end();
    let report = ran.report();
    assert_eq!(
        (ran.code, &report["snapshot"]["dropped"], &report["snapshot"]["delivered"]),
        (Some(0), &json!({}), &json!(100_000)),
        "{ran:?}"
    );
    assert_eq!(
        [&report["snapshot"]["outputs"][0]["packets"], &report["snapshot"]["outputs"][1]["packets"]],
        [&count(&copy), &count(&file)]
    );
}

#[test]
fn a_fifo_without_a_reader_is_waited_for_and_that_is_said() {
    let directory = Scratch::new();
    let pipe = directory.join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let to = format!("pcap:{}", pipe.display());
    for stop in [true, false] {
        let args = ["fanout", "synthetic:packets=100", "--to", &to, "--json", "--virtual-cpus", "1"];
        let mut child = Ends(command(&args).spawn().unwrap());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        assert_eq!(line, format!("waiting for a reader of {} (FIFO)\n", pipe.display()));
        if stop {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
            let status = child.wait().unwrap();
            assert!(!status.success() || status.signal().is_some(), "{status}");
        } else {
            let mut all = Vec::new();
            File::open(&pipe).unwrap().read_to_end(&mut all).unwrap();
            assert_eq!((whole_packets(&all), child.wait().unwrap().code()), (100, Some(0)));
        }
    }
}

/// In a directory for all users, another user has created links with the names of the files that a
/// run of root writes.
#[test]
fn planted_links_lead_nowhere() {
    if !is_root() {
        return;
    }
    let directory = Scratch::new();
    let (common, target) = (directory.join("common"), directory.join("target"));
    fs::create_dir(&common).unwrap();
    fs::set_permissions(&common, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(&target, "untouched").unwrap();
    let names = ["flows.csv", "flows.csv.part", "capture.pcapng", "steerage.1"];
    for name in names {
        symlink(&target, common.join(name)).unwrap();
        lchown(common.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let name = |name: &str| common.join(name).to_str().unwrap().to_owned();
    let synthetic = "synthetic:packets=1000,flows=10";
    let to = format!("pcap:{}", name("capture.pcapng"));
    for (args, made, mode) in [
        (&["meter", synthetic, "--flows", &name("flows.csv")][..], "flows.csv", 0o640),
        (&["fanout", synthetic, "--to", &to], "capture.pcapng", 0o640),
        (&["man", "--out", &name("")], "steerage.1", 0o644),
    ] {
        let ran = run(args);
        assert_eq!(fs::read_to_string(&target).unwrap(), "untouched", "{args:?}");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let there = fs::symlink_metadata(common.join(made)).unwrap();
        assert!(there.is_file() && there.uid() == 0 && there.mode() & 0o777 & !mode == 0, "{there:?}");
    }
    assert!(fs::symlink_metadata(common.join("flows.csv.part")).unwrap().is_symlink(), "nobody has touched it");
}

/// If nobody reads the output, the handler waits until it can write a flow record, because
/// synthetic traffic without a rate can pause.
#[test]
fn a_cpu_that_does_not_return_is_shown() {
    let from = "synthetic:flows=100000";
    let meter = ["meter", from, "--flows", "-", "--max-flows", "100", "--virtual-cpus", "1", "--seconds", "0"];
    let mut run = Started::new(&[&meter[..], &["--json"]].concat());
    let start = Instant::now();
    loop {
        run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&run.error_line()).unwrap();
        if report["snapshot"]["cpus"][0]["handler_seconds"].as_f64() >= Some(1.0) {
            break;
        }
        assert!(start.elapsed() < HANG, "{report}");
    }
    let mut run = Started::new(&meter);
    let start = Instant::now();
    loop {
        run.signal(Signal::SIGUSR1);
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !line.starts_with("memory")) {
            lines.push(run.error_line());
        }
        if lines.iter().any(|line| line.starts_with("stuck       CPU 0 has not returned for ")) {
            break;
        }
        assert!(start.elapsed() < HANG, "{lines:?}");
    }
}

/// A file with a name in `.pcap` has the classic pcap format, and every other capture file is
/// pcapng. A file without packets is a valid capture.
#[test]
fn the_name_chooses_the_format() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, magic) in [("named.pcap", [0x4d, 0x3c, 0xb2, 0xa1]), ("named.pcapng", [0x0a, 0x0d, 0x0d, 0x0a])] {
        let path = directory.join(name);
        let to = format!("pcap:{}", path.display());
        for packets in ["1", "100"] {
            let ran = run(&["send", &to, &format!("synthetic:packets={packets}")]);
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
        assert_eq!(fs::read(&path).unwrap()[..4], magic, "{name}");
        assert_eq!(report(&["count", path.to_str().unwrap(), "--virtual-cpus", "1"])["snapshot"]["received"], 100);
        let none = directory.join(format!("none-{name}"));
        let ran = run(&["send", &format!("pcap:{}", none.display()), path.to_str().unwrap(), "-f", "tcp port 1"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(report(&["count", none.to_str().unwrap(), "--virtual-cpus", "1"])["snapshot"]["received"], 0);
    }
}
