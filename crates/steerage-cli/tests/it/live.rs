//! In these tests, sockets send packets between the ends of a veth pair, and steerage listens at
//! one end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::is_installed;
use steerage_fixtures::namespaces::bind_when_free;
use steerage_fixtures::scratch::Scratch;

use crate::program::{Ran, Started, command};

pub(crate) fn start(net: &Net, args: &[&str]) -> Started {
    let args = [args, &["--json", "-v"]].concat();
    Started::of(net.near(|| command(&args).spawn().unwrap()))
}

fn send(net: &Net, flows: usize, each: usize) {
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..flows).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for socket in sockets.iter().cycle().take(flows * each) {
            socket.send_to(&[0; 100], (NEAR, 9)).unwrap();
        }
    });
}

/// Opens a UDP socket, without which the kernel would answer datagrams with ICMP errors.
fn open(net: &Net) -> UdpSocket {
    net.near(|| bind_when_free((NEAR, 9)))
}

pub(crate) fn talk(net: &Net) {
    const BYTES: usize = 2_000_000;
    let listener = net.near(|| TcpListener::bind((NEAR, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut vec![0; BYTES]).unwrap();
            stream.write_all(&vec![0; BYTES]).unwrap();
        });
        let mut stream = net.far(|| TcpStream::connect((NEAR, port)).unwrap());
        stream.write_all(&vec![0; BYTES]).unwrap();
        stream.read_exact(&mut vec![0; BYTES]).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
}

/// Returns how many packets the interface has received and sent, according to its counters.
pub(crate) fn counted(net: &Net) -> (u64, u64) {
    let table = net.near(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let line = table.lines().find_map(|line| line.trim().strip_prefix("near0:")).unwrap();
    let fields: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap()).collect();
    (fields[1], fields[9])
}

#[test]
fn udp_and_tcp_by_two_sockets_on_two_cpus() {
    let Some(net) = Net::new() else { return };
    let open = open(&net);
    for (way, queues) in [("in", "1"), ("out", "1"), ("inout", "1"), ("in", "2"), ("inout", "2")] {
        let before = counted(&net);
        let args = ["count", "near0", "-Q", way, "--queues", queues, "--virtual-cpus", "2", "--strict"];
        // With this policy no flow moves. On a loaded machine, a slow move would drop packets.
        let started = start(&net, &[&args[..], &["--policy", "hash", "--backlog", "10000"]].concat());
        send(&net, 40, 50);
        talk(&net);
        // After all TCP connections are closed, the run and the kernel count the same packets.
        wait_until_closed(&net);
        let report = started.stop(Signal::SIGINT);
        let after = counted(&net);
        let (received, sent) = (after.0 - before.0, after.1 - before.1);
        let expected = match way {
            "in" => received,
            "out" => sent,
            _ => received + sent,
        };
        assert_eq!(report["snapshot"]["received"], expected, "{way}: {report}");
        assert_eq!(
            (&report["snapshot"]["dropped"], &report["snapshot"]["reordered"], &report["snapshot"]["in_flight"]),
            (&json!({}), &json!(0), &json!(0))
        );
        let by_queue: Vec<u64> = report["snapshot"]["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| queue["received"].as_u64().unwrap())
            .collect();
        assert!(by_queue.len().to_string() == queues && by_queue.iter().all(|received| *received > 0), "{by_queue:?}");
        assert_eq!(report["snapshot"]["queues"][0]["kind"], "af_packet");
    }
    drop(open);
}

fn wait_until_closed(net: &Net) {
    let open = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        // The fourth field of /proc/net/tcp is the state: 06 is TIME_WAIT, and 0A is LISTEN.
        table.lines().skip(1).any(|line| !["06", "0A"].contains(&line.split_whitespace().nth(3).unwrap()))
    };
    while net.near(open) || net.far(open) {
        thread::yield_now();
    }
}

