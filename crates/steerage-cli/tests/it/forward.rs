//! `steerage forward` as the router between two hosts. The hosts and the router are network
//! namespaces.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt};
use serde_json::{Value, json};
use steerage_fixtures::namespaces::{Echo, Namespaces, address, ping, tcp_transfer, udp_exchange};
use steerage_fixtures::{HANG, exposition, skip};

use crate::metrics;
use crate::program::{Ends, Ran, Started, assert_lost_only_under_load, command};

pub(crate) const ONE: usize = 0;
pub(crate) const ROUTER: usize = 1;
pub(crate) const OTHER: usize = 2;

/// The addresses of the second host (namespace `OTHER`).
pub(crate) const FAR4: &str = "10.210.1.2";
pub(crate) const FAR6: &str = "fd00:211::2";

struct Net(Namespaces);

pub(crate) fn linked() -> Option<Namespaces> {
    linked_by(None)
}

/// With a VLAN, the addresses belong to VLAN interfaces, such as `r0.5`. Returns `None` if this
/// kernel does not support VLAN interfaces.
pub(crate) fn linked_by(vlan: Option<u16>) -> Option<Namespaces> {
    let namespaces = Namespaces::new(3)?;
    namespaces.veth((ONE, "one0"), (ROUTER, "r0"));
    namespaces.veth((OTHER, "other0"), (ROUTER, "r1"));
    for (nth, cable, v4, v6) in [
        (ONE, "one0", "10.210.0.2", "fd00:210::2"),
        (ROUTER, "r0", "10.210.0.1", "fd00:210::1"),
        (ROUTER, "r1", "10.210.1.1", "fd00:211::1"),
        (OTHER, "other0", FAR4, FAR6),
    ] {
        let device = match vlan {
            Some(id) => namespaces.vlan(nth, cable, id)?,
            None => cable.to_owned(),
        };
        // The kernel derives link-local addresses from MAC addresses, as IPv6 expects.
        namespaces.must(nth, &format!("link set dev {device} addrgenmode eui64"));
        namespaces.must(nth, &format!("addr add {v4}/24 dev {device}"));
        namespaces.must(nth, &format!("addr add {v6}/64 dev {device} nodad"));
    }
    for (nth, v4, v6) in [(ONE, "10.210.0.1", "fd00:210::1"), (OTHER, "10.210.1.1", "fd00:211::1")] {
        namespaces.must(nth, &format!("route add default via {v4}"));
        namespaces.must(nth, &format!("-6 route add default via {v6}"));
    }
    Some(namespaces)
}

impl Net {
    fn new() -> Option<Self> {
        let namespaces = linked()?;
        for (nth, device) in [(ONE, "one0"), (OTHER, "other0")] {
            // The hosts must send no super-frames. With `gso_max_segs 1`, the sending kernel cuts
            // packets that are too long for a real cable, but leaves checksums to the checksum
            // offload.
            namespaces.must(nth, &format!("link set dev {device} gso_max_segs 1"));
        }
        Some(Self(namespaces))
    }

    fn start(&self, more: &[&str]) -> Started {
        let args = [&["forward", "--virtual-cpus", "2", "--check-order", "--json", "-v"], more].concat();
        Started::of(self.0.within(ROUTER, || command(&args).spawn().unwrap()))
    }

    fn router(&self, args: &str) {
        self.0.must(ROUTER, args);
    }
}

fn stop(started: Started) -> Value {
    let report = started.stop_at_rest();
    accounted(&report);
    report
}

/// Checks that `forward` counted exactly one outcome for each handled packet.
fn accounted(report: &Value) {
    let sum = |of: &Value| of.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum::<u64>();
    let forward = &report["app"]["forward"];
    let fates = forward["forwarded"].as_u64().unwrap() + sum(&forward["dropped"]) + sum(&forward["left"]);
    let lost_after =
        ["tx_full", "tx_refused"].map(|reason| report["snapshot"]["dropped"][reason].as_u64().unwrap_or(0));
    assert_eq!(fates, report["snapshot"]["delivered"].as_u64().unwrap() + lost_after.iter().sum::<u64>(), "{report}");
}

