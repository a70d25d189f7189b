//! Tests runs that take packets from bonds and VLAN interfaces. Two cables (veth pairs) connect the
//! bonds of two network namespaces. The running kernel may lack bonds and VLAN interfaces;
//! `.ci/other-kernel` starts a kernel that supports them.

use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use serde_json::{Value, json};
use steerage_fixtures::namespaces::{Namespaces, bind_when_free};
use steerage_fixtures::{is_installed, until};

use crate::program::{Started, command, run};

const NEAR: &str = "10.210.0.1";
const FAR: &str = "10.210.0.2";

/// LACP's fast rate has this timeout (IEEE 802.1AX, 6.4.4).
const LACP_TIMEOUT: Duration = Duration::from_secs(3);

/// The LACP state of a port that its bond uses: all bits except the two error bits (IEEE 802.1AX,
/// 6.4.2.3). The kernel lists the state of each port and of its partner at the other end of the
/// cable.
const LACP_IN_USE: &str = "port state: 63";

/// The cables connect `p0` to `q0`, and `p1` to `q1`. The kernels of both ends send no packets of
/// their own except LACP messages, because the run would count them: no IPv6, no ARP.
struct Bonds {
    ends: Namespaces,
    /// A UDP socket in the near network namespace, for packets that the run leaves to the kernel.
    kernel: UdpSocket,
}

impl Bonds {
    fn new(options: &str) -> Option<Self> {
        let ends = Namespaces::new(2)?;
        for end in [0, 1] {
            let ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
            ends.within(end, || fs::write(ipv6, "1").unwrap_or_default());
        }
        for nth in [0, 1] {
            ends.veth((0, &format!("p{nth}")), (1, &format!("q{nth}")));
        }
        for (end, port) in [(0, 'p'), (1, 'q')] {
            ends.bond(end, &format!("{options} miimon 10 downdelay 20 num_grat_arp 0"))?;
            for nth in [0, 1] {
                Self::add(&ends, end, &format!("{port}{nth}"));
            }
            ends.must(end, "link set bond0 up");
            ends.must(end, &format!("addr add {}/24 dev bond0", [NEAR, FAR][end]));
        }
        let near = ends.command(0, &["cat", "/sys/class/net/bond0/address"]).output().unwrap();
        let near = String::from_utf8(near.stdout).unwrap();
        ends.must(1, &format!("neigh replace {NEAR} lladdr {} dev bond0 nud permanent", near.trim()));
        let kernel = ends.within(0, || bind_when_free((NEAR, 9)));
        kernel.set_nonblocking(true).unwrap();
        setsockopt(&kernel, RcvBufForce, &(8 << 20)).unwrap();
        let bonds = Self { ends, kernel };
        until("both ports are in use", || bonds.ports_up() == [2, 2]);
        bonds.send(1);
        until("the first datagram arrives", || bonds.passed() == 1);
        Some(bonds)
    }

    fn add(ends: &Namespaces, end: usize, port: &str) {
        ends.must(end, &format!("link set {port} down"));
        ends.must(end, &format!("link set {port} master bond0"));
        ends.must(end, &format!("link set {port} up"));
    }

    fn ports_up(&self) -> [usize; 2] {
        [0, 1].map(|end| {
            let text = self.ends.within(end, || fs::read_to_string("/proc/thread-self/net/bonding/bond0").unwrap());
            let count = |wanted: &str| text.lines().filter(|line| line.trim() == wanted).count();
            if text.contains("802.3ad info") {
                // A port in use has two such lines, one of them for its LACP partner.
                count(LACP_IN_USE) / 2
            } else {
                // The bond itself has an "MII Status" line, too.
                count("MII Status: up") - 1
            }
        })
    }

    fn count(&self, device: &str) -> Started {
        let args = [
            "count",
            device,
            "--take",
            "all",
            "--virtual-cpus",
            "2",
            "--check-order",
            "--backlog",
            "10000",
            "--json",
            "-v",
        ];
        Started::of(self.ends.within(0, || command(&args).spawn().unwrap()))
    }

    fn send(&self, each: usize) {
        self.ends.within(1, || {
            let sockets: Vec<UdpSocket> = (0..50).map(|flow| bind_when_free((FAR, 20_000 + flow))).collect();
            for socket in sockets.iter().cycle().take(if each == 1 { 1 } else { each * 50 }) {
                socket.send_to(&[0; 100], (NEAR, 9)).unwrap();
            }
        });
    }