/// The kernel computes its packet hash with a random key.
#[test]
fn the_kernels_hash_steers_on_demand() {
    let Some(net) = Net::new() else { return };
    let open = open(&net);
    for (hash, is_ours) in [("device", false), ("aes", true)] {
        let args = ["count", "near0", "-Q", "in", "--hash", hash, "--virtual-cpus", "4", "--policy", "hash"];
        let started = start(&net, &[&args[..], &["--strict", "--backlog", "10000"]].concat());
        send(&net, 60, 20);
        let report = started.stop(Signal::SIGINT);
        let queue = &report["snapshot"]["queues"][0];
        assert_eq!(queue["hash"] == "device", !is_ours, "{queue}");
        assert_eq!(
            (&report["snapshot"]["received"], &report["snapshot"]["reordered"]),
            (&json!(1200), &json!(0)),
            "{report}"
        );
        assert_eq!(queue["hashed"], if is_ours { 1200 } else { 0 }, "{queue}");
        // Each of the four CPUs has some of the 60 flows, and gets all packets of these flows.
        let cpus = report["snapshot"]["cpus"].as_array().unwrap().iter().map(|cpu| cpu["processed"].as_u64().unwrap());
        assert!(cpus.clone().all(|packets| packets > 0 && packets % 20 == 0), "{:?}", cpus.collect::<Vec<_>>());
    }
    drop(open);
}

#[test]
fn flows_are_metered_live() {
    let Some(net) = Net::new() else { return };
    let started = start(&net, &["meter", "near0", "-Q", "in", "-t", "20", "--virtual-cpus", "2", "--queues", "2"]);
    send(&net, 10, 30);
    let report = started.stop(Signal::SIGINT);
    assert_eq!(
        (&report["snapshot"]["received"], &report["snapshot"]["dropped"], &report["app"]["flows"]["total"]),
        (&json!(300), &json!({}), &json!(10))
    );
    for flow in report["traffic"]["top"].as_array().unwrap() {
        let seen = ["source", "destination", "packets", "bytes"].map(|key| &flow[key]);
        assert_eq!(seen, [&json!(FAR), &json!(NEAR), &json!(30), &json!(30 * 142)]);
    }
}

