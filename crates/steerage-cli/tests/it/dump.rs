//! `steerage dump` copies the packets of a run for root and the user of the run. The run never
//! waits for a reader.

use std::fs;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::thread::{self, JoinHandle};

use nix::sys::signal::Signal;
use serde_json::json;
use steerage_control::{Client, ClientError};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::capture::{pcap, whole_packets};
use steerage_fixtures::namespaces::bind_when_free;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::tshark::tshark;
use steerage_fixtures::{NOBODY, is_root, until};

use crate::live::start;
use crate::program::{Ends, Ran, Started, command, run};

/// The filter `udp`, as `tcpdump -ddd` prints it. A filter that is already compiled needs no
/// tcpdump.
const UDP: &str = "4,48 0 0 23,21 0 1 17,6 0 0 262144,6 0 0 0";

/// A run that reads a capture from a pipe, so that the test decides when packets arrive.
struct Fed {
    run: Started,
    input: ChildStdin,
    socket: String,
}

impl Fed {
    fn new(scratch: &Scratch, cpus: &str) -> Self {
        let socket = scratch.join("fed.sock").to_str().unwrap().to_owned();
        let args = ["count", "-", "--virtual-cpus", cpus, "--socket", &socket, "--json", "-v"];
        let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&pcap::<[u8; 0]>([])).unwrap();
        Self { run: Started::of(child), input, socket }
    }

    /// The timestamps of the packets are 1 s, 2 s, and so on.
    fn feed(&mut self, packets: impl Iterator<Item = Vec<u8>>) {
        let records = (1..).zip(packets).map(|(second, packet)| (second, 0, packet));
        self.input.write_all(&pcap(records)[24..]).unwrap();
    }

    fn end(self) -> Ran {
        drop(self.input);
        let ran = self.run.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }
}

struct Dump {
    child: Ends,
    /// A thread that reads the capture all the time, so that a full pipe does not block `dump`.
    capture: JoinHandle<Vec<u8>>,
}

impl Dump {
    /// Starts `dump`, and waits for the file header, which `dump` writes when it is connected to
    /// the run.
    fn new(run: &str, args: &[&str]) -> Self {
        let mut child = Ends(command(&[&["dump", run, "-w", "-"], args].concat()).spawn().unwrap());
        let mut out = child.stdout.take().unwrap();
        let mut capture = vec![0; 28];
        if out.read_exact(&mut capture).is_err() {
            let mut err = String::new();
            child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
            panic!("{args:?}: {err}");
        }
        let read = move || {
            out.read_to_end(&mut capture).unwrap();
            capture
        };
        Self { child, capture: thread::spawn(read) }
    }

    /// Returns the capture, and the line that `dump` printed to standard error.
    fn end(mut self) -> (Vec<u8>, String) {
        let capture = self.capture.join().unwrap();
        let mut err = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{err}");
        (capture, err)
    }
}

