//! Tests runs that take packets from the kernel, with AF_XDP at one end of a veth pair.

use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::namespaces::bind_when_free;
use steerage_fixtures::{skip_on_this_kernel, until};

use crate::live::{counted, start, talk};
use crate::program::{Started, run};

/// Sends `each` datagrams of 100 bytes from each of `flows` source ports.
fn send(net: &Net, flows: u16, each: usize, port: u16) {
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..flows).map(|flow| bind_when_free((FAR, 20_000 + flow))).collect();
        for socket in sockets.iter().cycle().take(usize::from(flows) * each) {
            socket.send_to(&[0; 100], (NEAR, port)).unwrap();
        }
    });
}

/// The receive buffer of the test's socket, in bytes. The kernel counts a small datagram as about 1
/// KiB, so this buffer holds all datagrams of a test.
const KERNEL_BYTES: usize = 64 << 20;

/// A UDP socket for the datagrams that the run does not take.
struct Kernel(UdpSocket);

impl Kernel {
    fn of(net: &Net) -> Self {
        let socket = net.near(|| bind_when_free((NEAR, 9)));
        socket.set_nonblocking(true).unwrap();
        setsockopt(&socket, RcvBufForce, &KERNEL_BYTES).unwrap();
        Self(socket)
    }

    fn got(&self) -> u64 {
        std::iter::from_fn(|| self.0.recv(&mut [0; 100]).ok()).count() as u64
    }
}

fn received(report: &Value) -> u64 {
    report["snapshot"]["received"].as_u64().unwrap()
}

fn counts<'a>(report: &'a Value, key: &str) -> Vec<u64> {
    let queues: &'a Vec<Value> = report["snapshot"]["queues"].as_array().unwrap();
    queues.iter().map(|queue| queue[key].as_u64().unwrap()).collect()
}

#[test]
fn udp_is_taken_and_tcp_passes() {
    let Some(net) = Net::with("numrxqueues 4 numtxqueues 4") else { return };
    let kernel = Kernel::of(&net);
    for hash in ["auto", "device", "aes"] {
        let args = ["count", "af_xdp:near0", "--take", "udp", "--hash", hash];
        let mut started = start(&net, &[&args[..], &["--virtual-cpus", "2", "--strict"]].concat());
        let mut sent = 0;
        until("all queues take packets", || {
            send(&net, 40, 5, 9);
            sent += 200;
            started.signal(Signal::SIGUSR1);
            let report: Value = serde_json::from_str(&started.line()).unwrap();
            counts(&report, "received").iter().all(|received| *received > 0)
        });
        // The rings and backlogs have room for 800 packets, so that none is lost on a busy machine.
        send(&net, 40, 20, 9);
        sent += 800;
        talk(&net);
        let report = started.stop(Signal::SIGINT);
        assert_eq!(received(&report) + kernel.got(), sent, "{report}");
        assert_eq!((&report["snapshot"]["dropped"], &report["snapshot"]["reordered"]), (&json!({}), &json!(0)));
        let (by_queue, passed) = (counts(&report, "received"), counts(&report, "passed"));
        assert!(by_queue.len() == 4 && by_queue.iter().all(|received| *received > 0), "{by_queue:?}");
        // Of the TCP transfer (4 MB), the kernel gets either the segments, each of the size of the
        // MTU, or an acknowledgement for every two segments.
        assert!(passed.iter().sum::<u64>() > 1000, "{passed:?}");
        for queue in report["snapshot"]["queues"].as_array().unwrap() {
            assert_eq!(queue["kind"], "af_xdp");
            // Since Linux 6.8, a veth offers metadata (such as a flow hash) to XDP programs.
            assert!(queue["mode"].as_str().unwrap().starts_with("native, copy"), "{queue}");
            // The hash that a veth reports may come from another card, so `--hash auto` does not
            // use the veth's hash.
            assert_eq!(queue["hash"] == "device", hash == "device", "{queue}");
        }
        // The veth's hash spreads the 40 flows over both CPUs.
        let processed =
            report["snapshot"]["cpus"].as_array().unwrap().iter().map(|cpu| cpu["processed"].as_u64().unwrap());
        assert!(processed.clone().all(|packets| packets > 0), "{:?}", processed.collect::<Vec<_>>());
        assert_eq!(report["snapshot"]["pages"], report["snapshot"]["pages_free"]);
    }
}