    fn send_during(&self, change: impl FnOnce() + Send) -> usize {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let mut sent = 0;
                while !ended.load(Ordering::Relaxed) {
                    self.send(2);
                    sent += 100;
                }
                sent
            });
            change();
            ended.store(true, Ordering::Relaxed);
            sender.join().unwrap()
        })
    }

    fn activate(&self, port: usize) {
        for (end, side) in [(0, 'p'), (1, 'q')] {
            self.ends.must(end, &format!("link set bond0 type bond active_slave {side}{port}"));
        }
    }

    fn active(&self) -> [String; 2] {
        [0, 1].map(|end| {
            let text = self.ends.within(end, || fs::read_to_string("/proc/thread-self/net/bonding/bond0").unwrap());
            let line = text.lines().find_map(|line| line.strip_prefix("Currently Active Slave: "));
            line.unwrap_or_default().to_owned()
        })
    }

    /// Returns how many datagrams the kernel has received since the last call.
    fn passed(&self) -> usize {
        std::iter::from_fn(|| self.kernel.recv(&mut [0; 100]).ok()).count()
    }

    /// Returns how many datagrams the receiving bond has refused because they came by a port that
    /// the bond does not use. The sending bond may be the first to use a cable.
    fn refused(&self) -> usize {
        let counters = ["p0", "p1"].map(|port| format!("/sys/class/net/{port}/statistics/rx_nohandler"));
        let shown = self.ends.command(0, &["cat", &counters[0], &counters[1]]).output().unwrap();
        let numbers = String::from_utf8(shown.stdout).unwrap();
        numbers.lines().map(|number| number.parse::<usize>().unwrap()).sum()
    }
}

fn received(report: &Value) -> usize {
    report["snapshot"]["received"].as_u64().unwrap() as usize
}

fn by_queue(report: &Value) -> Vec<u64> {
    let queues = report["snapshot"]["queues"].as_array().unwrap();
    queues.iter().map(|queue| queue["received"].as_u64().unwrap()).collect()
}

#[test]
fn a_port_leaves_a_bond_and_returns() {
    for options in
        ["mode balance-xor xmit_hash_policy layer3+4", "mode 802.3ad lacp_rate fast xmit_hash_policy layer3+4"]
    {
        let Some(bonds) = Bonds::new(options) else { return };
        let started = bonds.count("af_xdp:bond0");
        // The kernel announces the addresses of both bonds while ports join.
        let refused_before = bonds.refused();
        let sent = bonds.send_during(|| {
            // The sender's port `q1` leaves its bond before `p1` does, so that no datagram is sent
            // to a port that has left its bond.
            bonds.ends.must(1, "link set q1 nomaster");
            bonds.ends.must(0, "link set p1 nomaster");
            Bonds::add(&bonds.ends, 0, "p1");
            Bonds::add(&bonds.ends, 1, "q1");
            until("both ports are in use", || bonds.ports_up() == [2, 2]);
            if options.contains("802.3ad") {
                // While the run takes packets from the bond, the kernel receives the LACP messages.
                let start = Instant::now();
                until("LACP had to time out", || start.elapsed() > 2 * LACP_TIMEOUT);
                assert_eq!(bonds.ports_up(), [2, 2]);
            }
        });
        let report = started.stop_at_rest();
        let (passed, refused) = (bonds.passed(), bonds.refused() - refused_before);
        assert_eq!(received(&report) + passed + refused, sent, "{options}, {passed} and {refused}: {report}");
        let by_queue = by_queue(&report);
        assert!(by_queue[..2].iter().all(|received| *received > 0) && by_queue[2..] == [0], "{by_queue:?}");
        let modes = report["snapshot"]["queues"].as_array().unwrap().iter().map(|queue| queue["mode"].clone());
        assert_eq!(modes.collect::<Vec<_>>(), ["native, copy", "native, copy", "native, for a new port"], "{report}");
    }
}

#[test]
fn the_active_port_of_a_bond_changes() {
    let Some(bonds) = Bonds::new("mode active-backup") else { return };
    bonds.activate(0);
    let started = bonds.count("af_xdp:bond0");
    bonds.send(100);
    // The far end now sends to a port that is not active. Like the run, the kernel drops packets to
    // an inactive port.
    bonds.ends.must(1, "link set bond0 type bond active_slave q1");
    bonds.send(10);
    bonds.activate(1);
    until("the other port is taken from", || {
        bonds.send(2);
        received_so_far(&started) > 5_000
    });
    let report = started.stop_at_rest();
    let by_queue = by_queue(&report);
    assert!(by_queue[0] == 5_000 && by_queue[1] > 0, "{by_queue:?}");
}

