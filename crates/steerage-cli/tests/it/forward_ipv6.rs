//! The router's kernel also receives each IPv6 packet that `forward` handles, and must not send
//! ICMP errors about it. To silence the kernel, `forward` adds routing rules, which `ip -6 rule`
//! shows.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use steerage_fixtures::namespaces::{Namespaces, address, ping, tcp_transfer};
use steerage_fixtures::{HANG, skip};

use crate::forward::{FAR6, ONE, OTHER, ROUTER, linked};
use crate::program::{Ran, Started, children, command};

/// Receives ICMPv6 errors "destination unreachable" (type 1) in this network namespace.
fn errors() -> UdpSocket {
    let socket = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6);
    let socket: UdpSocket = socket.unwrap().into();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

/// Counts the ICMP errors that have arrived, by the source port of the quoted packet. The port
/// follows 8 bytes of ICMP header and the 40 bytes of the quoted IPv6 header.
fn read(errors: &UdpSocket, counts: &mut BTreeMap<u16, u32>) {
    let mut error = [0; 2048];
    while let Ok(len) = errors.recv(&mut error) {
        if len >= 50 && error[0] == 1 {
            *counts.entry(u16::from_be_bytes([error[48], error[49]])).or_default() += 1;
        }
    }
}

fn rules(net: &Namespaces) -> String {
    let output = net.within(ROUTER, || Command::new("ip").args(["-6", "rule"]).output().unwrap());
    String::from_utf8(output.stdout).unwrap()
}

fn start(net: &Namespaces, more: &[&str]) -> Started {
    let args =
        [&["forward", "r0", "r1", "--virtual-cpus", "2", "--check-order", "--json", "-v", "--socket", "none"], more]
            .concat();
    Started::of(net.within(ROUTER, || command(&args).spawn().unwrap()))
}

/// Routes on the command line replace the kernel's routes to the same prefix.
#[test]
fn the_kernel_does_not_answer_what_is_forwarded() {
    let Some(net) = linked() else { return };
    let kinds = ["", "unreachable", "prohibit", "blackhole", "dev r1"];
    let mut routes = vec!["fd00:210::/64 dev r0".to_owned(), "fd00:211::/64 dev r1".to_owned()];
    for (nth, kind) in kinds.iter().enumerate() {
        let prefix = format!("fd05:{nth}::/64");
        match *kind {
            "" => {}
            "dev r1" => net.must(ROUTER, &format!("-6 route add {prefix} dev r1")),
            kind => net.must(ROUTER, &format!("-6 route add {kind} {prefix}")),
        }
        net.must(OTHER, &format!("addr add fd05:{nth}::2/128 dev lo nodad"));
        routes.push(format!("{prefix} via {FAR6} dev r1"));
    }
    let options: Vec<&str> = routes.iter().flat_map(|route| ["--route", route]).collect();
    let started = start(&net, &options);
    // The first packet to a neighbour is dropped while the kernel resolves the address.
    net.within(ONE, || ping(address(FAR6), 56));
    net.within(OTHER, || ping(address("fd00:210::2"), 56));
    let (errors, mut counts) = (net.within(ONE, errors), BTreeMap::new());
    for (nth, kind) in kinds.iter().enumerate() {
        let far = address(&format!("fd05:{nth}::2"));
        net.within(ONE, || ping(far, 56));
        for _ in 0..5 {
            tcp_transfer(&net, ONE, OTHER, far, 10_000);
        }
        read(&errors, &mut counts);
        assert!(counts.is_empty(), "{kind}: {counts:?}");
    }
    // The router's kernel still answers packets to the router's own addresses.
    net.within(ONE, || ping(address("fd00:211::1"), 56));
    started.stop_at_rest();
}

#[test]
fn a_packet_without_a_route_gets_one_error() {
    let Some(net) = linked() else { return };
    for route in ["unreachable fd06:1::/64", "prohibit fd06:2::/64"] {
        net.must(ROUTER, &format!("-6 route add {route}"));
    }
    let started = start(&net, &[]);
    net.within(ONE, || ping(address(FAR6), 56));
    let (errors, mut counts) = (net.within(ONE, errors), BTreeMap::new());
    let mut sent = BTreeMap::new();
    for to in ["fd06::9", "fd06:1::9", "fd06:2::9"] {
        let asks = net.within(ONE, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap());
        let port = asks.local_addr().unwrap().port();
        asks.send_to(&[0x5a; 40], SocketAddr::new(address(to), 33434)).unwrap();
        let start = Instant::now();
        while !counts.contains_key(&port) {
            assert!(start.elapsed() < HANG, "no error about {to}");
            read(&errors, &mut counts);
        }
        sent.insert(port, 1);
    }
    // The kernel answers within the system call that sends the packet, so its ICMP errors would
    // arrive before the ping replies.
    net.within(ONE, || ping(address(FAR6), 56));
    read(&errors, &mut counts);
    assert_eq!(counts, sent);
    started.stop_at_rest();
}

