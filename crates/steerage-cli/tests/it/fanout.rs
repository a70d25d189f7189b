use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, is_installed, skip, tshark};

use crate::outputs_streams::packets;
use crate::program::{Started, command, report, run, sum};

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Captures with TCP, UDP, fragments and tunnels. The captures are few, because tshark is slow.
fn captures() -> Vec<PathBuf> {
    let folder = tshark::folder();
    let names = ["afs.pcap", "dns_tcp.pcap", "mptcp-v1.pcap", "various_gre.pcap", "vxlan.pcap"];
    names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect()
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    time: String,
    /// The addresses and ports of the innermost headers, in the same order for both directions of a
    /// flow. `None` if there are no ports.
    flow: Option<[String; 4]>,
    /// The identification of the datagram to which a fragment belongs.
    datagram: Option<String>,
}

fn frames(file: &Path) -> Option<Vec<Frame>> {
    let fields = ["frame.time_epoch", "ip.src", "ip.dst", "tcp.srcport", "tcp.dstport", "udp.srcport", "udp.dstport"];
    let fragment = ["ip.id", "ip.flags.mf", "ip.frag_offset"];
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=;", "-E", "occurrence=l", "-o", "ip.defragment:FALSE"])
        .args(fields.iter().chain(&fragment).flat_map(|field| ["-e", field]))
        .arg("-r")
        .arg(file)
        .output();
    let Ok(output) = output else {
        skip("tshark is absent: install the package tshark");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().map(frame).collect())
}

fn frame(line: &str) -> Frame {
    let fields: Vec<String> = line.split(';').map(str::to_owned).collect();
    let [time, source, destination, tcp_from, tcp_to, udp_from, udp_to, id, more, offset] =
        fields.try_into().expect("as many as were asked for");
    let datagram = (more == "1" || more == "True" || !matches!(offset.as_str(), "" | "0"))
        .then(|| format!("{source} {destination} {id}"));
    let ports = if tcp_from.is_empty() { (udp_from, udp_to) } else { (tcp_from, tcp_to) };
    let (from, to) = ((source, ports.0), (destination, ports.1));
    let (low, high) = if from < to { (from, to) } else { (to, from) };
    let flow = (!low.1.is_empty() && datagram.is_none()).then_some([low.0, low.1, high.0, high.1]);
    Frame { time, flow, datagram }
}

#[test]
fn parts_of_a_capture_are_all_of_it() {
    let (mut flows, mut datagrams) = (0, 0);
    for (capture, cpus) in captures().iter().zip(["1", "3"].iter().cycle()) {
        let Some(mut all) = frames(capture) else { return };
        let to = format!("pcap:{}", place("part{0..2}.pcapng").display());
        let from = capture.to_str().unwrap();
        // With `fanout`, even a single CPU must hash packets and track fragments. Other commands
        // with only one CPU neither hash packets nor track fragments.
        let report = report(&["fanout", from, "--to", &to, "--virtual-cpus", cpus]);
        assert_eq!(report["snapshot"]["received"].as_u64(), Some(all.len() as u64));
        assert_eq!(report["snapshot"]["verdicts"]["transmitted"], report["snapshot"]["received"]);
        let mut parts = Vec::new();
        let mut parts_of_flows: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
        let mut parts_of_datagrams: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
        for nth in 0..3 {
            let part = frames(&place(&format!("part{nth}.pcapng"))).unwrap();
            assert_eq!(report["snapshot"]["outputs"][nth]["packets"].as_u64(), Some(part.len() as u64));
            for frame in &part {
                if let Some(flow) = &frame.flow {
                    parts_of_flows.entry(flow.clone()).or_default().insert(nth);
                }
                if let Some(datagram) = &frame.datagram {
                    parts_of_datagrams.entry(datagram.clone()).or_default().insert(nth);
                }
            }
            parts.extend(part);
        }
        all.sort();
        parts.sort();
        assert!(parts == all, "{from}");
        let split = |parts: &BTreeSet<usize>| parts.len() > 1;
        assert_eq!(parts_of_flows.values().filter(|parts| split(parts)).count(), 0, "{from}");
        assert_eq!(parts_of_datagrams.values().filter(|parts| split(parts)).count(), 0, "{from}");
        flows += parts_of_flows.len();
        datagrams += parts_of_datagrams.len();
    }
    assert!(captures().is_empty() || (flows > 10 && datagrams > 10), "{flows} flows, {datagrams} fragmented datagrams");
}