#[test]
fn a_new_port_of_a_bond_is_taken_from() {
    let Some(bonds) = Bonds::new("mode balance-xor xmit_hash_policy layer3+4") else { return };
    let started = bonds.count("af_xdp:bond0");
    assert_eq!(queues(&started).len(), 3, "there is room for one more port");
    let mut sent = 0;
    let mut passed = 0;
    for name in ["p2", "p3"] {
        let peer = name.replace('p', "q");
        sent += bonds.send_during(|| {
            bonds.ends.veth((0, name), (1, &peer));
            Bonds::add(&bonds.ends, 0, name);
            Bonds::add(&bonds.ends, 1, &peer);
            until("all ports are in use", || bonds.ports_up() == [3, 3]);
        });
        let before = queues(&started)[2];
        until("the new port is taken from", || {
            bonds.send(2);
            sent += 100;
            queues(&started)[2] > before
        });
        // All datagrams of the sender's port must arrive before the receiving port is deleted.
        bonds.ends.must(1, &format!("link set {peer} nomaster"));
        until("all datagrams have arrived", || {
            passed += bonds.passed();
            received_so_far(&started) as usize + passed == sent
        });
        sent += bonds.send_during(|| {
            bonds.ends.must(0, &format!("link del {name}"));
            until("the port is gone", || bonds.ports_up() == [2, 2]);
        });
    }
    bonds.send(20);
    sent += 1_000;
    started.signal(Signal::SIGINT);
    let ran = started.end();
    let report = ran.report();
    for port in ["p2", "p3"] {
        let line = format!("the bond has a new port, whose packets are taken too port=\"{port}\"");
        assert!(ran.code == Some(0) && ran.err.contains(&line), "{ran:?}");
    }
    passed += bonds.passed();
    assert_eq!(received(&report) + passed, sent, "{report}");
    let snapshot = &report["snapshot"];
    assert_eq!((&snapshot["reordered"], &snapshot["in_flight"]), (&json!(0), &json!(0)), "{report}");
    assert_eq!(snapshot["pages"], snapshot["pages_free"], "{report}");
}

#[test]
fn a_new_port_without_room_is_left_to_the_kernel() {
    let Some(bonds) = Bonds::new("mode balance-xor xmit_hash_policy layer3+4") else { return };
    let started = bonds.count("af_xdp:bond0,ports=2");
    bonds.ends.veth((0, "p2"), (1, "q2"));
    Bonds::add(&bonds.ends, 0, "p2");
    Bonds::add(&bonds.ends, 1, "q2");
    until("all ports are in use", || bonds.ports_up() == [3, 3]);
    bonds.send(20);
    started.signal(Signal::SIGINT);
    let ran = started.end();
    let report = ran.report();
    let is_told = ran.err.contains("port=\"p2\"") && ran.err.contains("there is no room for it");
    assert!(ran.code == Some(0) && is_told, "{ran:?}");
    let (taken, passed) = (received(&report), bonds.passed());
    assert!(taken + passed == 1_000 && taken > 0 && passed > 0, "{taken}, {passed}: {report}");
    let counted: u64 =
        report["snapshot"]["queues"].as_array().unwrap().iter().map(|q| q["passed"].as_u64().unwrap()).sum();
    assert!(counted >= passed as u64, "{report}");
}

#[test]
fn a_port_of_a_bond_loses_its_link() {
    const MODES: [&str; 3] = [
        "mode active-backup",
        "mode balance-xor xmit_hash_policy layer3+4",
        "mode 802.3ad lacp_rate fast xmit_hash_policy layer3+4",
    ];
    for options in MODES {
        let Some(bonds) = Bonds::new(options) else { return };
        let is_backup = options == MODES[0];
        if is_backup {
            bonds.activate(0);
        }
        let started = bonds.count("af_xdp:bond0");
        let (mut sent, mut passed) = (0, 0);
        until("packets are taken", || {
            bonds.send(2);
            sent += 100;
            passed += bonds.passed();
            received_so_far(&started) > 0
        });
        // The near port stays up but loses its carrier.
        bonds.ends.must(1, "link set q0 down");
        until("one port is in use", || bonds.ports_up() == [1, 1]);
        if is_backup {
            until("the bond has changed to the other port", || bonds.active() == ["p1", "q1"]);
        }
        let before = queues(&started)[1];
        until("the other port is taken from", || {
            bonds.send(2);
            sent += 100;
            passed += bonds.passed();
            queues(&started)[1] > before
        });
        bonds.ends.must(1, "link set q0 up");
        until("both ports are in use", || bonds.ports_up() == [2, 2]);
        bonds.send(20);
        let report = started.stop_at_rest();
        assert_eq!(received(&report) + passed + bonds.passed(), sent + 1_000, "{options}: {report}");
        let by_queue = by_queue(&report);
        assert!(by_queue[..2].iter().all(|received| *received > 0), "{options}: {by_queue:?}");
    }
}

