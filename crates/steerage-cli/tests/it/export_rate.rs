//! Tests the rate of `steerage meter --export`. At the default rate, a collector with a default
//! receive buffer gets all records.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use serde_json::Value;
use steerage_fixtures::namespaces::free_port;
use steerage_fixtures::scratch::Scratch;

use crate::export_collectors::{NFACCTD_IS_READY, collect, end, nfacctd, printed_so_far};
use crate::program::{Started, report, run};

/// The default rate in records per second, from docs/meter.md.
const RATE: f64 = 10_000.0;

/// Receives IPFIX messages while `send` runs. Returns the time from the first message to the last,
/// by the kernel's timestamps.
fn span<R>(address: &str, send: impl FnOnce(&str) -> R) -> (Duration, R) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true).unwrap();
    // The kernel limits the receive buffer to twice `net.core.rmem_max`.
    setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
    let to = format!("ipfix://{}", socket.local_addr().unwrap());
    let (ended, has_ended) = mpsc::channel();
    let receiver = thread::spawn(move || {
        let (mut first, mut last) = (None, Duration::ZERO);
        loop {
            let was_over = has_ended.try_recv().is_ok();
            let (mut bytes, mut space) = ([0; 2000], nix::cmsg_space!(nix::libc::timespec));
            loop {
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let flags = MsgFlags::empty();
                let got = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags);
                let Ok(got) = got else { break };
                let time = got.cmsgs().unwrap().find_map(|message| match message {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                });
                last = time.unwrap();
                first.get_or_insert(last);
            }
            if was_over {
                return last - first.unwrap();
            }
        }
    });
    let result = send(&to);
    ended.send(()).unwrap();
    (receiver.join().unwrap(), result)
}

/// The export is paced, both for a capture and for the flows that are open when a live run stops.
#[test]
fn udp_is_paced() {
    let capture = ["meter", "synthetic:packets=5000,flows=5000", "--virtual-cpus", "2"];
    let live = ["meter", "synthetic:flows=5000,rate=20000", "--seconds", "0", "--virtual-cpus", "2", "--json"];
    for (address, options) in [("127.0.0.1:0", ""), ("[::1]:0", "?biflow=no&mtu=1280"), ("live", "")] {
        let (span, report) = match address {
            "live" => span("127.0.0.1:0", |to| {
                let mut run = Started::new(&[&live[..], &["--export", to]].concat());
                loop {
                    run.signal(Signal::SIGUSR1);
                    let report: Value = serde_json::from_str(&run.line()).unwrap();
                    if report["app"]["flows"]["active"].as_u64().unwrap() > 3000 {
                        return run.stop(Signal::SIGINT);
                    }
                }
            }),
            _ => span(address, |to| report(&[&capture[..], &["--export", &format!("{to}{options}")]].concat())),
        };
        let output = &report["app"]["flows"]["outputs"][0];
        let flows = output["written"].as_u64().unwrap() as f64;
        assert!(flows > 1000.0 && output["lost"] == 0, "{output}");
        // The first messages are sent without delay, and the kernel may deliver some messages late.
        let least = Duration::from_secs_f64(0.8 * (flows - 400.0) / RATE);
        assert!(span >= least, "{flows} flows within {span:?}, {address}");
    }
}

/// `--export-rate` applies to every collector. The parameter `rate` in a collector's address
/// applies only to this collector.
#[test]
fn the_user_sets_the_rate() {
    let args = ["meter", "synthetic:packets=500,flows=500", "--virtual-cpus", "1"];
    let send = |to: &str, more: &[&str]| {
        let report = report(&[&args[..], &["--export", to], more].concat());
        report["app"]["flows"]["outputs"][0]["written"].as_u64().unwrap() as f64
    };
    for (options, more) in [("", &["--export-rate", "1000"][..]), ("?rate=1000", &["--export-rate", "max"])] {
        let (span, flows) = span("127.0.0.1:0", |to| send(&format!("{to}{options}"), more));
        let least = Duration::from_secs_f64(0.8 * (flows - 100.0) / 1000.0);
        assert!(flows > 300.0 && span >= least, "{flows} flows within {span:?}, {options}");
    }
    for (wrong, says) in [
        (&["--export-rate", "5", "--flows", "-"][..], "--export <WHERE>"),
        (&["--export", "ipfix://127.0.0.1", "--export-rate", "0"], "write records per second, or max"),
        (&["--export", "ipfix://127.0.0.1", "--export-rate", "fast"], "write records per second, or max"),
        (&["--export", "ipfix://127.0.0.1?rate=fast"], "write records per second, or max"),
    ] {
        let ran = run(&[&["meter", "synthetic:packets=1"], wrong].concat());
        assert!(ran.code == Some(2) && ran.err.contains(says), "{ran:?}");
    }
}