/// Busy polling needs a capability, which a run drops early.
#[test]
fn a_busy_poll_takes_packets() {
    let Some(net) = Net::new() else { return };
    // Without this socket, the kernel would reply with ICMP errors to packets that the run does not
    // take.
    let kernel = Kernel::of(&net);
    let args = ["count", "af_xdp:near0,busy_poll=50", "--take", "udp", "--virtual-cpus", "1", "-c", "100"];
    let started = start(&net, &args);
    // Until the program's first poll, packets go to the kernel's socket, so the test sends packets
    // until the run has enough. The test sends more packets only if they fit into the run's ring
    // and backlog.
    let report = thread::scope(|scope| {
        let ended = scope.spawn(|| started.end().report());
        let (mut sent, mut passed) = (0_u64, 0);
        until("the run has enough packets", || {
            passed += kernel.got();
            if sent < passed + 200 {
                send(&net, 1, 20, 9);
                sent += 20;
            }
            ended.is_finished()
        });
        ended.join().unwrap()
    });
    assert_eq!((received(&report), &report["ended_by"]), (100, &json!("packets")), "{report}");
    assert_eq!(report["snapshot"]["dropped"], json!({}), "{report}");
}

#[test]
fn interrupts_are_deferred_while_a_run_polls_busily() {
    const FILES: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];
    let Some(net) = Net::new() else { return };
    let here = |words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &net.near]).args(words);
        command
    };
    let values = || {
        FILES.map(|file| {
            let read = here(&["cat", &format!("/sys/class/net/near0/{file}")]).output().unwrap();
            String::from_utf8(read.stdout).unwrap().trim().to_owned()
        })
    };
    let set = |file: &str, value: &str| {
        let write = format!("echo {value} > /sys/class/net/near0/{file}");
        assert!(here(&["sh", "-c", &write]).status().unwrap().success());
    };
    let start = || {
        let args = ["count", "af_xdp:near0,busy_poll=50", "--take", "udp", "--virtual-cpus", "1", "--json", "-v"];
        let words = [&[env!("CARGO_BIN_EXE_steerage")], &args[..]].concat();
        Started::of(here(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    assert_eq!(values(), ["0", "0"]);
    let started = start();
    assert_eq!(values(), ["2", "200000"]);
    started.stop(Signal::SIGINT);
    assert_eq!(values(), ["0", "0"]);

    let started = start();
    assert_eq!(values(), ["2", "200000"]);
    started.signal(Signal::SIGKILL);
    until("the helper process undoes the deferral", || values() == ["0", "0"]);
    drop(started);

    let started = start();
    set(FILES[1], "70000");
    started.stop(Signal::SIGINT);
    assert_eq!(values(), ["0", "70000"]);
    let started = start();
    assert_eq!(values(), ["0", "70000"]);
    started.stop(Signal::SIGINT);
    assert_eq!(values(), ["0", "70000"]);
}

/// A veth of Linux 6.13 and later cannot be polled busily, which the run detects with the first
/// packet.
#[test]
fn interrupts_are_not_deferred_if_busy_polling_has_no_effect() {
    let Some(net) = Net::new() else { return };
    if older_than((6, 13)) {
        return skip_on_this_kernel("it can poll a veth busily");
    }
    let _kernel = Kernel::of(&net);
    let deferral = || {
        let args = ["netns", "exec", &net.near, "cat", "/sys/class/net/near0/gro_flush_timeout"];
        String::from_utf8(Command::new("ip").args(args).output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let args = ["netns", "exec", &net.near, env!("CARGO_BIN_EXE_steerage"), "count", "af_xdp:near0,busy_poll=50"];
    let mut command = Command::new("ip");
    command.args(args).args(["--take", "udp", "--virtual-cpus", "1", "--json", "-v"]);
    let started = Started::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(deferral(), "200000");
    until("the interrupts are no longer deferred", || {
        send(&net, 1, 1, 9);
        deferral() == "0"
    });
    started.signal(Signal::SIGINT);
    let ran = started.end();
    assert!(ran.code == Some(0) && ran.err.contains("busy_poll has no effect"), "{ran:?}");
    assert_eq!(deferral(), "0");
}

fn older_than(version: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) < version
}

#[test]
fn packets_that_may_wait_arrive() {
    let Some(net) = Net::new() else { return };
    let kernel = Kernel::of(&net);
    // All packets fit into the ring, so packets may wait in the ring for any time.
    for wait in ["50us", "10ms", "off"] {
        let device = format!("af_xdp:near0,ring=16384,coalesce={wait}");
        let args = ["count", &device, "--take", "udp", "--virtual-cpus", "2", "--backlog", "10000", "--strict"];
        let started = start(&net, &args);
        let lost = net.lost_to_near();
        send(&net, 40, 250, 9);
        let report = started.stop(Signal::SIGINT);
        let lost = net.lost_to_near() - lost;
        assert_eq!(received(&report) + kernel.got() + lost, 10_000, "{lost} lost by the cable, {report}");
        assert_eq!((&report["snapshot"]["dropped"], &report["snapshot"]["reordered"]), (&json!({}), &json!(0)));
    }
}

#[test]
fn without_being_told_what_nothing_is_taken() {
    let Some(net) = Net::new() else { return };
    let ran = net.near(|| run(&["count", "af_xdp:near0"]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("--take"), "{ran:?}");
    let ran = run(&["count", "af_xdp:lo", "--take", "smtp"]);
    assert!(ran.code == Some(2) && ran.err.contains("`smtp` is not known"), "{ran:?}");
    let ran = run(&["count", "af_xdp:lo,queue=1", "--take", "all"]);
    assert!(ran.code == Some(2) && ran.complaint().contains("option `queue=1`"), "{ran:?}");
    let ran = run(&["count", "af_xdp:lo,coalesce=50us,busy_poll=20", "--take", "all"]);
    assert!(ran.code == Some(2) && ran.complaint().contains("exclude each other"), "{ran:?}");
    let ran = run(&["count", "af_packet:lo,coalesce=50us"]);
    assert!(ran.code == Some(2) && ran.complaint().contains("option `coalesce=50us` does not exist"), "{ran:?}");
}

#[test]
fn killed_and_started_again_it_works_at_once() {
    let Some(net) = Net::new() else { return };
    let args = ["count", "af_xdp:near0", "--take", "udp", "--virtual-cpus", "2"];
    for _ in 0..3 {
        let started = start(&net, &args);
        send(&net, 1, 100, 9);
        started.signal(Signal::SIGKILL);
        assert_eq!(started.end().code, None);
    }
    let kernel = Kernel::of(&net);
    let started = start(&net, &args);
    let second = net.near(|| run(&args));
    assert_eq!(second.code, Some(1));
    assert!(second.complaint().contains("another steerage has near0 already"), "{second:?}");
    send(&net, 10, 100, 9);
    assert_eq!(received(&started.stop(Signal::SIGINT)) + kernel.got(), 1000);
}

#[test]
fn a_deleted_interface_is_reported_with_what_came() {
    let Some(net) = Net::new() else { return };
    let kernel = Kernel::of(&net);
    let started = start(&net, &["count", "af_xdp:near0", "--take", "udp", "--virtual-cpus", "2"]);
    let before = counted(&net).0;
    send(&net, 10, 100, 9);
    // Removing the interface loses packets that the driver has not processed.
    until("all packets are at the driver, or lost by the cable", || {
        counted(&net).0 + net.lost_to_near() >= before + 1000
    });
    let lost = net.lost_to_near();
    net.must(&format!("-n {} link del near0", net.near));
    let ran = started.end();
    assert!(ran.code == Some(1) && ran.err.contains("near0: cannot go on receiving"), "{ran:?}");
    let report = ran.report();
    assert_eq!(received(&report) + kernel.got() + lost, 1000, "{lost} lost by the cable, {report}");
    assert_eq!(report["snapshot"]["dropped"], json!({}), "{report}");
}

#[test]
fn what_is_lost_is_counted() {
    let Some(net) = Net::new() else { return };
    let device = "af_xdp:near0,ring=128";
    let started = start(&net, &["count", device, "--take", "udp", "--virtual-cpus", "2", "--backlog", "64"]);
    send(&net, 50, 2000, 9);
    let report = started.stop(Signal::SIGINT);
    let lost = net.lost_to_near();
    assert_eq!(received(&report) + counts(&report, "passed")[0] + lost, 100_000, "{lost} lost by the cable, {report}");
}

/// While the program is stopped (SIGSTOP), the kernel soon has no free page for packets.
#[test]
fn what_the_kernel_counts_for_the_socket_is_shown() {
    let Some(net) = Net::new() else { return };
    let kernel = Kernel::of(&net);
    let started = start(&net, &["count", "af_xdp:near0,ring=128", "--take", "udp"]);
    // Until the program's first poll, all packets go to the kernel's socket.
    while {
        send(&net, 1, 1, 9);
        kernel.got() > 0
    } {}
    started.signal(Signal::SIGSTOP);
    send(&net, 50, 20, 9);
    started.signal(Signal::SIGCONT);
    let report = started.stop(Signal::SIGINT);
    let queue = &report["snapshot"]["queues"][0];
    let count = |key: &str| queue["device_counts"][key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));
    assert!(count("rx_ring_full") + count("rx_fill_ring_empty_descs") > 0, "{report}");
    assert_eq!(count("rx_invalid_descs"), 0);
    assert!(count("rx_ring_full") <= queue["dropped"]["device"].as_u64().unwrap(), "{report}");
}

/// After the requested number of packets, the run counts no more packets, and the kernel returns
/// all pages to the run.
#[test]
fn so_many_packets_are_taken_and_no_more() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let kernel = Kernel::of(&net);
    let args = ["count", "af_xdp:near0", "--take", "udp", "-c", "1000", "--virtual-cpus", "2", "--strict"];
    let sockets: Vec<UdpSocket> = net.far(|| (0..20).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect());
    let send = || sockets.iter().for_each(|socket| assert_eq!(socket.send_to(&[0; 100], (NEAR, 9)).unwrap(), 100));
    for _ in 0..2 {
        let mut started = Some(start(&net, &args));
        let ran = thread::scope(|scope| {
            let ended = scope.spawn(|| started.take().unwrap().end());
            while !ended.is_finished() {
                send();
                // The ring holds all frames that arrive while the thread of a CPU does not run
                // because the machine is loaded.
                thread::sleep(Duration::from_millis(1));
            }
            ended.join().unwrap()
        });
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let report = ran.report();
        assert_eq!((received(&report), &report["snapshot"]["dropped"]), (1000, &json!({})), "{report}");
        assert_eq!(report["snapshot"]["pages"], report["snapshot"]["pages_free"]);
        kernel.got();
        send();
        assert_eq!(kernel.got(), 20);
    }
}

#[test]
fn a_filter_is_pointed_to_take() {
    let ran = run(&["count", "af_xdp:lo", "--take", "udp", "-f", "port 53"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.complaint().contains("choose the packets of af_xdp:lo with --take"), "{ran:?}");
}

#[test]
fn a_run_file_takes() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let kernel = Kernel::of(&net);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("taking-{}.toml", std::process::id()));
    let text = r#"
        command = "count"
        devices = { name = "af_xdp:near0", queues = "0-1", ring = 512, mode = "copy" }
        take = "udp dst port 9"
        replace = true
        virtual-cpus = 2
    "#;
    std::fs::write(&path, text).unwrap();
    let started = start(&net, &["run", path.to_str().unwrap()]);
    send(&net, 20, 50, 9);
    let report = started.stop(Signal::SIGINT);
    assert_eq!(received(&report) + kernel.got(), 1000, "{report}");
    assert_eq!(counts(&report, "received").len(), 2);
    assert_eq!(report["snapshot"]["queues"][0]["device"], "near0");
    std::fs::write(&path, text.replace("512", "500")).unwrap();
    let ran = run(&["run", path.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.complaint().contains(":3: devices: af_xdp: option `ring=500`"), "{ran:?}");
    std::fs::remove_file(&path).unwrap();
}