fn dropped(report: &Value, why: &str) -> u64 {
    report["app"]["forward"]["dropped"][why].as_u64().unwrap_or(0)
}

/// Sends datagrams until an ICMP error of the expected type and code arrives. Returns the source
/// address of the ICMP error.
fn error_about(to: &str, hops: u32, expected: (u8, u8)) -> IpAddr {
    let to = address(to);
    let (family, protocol, any) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, "0.0.0.0:0"),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, "[::]:0"),
    };
    let errors: UdpSocket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap().into();
    errors.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let asks = UdpSocket::bind(any).unwrap();
    match to {
        IpAddr::V4(_) => asks.set_ttl(hops).unwrap(),
        IpAddr::V6(_) => setsockopt(&asks, sockopt::Ipv6Ttl, &(hops as i32)).unwrap(),
    }
    // The offsets of the ICMP message and of the source port that it quotes. A raw IPv4 socket also
    // returns the IP header before the ICMP message.
    let (at, port_at) = if to.is_ipv4() { (20, 20 + 8 + 20) } else { (0, 8 + 40) };
    let port = asks.local_addr().unwrap().port().to_be_bytes();
    let (start, mut answer) = (Instant::now(), [0; 2048]);
    loop {
        assert!(start.elapsed() < HANG, "no ICMP error {expected:?} about {to}");
        // `send_to` may return ICMP errors about earlier datagrams.
        let _ = asks.send_to(&[0x5a; 40], SocketAddr::new(to, 33434));
        while let Ok((len, from)) = errors.recv_from(&mut answer) {
            let answer = &answer[..len];
            let is_it = answer.get(at..at + 2) == Some(&[expected.0, expected.1]);
            if is_it && answer.get(port_at..port_at + 2) == Some(&port) {
                return from.ip();
            }
        }
    }
}

#[test]
fn two_kernels_talk_through_it() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["r0", "r1"]);
    for task in fs::read_dir(format!("/proc/{}/task", started.id())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("CapPrm:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
    }
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.0.within(OTHER, || ping(address("fd00:210::2"), 1300));
    net.0.within(ONE, || ping(address(FAR6), 4000));
    for to in [FAR4, FAR6] {
        let echo = net.0.within(OTHER, || Echo::new(address(to)));
        let at = echo.1;
        net.0.within(ONE, || udp_exchange(at, 200, 700));
        tcp_transfer(&net.0, ONE, OTHER, address(to), 4_000_000);
        drop(echo);
    }
    tcp_transfer(&net.0, OTHER, ONE, address("10.210.0.2"), 4_000_000);
    // The router's kernel replies to a ping of the router's own address.
    net.0.within(ONE, || ping(address("10.210.1.1"), 56));
    let report = stop(started);
    // The hosts send super-frames, and the router forwards each in one piece, so the number of
    // frames is not known.
    assert!(report["snapshot"]["received_bytes"].as_u64().unwrap() > 12_000_000, "{report}");
    assert!(report["app"]["forward"]["left"]["local"].as_u64().unwrap() > 0, "{report}");
    let others = report["app"]["forward"]["dropped"].as_object().unwrap().keys().filter(|why| *why != "unresolved");
    assert_eq!(others.count(), 0, "{report}");
    assert_lost_only_under_load(&report);
}