#[test]
fn what_would_be_overwritten_is_refused() {
    let one = place("one.pcapng");
    let synthetic = ["fanout", "synthetic:packets=10", "--to"];
    let spec = format!("pcap:{}", one.display());
    let ran = run(&[&synthetic[..], &[&spec]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.contains("\noutputs     ") && ran.out.contains(": 10 packets"), "{}", ran.out);

    let ran = run(&["fanout", one.to_str().unwrap(), "--to", &spec]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.complaint().contains("this file is an input"), "{ran:?}");
    let ran = run(&[&synthetic[..], &[&spec, "--to", &spec]].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.complaint().contains("an output already"), "{ran:?}");
    for wrong in ["eth", "pcap:", "pcap:a{1}"] {
        let ran = run(&[&synthetic[..], &[wrong]].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    let before = std::fs::read(&one).unwrap();
    let ran = run(&["fanout", "/nowhere.pcap", "--to", &spec]);
    assert_eq!((ran.code, std::fs::read(&one).unwrap()), (Some(1), before), "{ran:?}");
}

/// Returns the number of packets and the length in bytes of each capture in the directory.
fn captures_in(directory: &Path) -> BTreeMap<String, (u64, u64)> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let counted = entries.map(|entry| {
        let counted = report(&["count", entry.path().to_str().unwrap(), "--virtual-cpus", "1"]);
        let packets = counted["snapshot"]["received"].as_u64().unwrap();
        (entry.file_name().into_string().unwrap(), (packets, entry.metadata().unwrap().len()))
    });
    counted.collect()
}

/// The first packet of each period of `--rotate` begins a new file.
#[test]
fn files_rotate_by_packet_time_without_loss() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng");
    for (cpus, end) in [("1", "pcapng"), ("3", "pcapng"), ("1", "pcap")] {
        let scratch = Scratch::new();
        let to = format!("pcap:{}/%F/%H%M%S.{end}", scratch.display());
        let report = report(&["fanout", demo, "--to", &to, "--rotate", "1s", "--virtual-cpus", cpus]);
        let sent = report["snapshot"]["outputs"][0]["packets"].as_u64().unwrap();
        assert_eq!((Some(sent), &report["snapshot"]["dropped"]), (report["snapshot"]["received"].as_u64(), &json!({})));
        let day = scratch.join("2026-01-01");
        let files = captures_in(&day);
        assert!(files.len() > 1, "{files:?}");
        assert_eq!(files.values().map(|(packets, _)| packets).sum::<u64>(), sent, "{files:?}");
        if cpus == "1" {
            // One CPU handles packets in the order of the capture, so each file contains exactly
            // the packets of one `--rotate` period.
            for name in files.keys() {
                let Some(times) = tshark::tshark(&day.join(name), &["frame.time_epoch"]) else { return };
                for time in times {
                    let second: u64 = time[0].split('.').next().unwrap().parse().unwrap();
                    let (hour, minute, second) = (second / 3600 % 24, second / 60 % 60, second % 60);
                    assert_eq!(name[..6], format!("{hour:02}{minute:02}{second:02}"), "{time:?}");
                }
            }
        }
    }
}

/// Files that begin in the same second have numbers in their names. `--keep` keeps the newest
/// files, even those of an earlier run.
#[test]
fn files_rotate_by_size_and_the_newest_are_kept() {
    let scratch = Scratch::new();
    let to = format!("pcap:{}/%Y%m%d-%H%M%S.pcapng", scratch.display());
    let run = |packets: &str, more: &[&str]| {
        let args = ["fanout", packets, "--to", &to, "--rotate", "1M"];
        report(&[&args[..], &["--virtual-cpus", "2"], more].concat())
    };
    run("synthetic:packets=10000,size=600", &[]);
    let files = captures_in(&scratch);
    assert_eq!(files.values().map(|(packets, _)| packets).sum::<u64>(), 10_000, "{files:?}");
    assert!(files.len() >= 6 && files.values().all(|(_, length)| *length <= 1 << 20), "{files:?}");
    // `--keep` deletes only files whose names fit the output's pattern.
    std::fs::write(scratch.join("notes.txt"), "kept").unwrap();
    // A later run reuses the names of deleted files, so a name does not show which run wrote the
    // file.
    run("synthetic:packets=10000,size=900", &["--keep", "2"]);
    std::fs::remove_file(scratch.join("notes.txt")).unwrap();
    let kept = captures_in(&scratch);
    let is_new = |(packets, length): &(u64, u64)| length / packets > 900;
    assert!(kept.len() == 2 && kept.values().all(is_new), "{kept:?} of {files:?}");
}

#[test]
fn a_rotation_that_cannot_be_is_a_wrong_command_line() {
    for (to, wrong) in [
        ("pcap:same.pcapng --rotate 1h", "put the time in"),
        ("pcap:%Q.pcapng --rotate 1h", "%Q is no part of a time"),
        ("tap:x --rotate 1h", "only a capture file rotates"),
        ("pcap:%F.pcapng --rotate 10k", "1M or more"),
        ("pcap:%F.pcapng --rotate 0.1", "1 s or more"),
        ("pcap:%F.pcapng --keep 3", "--rotate"),
        ("pcap:%F.pcapng --rotate 1h --keep 0", "--keep"),
    ] {
        let args: Vec<&str> = ["fanout", "synthetic:packets=1", "--to"].into_iter().chain(to.split(' ')).collect();
        let ran = run(&args);
        assert!(ran.code == Some(2) && ran.err.contains(wrong), "{to}: {ran:?}");
    }
}

#[test]
fn an_output_that_fails_fails_the_run() {
    let ran = run(&["fanout", "synthetic:packets=10", "--to", "pcap:/dev/full"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.complaint().contains("No space left"), "{ran:?}");
}

/// Each program that `fanout` feeds reads from its own TAP interface.
#[test]
fn an_interface_is_dealt_out_to_taps() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let args =
        ["fanout", "near0", "-Q", "in", "-f", "udp", "--to", "tap:ids{0..2}", "--virtual-cpus", "2", "-c", "600"];
    let args = [&args[..], &["--check-order", "--json", "-v"]].concat();
    let dealing = Started::of(net.near(|| command(&args).spawn().unwrap()));
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..60).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for socket in sockets.iter().cycle().take(600) {
            // The socket is not connected, so the kernel reports no refused datagrams.
            socket.send_to(&[0; 100], (NEAR, 9)).unwrap();
        }
    });
    let ran = dealing.end();
    let report = ran.report();
    assert_eq!(
        (&report["snapshot"]["received"], &report["snapshot"]["reordered"], &report["snapshot"]["dropped"]),
        (&600.into(), &0.into(), &json!({}))
    );
    let sent: Vec<u64> = (0..3).map(|nth| report["snapshot"]["outputs"][nth]["packets"].as_u64().unwrap()).collect();
    // Each flow has ten datagrams. The probability that one of the three outputs gets none of the
    // 60 flows is 1 in 10^10.
    assert!(sent.iter().sum::<u64>() == 600 && sent.iter().all(|sent| *sent > 0 && sent % 10 == 0), "{report}");
}