fn frame(protocol: u8, port: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((length as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend(port.to_be_bytes());
    frame.resize(length, 7);
    frame
}

#[test]
fn every_packet_arrives_as_it_is_wanted() {
    let scratch = Scratch::new();
    let mut fed = Fed::new(&scratch, "2");
    let all = Dump::new(&fed.socket, &[]);
    let short = Dump::new(&fed.socket, &["-s", "40", UDP]);
    let sampled = Dump::new(&fed.socket, &["--sample", "10", "--cpu", "0", "--after"]);
    let first = Dump::new(&fed.socket, &["-c", "3", "--queue", "0"]);
    let refused = run(&["dump", &fed.socket]);
    assert_eq!((refused.code, refused.complaint().contains("4 clients get packets already")), (Some(1), true));
    let frames = || (0..1000).map(|nth| frame(if nth % 4 == 0 { 6 } else { 17 }, nth % 50, 60 + usize::from(nth)));
    fed.feed(frames());
    // A client of the run ends after the requested number of packets. When the client has ended,
    // another client can connect.
    let (capture, err) = first.end();
    assert_eq!((whole_packets(&capture), err.as_str()), (3, "3 packets, 0 missed\n"));
    for (asked, answer) in [
        (["--queue", "7"], "the run has no queue 7: it has 1 queue, from 0 on"),
        (["--cpu", "2"], "the run does not use CPU 2: it uses the CPUs 0-1"),
    ] {
        let refused = run(&[&["dump", &fed.socket], &asked[..]].concat());
        assert_eq!((refused.code, refused.complaint().contains(answer)), (Some(1), true), "{refused:?}");
    }
    let other = Dump::new(&fed.socket, &["--queue", "0", "--cpu", "1", "icmp"]);
    let report = fed.end().report();
    assert_eq!(report["snapshot"]["received"], 1000);

    let (capture, err) = all.end();
    assert_eq!((whole_packets(&capture), err.as_str()), (1000, "1,000 packets, 0 missed\n"));
    let file = scratch.join("all.pcapng");
    fs::write(&file, &capture).unwrap();
    if let Some(mut rows) = tshark(&file, &["frame.time_epoch", "frame.len", "ip.proto"]) {
        // One CPU may be ahead of another, so the packets of the two CPUs are not in order.
        rows.sort_by_key(|row| row[1].parse::<usize>().unwrap());
        let rows: Vec<String> = rows.iter().map(|row| row.join(" ")).collect();
        let expected =
            frames().zip(1..).map(|(frame, second)| format!("{second}.000000000 {} {}", frame.len(), frame[23]));
        assert_eq!(rows, expected.collect::<Vec<_>>());
    }
    let (capture, err) = short.end();
    assert_eq!(err, "750 packets, 0 missed\n");
    // The capture contains 40 bytes of each of the 750 packets, and a pcapng block adds 32 bytes to
    // each packet.
    assert!((750 * 72..750 * 72 + 100).contains(&capture.len()), "{}", capture.len());
    let of_cpu_0 = report["snapshot"]["cpus"][0]["processed"].as_u64().unwrap();
    let (capture, _) = sampled.end();
    assert_eq!(whole_packets(&capture), of_cpu_0 / 10);
    assert_eq!(other.end().1, "0 packets, 0 missed\n");
}

#[test]
fn packets_are_lines_without_a_file() {
    let scratch = Scratch::new();
    let mut fed = Fed::new(&scratch, "1");
    let dump = command(&["dump", &fed.socket, "-c", "2"]).spawn().unwrap();
    // Text output has no header that shows when `dump` is connected, so the test sends packets
    // until `dump` has received two packets and ends.
    let ended = thread::spawn(|| Ran::of(dump.wait_with_output().unwrap()));
    while !ended.is_finished() {
        fed.feed([frame(17, 53, 100), frame(6, 80, 60)].into_iter());
    }
    let ran = ended.join().unwrap();
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), "2 packets, 0 missed\n"), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    let udp = "00:00:01.000000 cpu 0 queue 0 udp 192.0.2.1:53 > 192.0.2.2:1799, 100 bytes";
    assert!(lines.len() == 2 && lines.contains(&udp), "{ran:?}");
    fed.end();
}

/// A packet that does not fit into the client's ring is counted as missed.
#[test]
fn a_client_that_does_not_read_misses_packets_and_the_run_loses_none() {
    const PACKETS: u64 = 60_000;
    let scratch = Scratch::new();
    let mut fed = Fed::new(&scratch, "2");
    let wanted = json!({
        "cpus": [], "queues": [], "sample": 1, "snap": 262_144, "after": false, "filters": []
    });
    let mut packets = Client::connect(Path::new(&fed.socket)).unwrap().packets(&wanted).unwrap();
    fed.feed((0..PACKETS).map(|nth| frame(17, nth as u16, 1000)));
    let mut watcher = Client::connect(Path::new(&fed.socket)).unwrap();
    until("the run has handled all packets", || watcher.snapshot().unwrap()["snapshot"]["delivered"] == PACKETS);
    // Each record of the client's stream begins with three 64-bit integers.
    let (mut arrived, mut counts) = (0, (0, 0));
    while counts.0 < PACKETS || arrived + counts.1 < PACKETS {
        let mut head = [[0; 8]; 3];
        head.iter_mut().for_each(|word| packets.read_exact(word).unwrap());
        let [first, lengths, last] = head.map(u64::from_ne_bytes);
        // A record begins with three integers. The second contains the two lengths of the packet.
        // If `lengths` has one of the two highest values, the record contains counts instead of a
        // packet.
        if lengths >= u64::MAX - 1 {
            counts = (first, last);
            continue;
        }
        assert_eq!(lengths, 1000 << 32 | 1000);
        packets.read_exact(&mut [0; 1000]).unwrap();
        arrived += 1;
    }
    assert!(counts == (PACKETS, PACKETS - arrived) && counts.1 > 0 && arrived > 0, "{arrived} {counts:?}");
    drop(packets);
    let report = fed.end().report();
    assert_eq!((&report["snapshot"]["delivered"], &report["snapshot"]["dropped"]), (&json!(PACKETS), &json!({})));
}