#[test]
fn icmp_errors_come_back() {
    let Some(net) = Net::new() else { return };
    net.router("route add prohibit 10.77.1.0/24");
    let started = net.start(&["r0", "r1", metrics::ANY]);
    let from_router = [address("10.210.0.1"), address("fd00:210::1")];
    net.0.within(ONE, || {
        // traceroute needs ICMP errors from each hop and from the end of the path.
        assert_eq!([error_about(FAR4, 1, (11, 0)), error_about(FAR6, 1, (3, 0))], from_router);
        assert_eq!([error_about(FAR4, 2, (3, 3)), error_about(FAR6, 2, (1, 4))], [address(FAR4), address(FAR6)]);
        assert_eq!([error_about("10.77.0.1", 9, (3, 0)), error_about("fd77::1", 9, (1, 0))], from_router);
        assert_eq!(error_about("10.77.1.1", 9, (3, 13)), from_router[0]);
        // No host has the addresses that end in 77, so the router's kernel reports these addresses
        // as unreachable after some time.
        assert_eq!([error_about("10.210.1.77", 9, (3, 1)), error_about("fd00:211::77", 9, (1, 3))], from_router);
    });
    let at = metrics::address(&started);
    let text = net.0.within(ROUTER, || metrics::get(at));
    exposition::check_with_promtool(&text);
    let page = exposition::read(&text);
    let report = stop(started);
    for why in ["ttl_expired", "no_route", "prohibited", "host_unreachable"] {
        let told = page.get(&format!("steerage_forward_packets_total{{fate=\"{why}\"}}"));
        assert!(told > 0.0 && told <= dropped(&report, why) as f64, "{why}: {told}, {report}");
    }
    let sent = report["app"]["forward"]["icmp_sent"].as_u64().unwrap();
    assert!(sent >= 7 && page.get("steerage_forward_icmp_errors_total{outcome=\"sent\"}") <= sent as f64, "{report}");
}

/// Runs a tool such as traceroute. Returns `None` if the tool is missing. In CI, the test fails
/// instead.
fn tool(net: &Net, namespace: usize, words: &[&str]) -> Option<String> {
    let run = || std::process::Command::new(words[0]).args(&words[1..]).stdin(std::process::Stdio::null()).output();
    match net.0.within(namespace, run) {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            skip(&format!("{}: {error}", words[0]));
            None
        }
    }
}

const TRACES_MAX: usize = 3;

fn hops(way: &str) -> Vec<Vec<&str>> {
    way.lines().skip(1).map(|line| line.split_whitespace().take(2).collect()).collect()
}

#[test]
fn traceroute_finds_the_way() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["r0", "r1"]);
    // The router drops packets while the neighbour's address is not resolved.
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.0.within(ONE, || ping(address(FAR6), 56));
    let mut ways = Vec::new();
    for (family, router, to) in [("-4", "10.210.0.1", FAR4), ("-6", "fd00:210::1", FAR6)] {
        // One probe at a time (`-N 1`), because the router limits the rate of its ICMP errors.
        for method in ["-U", "-I"] {
            let words = ["traceroute", family, method, "-n", "-N", "1", "-q", "1", "-m", "5", to];
            let expected = [["1", router], ["2", to]];
            // On a busy machine, the host sometimes receives no replies for a few seconds, although
            // the router has forwarded them. The cause is not known.
            for _ in 0..TRACES_MAX {
                let Some(way) = tool(&net, ONE, &words) else { return drop(stop(started)) };
                ways.push((hops(&way) == expected, format!("{method}: {way}")));
                if hops(&way) == expected {
                    break;
                }
            }
        }
    }
    let report = stop(started);
    let found = ways.iter().filter(|(found, _)| *found).count();
    assert_eq!(found, 4, "{ways:?}, {report}");
    assert!(dropped(&report, "ttl_expired") >= 4, "{report}");
}

fn overflows_of_udp() -> u64 {
    let table = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let [names, counts] = [lines.next().unwrap(), lines.next().unwrap()].map(|line| line.split(' '));
    let (_, count) = names.zip(counts).find(|(name, _)| *name == "RcvbufErrors").unwrap();
    count.parse().unwrap()
}