/// With TCP, no records are lost.
#[test]
fn tcp_is_recommended_for_a_file() {
    let advice = |device: &str, more: &[&str]| {
        let ran = span("127.0.0.1:0", |to| run(&[&["meter", device, "--export", to], more].concat())).1;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.err
    };
    let with_options =
        |to: &str| run(&["meter", "synthetic:packets=10", "--export", &format!("{to}?domain=7&biflow=no")]);
    let err = span("127.0.0.1:0", with_options).1.err;
    assert!(err.contains("?domain=7&biflow=no', which loses no flow while the collector runs"), "{err}");
    let err = advice("synthetic:packets=1000,flows=10", &[]);
    assert_eq!(err.lines().filter(|line| line.contains("use ipfix+tcp://127.0.0.1:")).count(), 1, "{err}");
    assert_eq!(advice("synthetic:packets=1000,flows=10", &["-q"]), "");
    assert!(!advice("synthetic:packets=1000,flows=10,rate=100000", &[]).contains("tcp"));
}

/// If a busy machine does not run the collector for a fifth of a second, the collector's receive
/// buffer may overflow, and the test exports the flows again.
const ATTEMPTS_MAX: usize = 3;

/// `store` gets a directory, the collector's port, and arguments for the export. `store` returns
/// how many flows the collector stored and how many were sent, or `None` if no collector is
/// installed.
fn all_arrive(options: &str, store: impl Fn(&Path, u16, &[&str]) -> Option<(u64, u64)>) {
    let mut found = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let (directory, port) = (Scratch::new(), free_port());
        let to = format!("ipfix://127.0.0.1:{port}{options}");
        let args = ["meter", "synthetic:packets=20000,flows=20000", "--virtual-cpus", "2", "--export", &to];
        let Some((stored, sent)) = store(&directory, port, &args) else { return };
        assert!(sent > 10_000, "{sent}");
        found.push((stored, sent));
        if stored == sent {
            return;
        }
    }
    panic!("stored, and sent: {found:?}");
}

fn sent(report: &Value) -> u64 {
    report["app"]["flows"]["outputs"][0]["written"].as_u64().unwrap()
}

#[test]
fn nfcapd_stores_all_flows_of_a_capture() {
    all_arrive("", |directory, port, args| {
        let collected = directory.join("collected");
        std::fs::create_dir(&collected).unwrap();
        let mut nfcapd = Command::new("nfcapd");
        nfcapd.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "3600", "-w"]).arg(&collected);
        let (mut nfcapd, report) = collect(&mut nfcapd, port, &directory.join("log"), "Startup nfcapd", args)?;
        end(&mut nfcapd, Signal::SIGTERM);
        let shown = Command::new("nfdump").args(["-q", "-N", "-o", "fmt:%sa", "-R"]).arg(&collected).output().unwrap();
        Some((String::from_utf8(shown.stdout).unwrap().lines().count() as u64, sent(&report)))
    });
}

#[test]
fn nfacctd_stores_all_flows_of_a_capture() {
    all_arrive("?biflow=no", |directory, port, args| {
        let printed = directory.join("printed.csv");
        let mut nfacctd = nfacctd(directory, port, &printed);
        let (mut nfacctd, report) = collect(&mut nfacctd, port, &directory.join("log"), NFACCTD_IS_READY, args)?;
        let stored = || printed_so_far(&printed).len() as u64;
        // nfacctd prints its records once a second. If it prints nothing for 30 s, it has lost the
        // missing records.
        let mut latest = (stored(), Instant::now());
        while latest.0 < sent(&report) && latest.1.elapsed() < Duration::from_secs(30) {
            thread::sleep(Duration::from_millis(50));
            let now = stored();
            if now > latest.0 {
                latest = (now, Instant::now());
            }
        }
        end(&mut nfacctd, Signal::SIGINT);
        Some((stored(), sent(&report)))
    });
}