/// The reader of the first output stalls. Only the first output loses packets.
#[test]
fn a_slow_output_loses_its_own_packets_only() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    const FLOWS: usize = 60;
    const EACH: usize = 200;
    let Some(net) = Net::new() else { return };
    let (slow, fast) = (place("slow"), place("fast.pcapng"));
    let _ = std::fs::remove_file(&slow);
    mkfifo(&slow, Mode::S_IRWXU).unwrap();
    let (to_slow, to_fast) = (format!("fifo:{}", slow.display()), format!("pcap:{}", fast.display()));
    // The test opens the FIFO now, but reads from it only later.
    let mut reader = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&slow).unwrap();
    let args = ["fanout", "near0", "-Q", "in", "-f", "udp", "--to", &to_slow, "--to", &to_fast, "--virtual-cpus", "2"];
    // No flow moves, and all packets fit into a backlog, so that a CPU that does not run for a moment
    // loses no packets.
    let args = [&args[..], &["--policy", "hash", "--backlog", "20000", "--check-order", "--json", "-v"]].concat();
    let mut dealing = Started::of(net.near(|| command(&args).spawn().unwrap()));
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for socket in sockets.iter().cycle().take(FLOWS * EACH) {
            // The socket is not connected, so the kernel reports no refused datagrams.
            socket.send_to(&[0; 1400], (NEAR, 9)).unwrap();
        }
    });
    // The test requests reports until all packets are handled.
    let asked = Instant::now();
    let so_far: Value = loop {
        dealing.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&dealing.line()).unwrap();
        let all = report["snapshot"]["received"].as_u64() == Some((FLOWS * EACH) as u64);
        if all && report["snapshot"]["dropped"]["tx_full"].as_u64() > Some(0) {
            break report;
        }
        assert!(asked.elapsed() < HANG, "{report}");
    };
    assert_eq!(so_far["snapshot"]["outputs"][1]["dropped"], json!({}), "{so_far}");
    dealing.signal(Signal::SIGINT);
    let mut kept = Vec::new();
    loop {
        let mut piece = [0; 1 << 16];
        match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => kept.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
    let report = dealing.end().report();
    let output = |nth: usize| -> [u64; 2] {
        let output = &report["snapshot"]["outputs"][nth];
        [output["packets"].as_u64().unwrap(), sum(&output["dropped"])]
    };
    let ([read, lost], [written, nothing]) = (output(0), output(1));
    assert_eq!((read, nothing), (packets(&kept), 0), "{report}");
    assert_eq!(read + lost + written, (FLOWS * EACH) as u64, "{report}");
    assert!(written > 0 && written % EACH as u64 == 0 && lost > 0, "{report}");
    assert_eq!(report["snapshot"]["dropped"], json!({ "tx_full": lost }), "{report}");
}