#[test]
fn iperf3_carries_a_gigabyte() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["r0", "r1"]);
    let mut lost = 0;
    for options in [&["-n", "1G"][..], &["-n", "50M", "-P", "4", "-R"], &["-u", "-b", "20M", "-l", "1200", "-n", "5M"]]
    {
        let mut server = std::process::Command::new("iperf3");
        let server = server.args(["-s", "-1", "-B", FAR4, "--forceflush"]).stdin(std::process::Stdio::null());
        let server = server.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        let Ok(server) = net.0.within(OTHER, || server.spawn()) else {
            skip("iperf3 is absent");
            return drop(stop(started));
        };
        let mut server = Ends(server);
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("Server listening")));
        let words = [&["iperf3", "-c", FAR4, "-J"], options].concat();
        let result: Value = serde_json::from_str(&tool(&net, ONE, &words).expect("the server runs")).unwrap();
        // The iperf3 server cannot end while its output pipe is full.
        lines.for_each(drop);
        let end = &result["end"];
        if options[0] == "-u" {
            let sum = &end["sum"];
            assert!(sum["packets"].as_u64().unwrap() >= 4_000, "{end}");
            // On a busy machine, the receive buffer of iperf3's socket overflows.
            lost = sum["lost_packets"].as_u64().unwrap().saturating_sub(net.0.within(OTHER, overflows_of_udp));
        } else {
            let [sent, received] = ["sum_sent", "sum_received"].map(|sum| end[sum]["bytes"].as_u64().unwrap());
            let wanted = if options[1] == "1G" { 1 << 30 } else { 50 << 20 };
            // When iperf3's sender stops counting, the last bytes are still in flight.
            assert!(sent >= wanted && received + (16 << 20) >= wanted, "{sent} sent, {received} received");
        }
        assert!(server.wait().unwrap().success());
    }
    let report = stop(started);
    assert_eq!(
        (&report["snapshot"]["reordered"], &report["snapshot"]["in_flight"]),
        (&json!(0), &json!(0)),
        "{report}"
    );
    let counts = report["snapshot"]["dropped"].as_object().unwrap().values();
    assert!(lost <= counts.filter_map(Value::as_u64).sum(), "{lost} lost, {report}");
    // Besides the payload, the router counts headers and acknowledgements.
    assert!(report["snapshot"]["received_bytes"].as_u64().unwrap() > (1 << 30) + (50 << 20), "{report}");
}

#[test]
fn tcp_finds_the_mtu_of_the_path() {
    let Some(net) = Net::new() else { return };
    net.router("link set r1 mtu 1300");
    let started = net.start(&["r0", "r1"]);
    for to in [FAR4, FAR6] {
        tcp_transfer(&net.0, ONE, OTHER, address(to), 1_000_000);
    }
    let report = stop(started);
    assert!(
        dropped(&report, "too_big") >= 2 && report["app"]["forward"]["icmp_sent"].as_u64().unwrap() >= 2,
        "{report}"
    );
    assert_lost_only_under_load(&report);
}

#[test]
fn routes_are_followed() {
    let Some(net) = Net::new() else { return };
    for (nth, device) in [(OTHER, "lo"), (ONE, "lo")] {
        net.0.must(nth, &format!("addr add 10.88.0.1/32 dev {device}"));
        net.0.must(nth, &format!("addr add fd88::1/128 dev {device} nodad"));
    }
    let started = net.start(&["r0", "r1"]);
    let unroutable = ("10.88.0.2", "fd88::2");
    net.router("route add 10.88.0.2/32 via 10.210.1.2");
    net.router("-6 route add fd88::2/128 via fd00:211::2");
    net.0.must(OTHER, "addr add 10.88.0.2/32 dev lo");
    net.0.must(OTHER, "addr add fd88::2/128 dev lo nodad");
    net.0.within(ONE, || ping(address(unroutable.0), 56));
    net.0.within(ONE, || ping(address(unroutable.1), 56));
    net.router(
        "route add 10.88.0.2/32 metric 5 nexthop via 10.210.1.2 weight 2 nexthop via 10.210.1.2 dev r1 weight 1",
    );
    net.router("route del 10.88.0.2/32 metric 0");
    net.0.within(ONE, || ping(address(unroutable.0), 56));
    net.router("route del 10.88.0.2/32");
    net.router("-6 route del fd88::2/128");
    net.0.within(ONE, || {
        error_about(unroutable.0, 9, (3, 0));
        error_about(unroutable.1, 9, (1, 0));
    });
    stop(started);
}