#[test]
fn strangers_see_no_packet() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_mode(0o1777);
    let fed = Fed::new(&scratch, "1");
    let ask = || {
        let nobody = rustix::thread::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        Client::connect(Path::new(&fed.socket)).unwrap().packets(&json!({}))
    };
    let Err(ClientError::Refused { code, message }) = thread::scope(|scope| scope.spawn(ask).join().unwrap()) else {
        panic!("a stranger was not refused")
    };
    assert_eq!((code.as_str(), message.as_str()), ("EPERM", "only root and user 0 may see the packets of this run"));
    fed.end();
}

#[test]
fn a_planted_link_is_not_written_to() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_mode(0o1777);
    let (protected, link) = (scratch.join("protected"), scratch.join("link"));
    fs::write(&protected, "untouched").unwrap();
    symlink(&protected, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut fed = Fed::new(&scratch, "1");
    let dump = command(&["dump", &fed.socket, "-c", "1", "-w", link.to_str().unwrap()]).spawn().unwrap();
    let ended = thread::spawn(|| Ran::of(dump.wait_with_output().unwrap()));
    while !ended.is_finished() {
        fed.feed([frame(17, 53, 100)].into_iter());
    }
    assert_eq!(ended.join().unwrap().code, Some(0));
    assert_eq!(fs::read(&protected).unwrap(), b"untouched");
    let written = fs::symlink_metadata(&link).unwrap();
    assert!(written.is_file() && written.uid() == 0 && written.mode() & 0o007 == 0, "{written:?}");
    assert_eq!(whole_packets(&fs::read(&link).unwrap()), 1);
    fed.end();
}

#[test]
fn a_run_that_is_killed_ends_its_dump() {
    let scratch = Scratch::new();
    let fed = Fed::new(&scratch, "1");
    let dump = Dump::new(&fed.socket, &[]);
    let Fed { mut run, .. } = fed;
    run.signal_to_end(Signal::SIGKILL);
    assert_eq!(dump.end().1, "0 packets, 0 missed; the run ended before its last packets were read\n");
}

/// tcpdump cannot see packets that AF_XDP takes from the kernel.
#[test]
fn packets_that_are_taken_from_the_kernel_are_shown() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let kernel = net.near(|| bind_when_free((NEAR, 9)));
    let scratch = Scratch::new();
    let socket = scratch.join("x.sock");
    let args = ["count", "af_xdp:near0", "--take", "udp", "--virtual-cpus", "2", "--backlog", "10000", "--strict"];
    let started = start(&net, &[&args[..], &["--socket", socket.to_str().unwrap()]].concat());
    let dump = Dump::new(socket.to_str().unwrap(), &[]);
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..20).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for socket in sockets.iter().cycle().take(2000) {
            socket.send_to(&[0; 100], (NEAR, 9)).unwrap();
        }
    });
    let report = started.stop(Signal::SIGINT);
    let received = report["snapshot"]["received"].as_u64().unwrap();
    let (capture, err) = dump.end();
    assert!(received > 0 && err.ends_with(" packets, 0 missed\n"), "{err} {report}");
    assert_eq!(whole_packets(&capture), received);
    drop(kernel);
}