#[test]
fn the_rules_last_as_long_as_the_run() {
    let Some(net) = linked() else { return };
    let before = rules(&net);
    let in_force = |net: &Namespaces| {
        let rules = rules(net);
        ["r0", "r1"].iter().all(|name| rules.contains(&format!("iif {name} blackhole")))
    };
    let gone = || {
        let start = Instant::now();
        while rules(&net) != before {
            assert!(start.elapsed() < HANG, "{}", rules(&net));
            thread::sleep(Duration::from_millis(5));
        }
    };
    let started = start(&net, &[]);
    assert!(in_force(&net), "{}", rules(&net));
    started.stop_at_rest();
    assert_eq!(rules(&net), before, "the rules are removed before the run ends");

    let started = start(&net, &[]);
    assert!(in_force(&net), "{}", rules(&net));
    started.signal(Signal::SIGKILL);
    gone();

    // A routing rule of steerage remains if a run and its helper process are killed.
    net.must(ROUTER, "-6 rule add pref 32765 iif r0 blackhole protocol 115");
    start(&net, &[]).stop_at_rest();
    assert_eq!(rules(&net), before);

    // The user's routing rules keep their priorities, and the rule for the table `local` comes
    // first.
    net.must(ROUTER, "-6 rule add pref 900 lookup main");
    net.must(ROUTER, "-6 rule add pref 880 from fd07::/64 lookup 77");
    let started = start(&net, &[]);
    let order: Vec<String> = rules(&net).lines().map(|line| line.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(order, ["0", "880", "899", "899", "900", "32766"]);
    started.stop_at_rest();
}

/// If the rules for the routing tables have an unusual order, `forward` cannot insert its rule
/// between them. No additional rule would correct the order, so the error message recommends no
/// `ip` commands.
#[test]
fn tables_in_the_wrong_order_are_refused() {
    let Some(net) = linked() else { return };
    for changes in
        [&["add pref 0 lookup main"][..], &["del pref 0 lookup main", "add pref 40000 lookup local", "del pref 0"]]
    {
        changes.iter().for_each(|change| net.must(ROUTER, &format!("-6 rule {change}")));
        let before = rules(&net);
        let args = ["forward", "r0", "r1", "--socket", "none", "--seconds", "0.2"];
        let ran = Ran::of(net.within(ROUTER, || command(&args).output()).unwrap());
        assert_eq!((ran.code, rules(&net)), (Some(1), before), "{ran:?}");
        assert!(error(&ran).contains("the table local") && !error(&ran).contains("rule add"), "{ran:?}");
    }
}

/// A routing rule of an earlier run has no effect if it comes after the rule for the table `main`.
#[test]
fn a_rule_without_effect_is_replaced() {
    let Some(net) = linked() else { return };
    let before = rules(&net);
    net.must(ROUTER, "-6 rule add pref 32767 iif r0 blackhole protocol 115");
    let started = start(&net, &[]);
    assert_eq!(rules(&net).matches("iif r0 blackhole").count(), 1, "{}", rules(&net));
    assert!(rules(&net).contains("32765:\tfrom all iif r0 blackhole"), "{}", rules(&net));
    started.stop_at_rest();
    assert_eq!(rules(&net), before);
}

/// The first run removes its routing rule when it ends, so a second run asks the user to add
/// another rule.
#[test]
fn a_second_run_has_no_rule_of_the_first() {
    let Some(net) = linked() else { return };
    let started = start(&net, &[]);
    let before = rules(&net);
    let second = || {
        let run = || command(&["forward", "r0", "tun:t0", "--socket", "none", "--seconds", "0.2"]).output().unwrap();
        Ran::of(net.within(ROUTER, run))
    };
    let ran = second();
    assert_eq!((ran.code, rules(&net)), (Some(1), before), "{ran:?}");
    assert!(error(&ran).contains("another run forwards what comes by r0"), "{ran:?}");
    commands(&ran).iter().for_each(|command| net.must(ROUTER, command));
    let ran = second();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    started.stop_at_rest();
    assert!(rules(&net).contains("iif r0 blackhole") && !rules(&net).contains("iif r1 blackhole"), "{}", rules(&net));
}

#[test]
fn what_is_not_removed_is_named() {
    let Some(net) = linked() else { return };
    let started = start(&net, &[]);
    net.must(ROUTER, "-6 rule del iif r1 pref 32765 blackhole");
    started.signal(Signal::SIGINT);
    let ran = started.end();
    let named = "steerage: cannot remove the rule iif r1 pref 32765 blackhole: ";
    assert!(ran.code == Some(0) && ran.err.contains(named), "{ran:?}");

    let started = start(&net, &[]);
    kill(children(started.id())[0], Signal::SIGKILL).unwrap();
    started.signal(Signal::SIGINT);
    let ran = started.end();
    assert!(ran.code == Some(0) && ran.err.contains("ended early"), "{ran:?}");
    for name in ["r0", "r1"] {
        let rule = format!("rule del iif {name} pref 32765 blackhole");
        assert!(ran.err.contains(&rule), "{ran:?}");
        net.must(ROUTER, &format!("-6 {rule}"));
    }
}

#[test]
fn the_log_names_the_kept_capability() {
    let Some(net) = linked() else { return };
    let ran = Ran::of(net.within(ROUTER, || command(&["-v", "silence-kernel", "r0"]).output()).unwrap());
    assert!(ran.code == Some(0) && ran.err.contains("kept=CapabilitySet(NET_ADMIN)"), "{ran:?}");
}

/// Notes about the interfaces may come before the error line.
fn error(ran: &Ran) -> &str {
    ran.err.lines().last().unwrap_or_default()
}

fn commands(ran: &Ran) -> Vec<String> {
    let (_, commands) = error(ran).split_once("as root, ").unwrap_or_else(|| panic!("{ran:?}"));
    commands.split("; ").map(|command| command.strip_prefix("ip ").unwrap().to_owned()).collect()
}

/// Without `CAP_NET_ADMIN`, the user must add the routing rules, unless the interfaces have no IPv6
/// addresses.
#[test]
fn without_the_capability_the_rules_must_be_there() {
    let Some(net) = linked() else { return };
    let program = env!("CARGO_BIN_EXE_steerage");
    let words = ["--inh-caps=-net_admin", "--bounding-set=-net_admin", program, "forward", "r0", "r1", "--json"];
    let run = || {
        let mut run = Command::new("setpriv");
        run.args(words).args(["--socket", "none", "--virtual-cpus", "2", "--seconds", "0.2"]);
        net.within(ROUTER, || run.output())
    };
    let output = match run() {
        Ok(output) => Ran::of(output),
        Err(error) => return skip(&format!("no setpriv (util-linux): {error}")),
    };
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(commands(&output), ["r0", "r1"].map(|name| format!("-6 rule add iif {name} pref 32765 blackhole")));
    commands(&output).iter().for_each(|command| net.must(ROUTER, command));
    let by_user = rules(&net);
    let output = Ran::of(run().unwrap());
    assert_eq!((output.code, rules(&net)), (Some(0), by_user), "{output:?}");

    // The rules that silence the kernel must come before the rule for the table `main`. Only one of
    // the user's two rules comes before the rule for `main`.
    net.must(ROUTER, "-6 rule add pref 900 lookup main");
    net.must(ROUTER, "-6 rule add iif r1 pref 850 blackhole");
    let output = Ran::of(run().unwrap());
    assert_eq!((output.code, commands(&output)), (Some(1), vec!["-6 rule add iif r0 pref 899 blackhole".to_owned()]));
    commands(&output).iter().for_each(|command| net.must(ROUTER, command));
    let output = Ran::of(run().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
    for rule in ["pref 900 lookup main", "iif r1 pref 850 blackhole", "iif r0 pref 899 blackhole"] {
        net.must(ROUTER, &format!("-6 rule del {rule}"));
    }

    for name in ["r0", "r1"] {
        net.must(ROUTER, &format!("-6 rule del iif {name} pref 32765 blackhole"));
        let off = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        net.within(ROUTER, || std::fs::write(off, "1").unwrap());
    }
    let output = Ran::of(run().unwrap());
    assert_eq!(output.code, Some(0), "{output:?}");
}