#[test]
fn neighbours_and_links_come_and_go() {
    let Some(net) = Net::new() else { return };
    let mut started = net.start(&["r0", "r1"]);
    net.0.within(ONE, || ping(address(FAR4), 56));
    // The router's kernel learns the host's new link address from the next packet.
    net.0.must(OTHER, "link set other0 address 02:00:00:00:00:77");
    net.0.within(OTHER, || ping(address("10.210.1.1"), 56));
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.router("link set r1 down");
    net.0.within(ONE, || error_about(FAR4, 9, (3, 0)));
    net.router("link set r1 up");
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.router("link set r1 name renamed");
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.router("link del renamed");
    net.0.within(ONE, || error_about(FAR4, 9, (3, 0)));
    // One CPU learns from the kernel that the route is gone. Another packet CPU detects the deleted
    // interface without a message from the kernel.
    while !started.error_line().contains("the interface was deleted") {}
    started.signal(Signal::SIGINT);
    let ran: Ran = started.end();
    let report = ran.report();
    assert_eq!((ran.code, &report["snapshot"]["reordered"]), (Some(1), &json!(0)), "{report}");
    assert!(ran.err.contains("the interface was deleted"), "{ran:?}");
    accounted(&report);
}

/// If the host announces its new link address, the router uses it at once. If the host makes no
/// announcement, the router's kernel must first notice that the old address does not answer.
#[test]
fn a_neighbour_whose_link_address_changes_is_found_again() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["r0", "r1"]);
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.0.within(OTHER, || fs::write("/proc/sys/net/ipv4/conf/other0/arp_notify", "1").unwrap());
    net.0.must(OTHER, "link set other0 address 02:00:00:00:00:78");
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.0.within(OTHER, || fs::write("/proc/sys/net/ipv4/conf/other0/arp_notify", "0").unwrap());
    // If the test did not set the neighbour state `stale`, the kernel would assume for 15 to 45 s
    // that the neighbour is reachable.
    net.router("neigh change 10.210.1.2 dev r1 nud stale");
    net.0.must(OTHER, "link set other0 address 02:00:00:00:00:79");
    net.0.within(ONE, || ping(address(FAR4), 56));
    let neighbours = net.0.within(ROUTER, || std::process::Command::new("ip").args(["neigh", "show", FAR4]).output());
    let neighbours = String::from_utf8(neighbours.unwrap().stdout).unwrap();
    assert!(neighbours.contains("02:00:00:00:00:79"), "{neighbours}");
    stop(started);
}

/// With `--route`, the run reads only the neighbours and the router's own addresses from the
/// kernel.
#[test]
fn routes_of_the_command_line_take_the_place_of_the_kernels() {
    let Some(net) = Net::new() else { return };
    let routes = ["--route", "10.210.0.0/24 dev r0", "--route", "10.99.0.0/16 via 10.210.1.2", "r0", "r1"];
    let started = net.start(&routes);
    net.0.must(OTHER, "addr add 10.99.0.1/32 dev lo");
    net.0.within(ONE, || ping(address("10.99.0.1"), 56));
    net.0.within(ONE, || error_about(FAR4, 9, (3, 0)));
    net.0.within(ONE, || ping(address("10.210.1.1"), 56));
    stop(started);
}