fn queues(started: &Started) -> Vec<u64> {
    let ran = run(&["top", "--once", "--json", "--to", &started.id().to_string()]);
    by_queue(&serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}")))
}

fn received_so_far(started: &Started) -> u64 {
    let ran = run(&["get", "--to", &started.id().to_string(), "steerage/received"]);
    ran.out.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"))
}

#[test]
fn a_vlan_on_a_bond_is_taken_from() {
    let Some(bonds) = Bonds::new("mode balance-xor") else { return };
    for end in [0, 1] {
        let Some(vlan) = bonds.ends.vlan(end, "bond0", 5) else { return };
        bonds.ends.must(end, &format!("addr add 10.211.0.{}/24 dev {vlan}", end + 1));
    }
    let kernel = bonds.ends.within(0, || bind_when_free(("10.211.0.1", 9)));
    kernel.set_nonblocking(true).unwrap();
    let send = |count| {
        bonds.ends.within(1, || {
            let socket = bind_when_free(("10.211.0.2", 20_000));
            for _ in 0..count {
                socket.send_to(&[0; 100], ("10.211.0.1", 9)).unwrap();
            }
        });
    };
    let passed = || std::iter::from_fn(|| kernel.recv(&mut [0; 100]).ok()).count();
    send(1);
    until("the first datagram arrives", || passed() == 1);
    let started = bonds.count("af_xdp:bond0.5");
    send(500);
    let report = started.stop_at_rest();
    assert_eq!((received(&report) + passed(), received(&report) > 0), (500, true), "{report}");
    assert_eq!(report["snapshot"]["queues"][0]["mode"], "skb, copy");
}

/// The test runs with AF_PACKET and with AF_XDP.
#[test]
fn packets_are_forwarded_between_vlans() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    const COUNT: usize = 500;
    let Some(ends) = Namespaces::new(3) else { return };
    let hosts = [("a0", "a1", 5), ("b0", "b1", 6)];
    for (nth, (inner, outer, id)) in (1..).zip(hosts) {
        ends.veth((0, inner), (nth, outer));
        // With AF_XDP, the router does not change checksums, so the sender must compute them.
        ends.features(nth, outer, "tx off");
        let Some(inner) = ends.vlan(0, inner, id) else { return };
        let Some(outer) = ends.vlan(nth, outer, id) else { return };
        ends.must(0, &format!("addr add 10.21{nth}.0.1/24 dev {inner}"));
        ends.must(nth, &format!("addr add 10.21{nth}.0.2/24 dev {outer}"));
        ends.must(nth, &format!("route add default via 10.21{nth}.0.1"));
    }
    let sink = ends.within(2, || bind_when_free(("10.212.0.2", 9)));
    setsockopt(&sink, RcvBufForce, &(8 << 20)).unwrap();
    sink.set_nonblocking(true).unwrap();
    // The router's kernel sends empty datagrams to resolve the neighbour's address.
    let arrived = || std::iter::from_fn(|| sink.recv(&mut [0; 100]).ok()).filter(|len| *len > 0).count();
    let send = |count: usize| {
        ends.within(1, || {
            let socket = bind_when_free(("10.211.0.2", 20_000));
            for _ in 0..count {
                socket.send_to(&[0; 100], ("10.212.0.2", 9)).unwrap();
            }
        });
    };
    for kind in ["", "af_xdp:"] {
        let devices = ["a0.5", "b0.6"].map(|name| format!("{kind}{name}"));
        let take: &[&str] = if kind.is_empty() { &[] } else { &["--take", "udp"] };
        let args =
            [&["forward", &devices[0], &devices[1], "--backlog", "10000", "--check-order", "--json", "-v"], take]
                .concat();
        let started = Started::of(ends.within(0, || command(&args).spawn().unwrap()));
        until("a datagram is forwarded", || {
            send(1);
            arrived() > 0
        });
        send(COUNT);
        let mut sum = 0;
        until("all datagrams are forwarded", || {
            sum += arrived();
            sum >= COUNT
        });
        let report = started.stop_at_rest();
        assert!(kind.is_empty() || report["snapshot"]["queues"][0]["mode"] == "skb, copy", "{report}");
    }
}

#[test]
fn a_bond_without_a_delay_is_named() {
    let Some(bonds) = Bonds::new("mode balance-xor") else { return };
    bonds.ends.must(0, "link set bond0 type bond downdelay 0");
    let started = bonds.count("af_xdp:bond0");
    let note = |line: &String| line.contains("bond0: its downdelay is 0");
    assert!(started.said().iter().any(note), "{:?}", started.said());
    started.stop_at_rest();
}