/// While the program is stopped (SIGSTOP), the kernel drops packets.
#[test]
fn kernel_drops_are_in_the_ledger() {
    let Some(net) = Net::new() else { return };
    let started = start(&net, &["count", "near0", "-Q", "in", "-B", "512K", "--virtual-cpus", "2", "--check-order"]);
    started.signal(Signal::SIGSTOP);
    // One megabyte does not fit into the packet socket's ring of 512 KiB.
    send(&net, 10, 1000);
    started.signal(Signal::SIGCONT);
    let report = started.stop(Signal::SIGINT);
    assert_eq!(
        (&report["snapshot"]["received"], &report["snapshot"]["reordered"], &report["snapshot"]["in_flight"]),
        (&json!(10_000), &json!(0), &json!(0))
    );
    assert!(report["snapshot"]["dropped"]["device"].as_u64().unwrap() > 0, "{report}");
    assert!(report["snapshot"]["delivered"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn an_interface_that_is_deleted_ends_the_run() {
    let Some(net) = Net::new() else { return };
    let started = start(&net, &["count", "near0", "-Q", "in", "--virtual-cpus", "2", "--queues", "2"]);
    send(&net, 10, 10);
    net.must(&format!("-n {} link del far0", net.far));
    let ran = started.end();
    let report = ran.report();
    assert_eq!((ran.code, &report["ended_by"]), (Some(1), &json!("error")));
    assert_eq!((&report["snapshot"]["received"], &report["snapshot"]["delivered"]), (&json!(100), &json!(100)));
    let error = "near0: cannot go on listening: No such device (os error 19); the interface was deleted";
    assert_eq!(report["snapshot"]["queues"][0]["error"]["message"], error);
    assert!(ran.err.lines().any(|line| line == format!("steerage: {error}")), "{}", ran.err);
}

/// A note describes how an interface could be used better. `--quiet` omits notes.
#[test]
fn notes_stand_on_standard_error() {
    let Some(net) = Net::new() else { return };
    net.must(&format!("-n {} link set near0 down", net.near));
    let run = |more: &[&str]| {
        let args = [&["count", "near0", "--seconds", "0.01", "--virtual-cpus", "1"], more].concat();
        let output = net.near(|| command(&args).output().unwrap());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(run(&[]), "near0 is down: nothing comes until it is up (ip link set near0 up)\n");
    assert_eq!(run(&["-q"]), "");
}

#[test]
fn without_the_right_to_it_the_line_says_which() {
    let Some(net) = Net::new() else { return };
    // setpriv runs the program as root without CAP_NET_RAW. If setpriv is missing, the test ends
    // here.
    let program = env!("CARGO_BIN_EXE_steerage");
    let args = ["--bounding-set=-net_raw", "--inh-caps=-net_raw", program, "count", "lo"];
    let Ok(output) = net.near(|| Command::new("setpriv").args(args).output()) else { return };
    let ran = Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.complaint().contains("CAP_NET_RAW") && ran.complaint().contains("setcap"), "{ran:?}");
}

/// The kernel applies the filter, so packets that do not match are not counted as received.
#[test]
fn a_filter_leaves_out_in_the_kernel() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let Some(net) = Net::new() else { return };
    for (filter, queues, expected) in [
        ("udp dst port 9", "1", 30),
        ("not port 9", "2", 20),
        ("udp", "2", 50),
        ("4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0", "1", 50),
    ] {
        let args = ["count", "near0", "-Q", "in", "-f", filter, "--queues", queues, "--virtual-cpus", "2"];
        let started = start(&net, &args);
        net.far(|| {
            for (port, count) in [(9, 30), (10, 20)] {
                let socket = UdpSocket::bind((FAR, 0)).unwrap();
                // The socket is not connected, so the kernel reports no refused datagrams.
                (0..count).for_each(|_| assert_eq!(socket.send_to(&[0; 100], (NEAR, port)).unwrap(), 100));
            }
        });
        let report = started.stop(Signal::SIGINT);
        assert_eq!(
            (&report["snapshot"]["received"], &report["snapshot"]["dropped"]),
            (&json!(expected), &json!({})),
            "{filter}"
        );
    }
}

/// The user has the privileges that `setcap cap_net_raw+ep` gives. While the program listens, it
/// has no capability left.
#[test]
fn one_capability_is_enough_to_listen() {
    let Some(net) = Net::new() else { return };
    let scratch = Scratch::new();
    // The build directory may be readable only by root.
    let program = scratch.install("steerage", env!("CARGO_BIN_EXE_steerage"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+net_raw"]);
    command.args(["--ambient-caps=-all,+net_raw"]).arg(&program).args(["count", "near0", "-Q", "in", "--json", "-v"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Started::of(net.near(|| command.spawn().unwrap()));
    for task in std::fs::read_dir(format!("/proc/{}/task", started.id())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("CapPrm:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
    }
    send(&net, 3, 10);
    // The program continues to listen without any capability.
    net.must(&format!("-n {} link set near0 down", net.near));
    net.must(&format!("-n {} link set near0 up", net.near));
    let report = started.stop(Signal::SIGINT);
    assert_eq!(
        (&report["snapshot"]["received"], &report["snapshot"]["queues"][0]["error"]["message"]),
        (&json!(30), &Value::Null),
        "{report}"
    );
}

/// With the device `any`, each interface is a separate device that receives the packets of the
/// interface.
#[test]
fn any_stands_for_all_interfaces_that_are_up() {
    let Some(net) = Net::new() else { return };
    let open = open(&net);
    let started = start(&net, &["count", "any", "-Q", "in", "--virtual-cpus", "1", "--check-order"]);
    let note = started.said().iter().find(|line| line.starts_with("any: listening to ")).cloned();
    send(&net, 2, 5);
    net.near(|| UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"hello", ("127.0.0.1", 9)).unwrap_or_default());
    let report = started.stop(Signal::SIGINT);
    let received = |device: &str| -> u64 {
        let queues = report["snapshot"]["queues"].as_array().unwrap().iter();
        let queue = queues.clone().find(|queue| queue["device"] == device);
        queue.unwrap_or_else(|| panic!("{device} in {report}"))["received"].as_u64().unwrap()
    };
    assert!(received("near0") >= 10 && received("lo") >= 1, "{report}");
    assert!(note.is_some_and(|note| note.contains("lo, near0; a packet that passes two of them is seen twice")));
    drop(open);
}