/// Frames from a TUN interface have no link header, so `forward` adds one. The replies to frames
/// from the TUN interface go to the router's kernel.
#[test]
fn from_a_tun_to_an_interface_with_link_headers() {
    let Some(net) = Net::new() else { return };
    let routes = ["--route", "10.99.0.0/16 via 10.210.1.2", "--route", "10.66.0.0/24 dev t0", "tun:t0", "r1"];
    let started = net.start(&routes);
    net.router("addr add 10.66.0.1/24 dev t0");
    net.router("route add 10.99.0.0/16 dev t0 src 10.66.0.1");
    net.0.must(OTHER, "addr add 10.99.0.1/32 dev lo");
    net.0.within(ROUTER, || ping(address("10.99.0.1"), 56));
    let report = stop(started);
    assert!(report["app"]["forward"]["forwarded"].as_u64().unwrap() >= 1, "{report}");
    assert_eq!(report["snapshot"]["dropped"]["tx_refused"].as_u64().unwrap_or(0), 0, "{report}");
}

/// The hosts offload checksums, so only their ICMP packets arrive at the router with correct
/// checksums.
#[test]
fn packets_that_are_taken_are_forwarded() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["af_xdp:r0", "af_xdp:r1", "--take", "all"]);
    net.0.within(ONE, || ping(address(FAR4), 1000));
    net.0.within(OTHER, || ping(address("fd00:210::2"), 56));
    net.0.within(ONE, || error_about(FAR4, 1, (11, 0)));
    let report = stop(started);
    assert!(report["app"]["forward"]["forwarded"].as_u64().unwrap() >= 4, "{report}");
}

/// The datagram arrives at the router's veth without a checksum.
#[test]
fn no_packet_goes_out_with_a_wrong_checksum() {
    let Some(net) = Net::new() else { return };
    let started = net.start(&["r0", "r1"]);
    let (listens, at) = net.0.within(OTHER, || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    });
    net.0.within(ONE, || ping(address(FAR4), 56));
    net.0.within(ONE, || ping(address(FAR6), 56));
    // The receiving kernel drops packets that arrive with a wrong checksum.
    for to in [FAR4, FAR6] {
        let payload: Vec<u8> = (0..999).map(|at| at as u8).collect();
        let bind = if to == FAR4 { "0.0.0.0:0" } else { "[::]:0" };
        net.0.within(ONE, || UdpSocket::bind(bind).unwrap().send_to(&payload, (address(to), at)).unwrap());
        let mut got = [0; 2000];
        let len = listens.recv(&mut got).unwrap();
        assert!(got[..len] == payload, "{to}");
    }
    stop(started);
}

#[test]
fn what_would_go_wrong_is_refused() {
    let Some(net) = Net::new() else { return };
    let refused = |args: &[&str]| -> (Option<i32>, String) {
        let output = net.0.within(ROUTER, || command(args).output().unwrap());
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.lines().filter(|line| line.starts_with("steerage: ")).count() == 1, "{err}");
        (output.status.code(), err)
    };
    let (code, err) = refused(&["forward", "r0", "r0"]);
    assert!(code == Some(1) && err.contains("named twice"), "{err}");
    let (code, err) = refused(&["forward", "tap:t0", "r0"]);
    assert!(code == Some(1) && err.contains("use a tun or a veth"), "{err}");
    let (code, err) = refused(&["forward", "r0", "capture.pcap"]);
    assert!(code == Some(1) && err.contains("no interface to forward by"), "{err}");
    let (code, err) = refused(&["forward", "r0", "r1", "--route", "10.0.0.0/8 by r1"]);
    assert!(code == Some(2) && err.contains("write such as"), "{err}");
    let (code, err) = refused(&["forward", "r0", "r1", "--route", "10.0.0.0/8 via 192.0.2.1"]);
    assert!(code == Some(1) && err.contains("say which with dev"), "{err}");
    for switch in ["net/ipv6/conf/all/forwarding", "net/ipv4/conf/r1/forwarding"] {
        let write = |value: &str| fs::write(format!("/proc/sys/{switch}"), value);
        net.0.within(ROUTER, || write("1")).unwrap();
        let (code, err) = refused(&["forward", "r0", "r1"]);
        assert!(code == Some(1) && err.contains(&format!("sysctl -w {switch}=0")), "{err}");
        net.0.within(ROUTER, || write("0")).unwrap();
    }
}
