//! Compares how many flows the kernel's own hash (for RPS) distinguishes on this machine with the
//! prediction of `steerage explain`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use steerage::flow::wire::{FrameBuilder, ethertype, port, protocol, put};
use steerage_device::af_xdp::flow_dissector::FlowDissector;
use steerage_fixtures::cable::Net;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::{HANG, skip};

use crate::explain::explained;
use crate::program::command;

/// The number of flows. If the kernel distinguishes all of these flows, it steers all of them to
/// one of two CPUs with a probability of 1 in 2^63.
const FLOWS: u16 = 64;

/// The number of tries. In at least one try, a single flow must use only one CPU. In other tries,
/// other traffic of the machine may use the second CPU.
const TRIES: usize = 100;

/// In `SPREADS` of `SPREAD_TRIES` tries, many flows must use both CPUs. The kernel counts no
/// interrupt of a CPU that is already busy with other traffic.
const SPREADS: usize = 2;
const SPREAD_TRIES: usize = 10;

/// The column `received_rps` of /proc/net/softnet_stat counts the interrupts with which other CPUs
/// woke the CPU of the row to handle steered packets.
const RECEIVED_RPS: usize = 9;

const OUTER: ([u8; 4], [u8; 4]) = ([10, 209, 9, 1], [10, 209, 9, 2]);

fn below(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype.to_be_bytes(), payload].concat()
}

fn inner(flow: u16) -> FrameBuilder {
    FrameBuilder::udp(([192, 0, 2, 1], 1000 + flow), ([192, 0, 2, 2], 9))
}

fn in_ip(protocol: u8, header: &[u8], payload: &[u8]) -> Vec<u8> {
    FrameBuilder::ip(OUTER.0, OUTER.1, protocol).frame(&[header, payload].concat())
}

fn in_udp(from: u16, to: u16, header: &[u8], payload: &[u8]) -> Vec<u8> {
    FrameBuilder::udp((OUTER.0, from), (OUTER.1, to)).frame(&[header, payload].concat())
}

fn labelled(flow: u16, label: u8) -> Vec<u8> {
    let end = |last, port| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, last], port));
    let mut frame = FrameBuilder::udp(end(1, 1000 + flow), end(2, 9)).frame(b"data");
    frame[17] = label;
    frame
}

fn fragment(flow: u16) -> Vec<u8> {
    let mut frame = inner(flow).frame(b"data of 16 bytes");
    put(&mut frame, 20, [0x20, 0]);
    frame
}

/// An encapsulation's name, and a function that builds its frame for a flow number.
type Encapsulation = (&'static str, fn(u16) -> Vec<u8>);

const ENCAPSULATIONS: [Encapsulation; 20] = [
    ("plain", |flow| inner(flow).frame(b"data")),
    ("vlan", |flow| FrameBuilder::udp(([192, 0, 2, 1], 9), ([192, 0, 2, 2], 9)).vlan(flow + 1).frame(b"data")),
    ("pppoe", |flow| {
        let packet = inner(flow).packet(b"data");
        let len = (packet.len() + 2) as u16;
        below(ethertype::PPPOE_SESSION, &[&[0x11, 0, 0, 7][..], &len.to_be_bytes(), &[0, 0x21], &packet].concat())
    }),
    ("gre", |flow| in_ip(protocol::GRE, &[0, 0, 8, 0], &inner(flow).packet(b"data"))),
    ("gre with Ethernet", |flow| in_ip(protocol::GRE, &[0, 0, 0x65, 0x58], &inner(flow).frame(b"data"))),
    ("gre keys", |flow| in_ip(protocol::GRE, &[0x20, 0, 8, 0, 0, 0, 0, flow as u8], &inner(0).packet(b"data"))),
    ("ipip", |flow| in_ip(protocol::IPV4, &[], &inner(flow).packet(b"data"))),
    ("esp", |flow| in_ip(protocol::ESP, &[0, 0, 1, flow as u8, 0, 0, 0, 1], &[7; 40])),
    ("ah", |flow| in_ip(protocol::AUTHENTICATION, &[17, 4, 0, 0, 0, 0, 1, flow as u8, 0, 0, 0, 1], &[7; 40])),
    ("udp-lite", |flow| in_ip(protocol::UDP_LITE, &[1, flow as u8, 0, 9, 0, 8, 0, 0], &[7; 8])),
    ("vxlan", |flow| in_udp(5000, port::VXLAN, &[8, 0, 0, 0, 0, 0, 7, 0], &inner(flow).frame(b"data"))),
    ("vxlan ports", |flow| in_udp(5000 + flow, port::VXLAN, &[8, 0, 0, 0, 0, 0, 7, 0], &inner(0).frame(b"data"))),
    ("geneve", |flow| in_udp(5000, port::GENEVE, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], &inner(flow).frame(b"data"))),
    ("gtp-u", |flow| {
        let packet = inner(flow).packet(b"data");
        let [high, low] = (packet.len() as u16).to_be_bytes();
        in_udp(port::GTP_U, port::GTP_U, &[0x30, 255, high, low, 0, 0, 0, 7], &packet)
    }),
    ("gtp-u of 5G", |flow| {
        let packet = inner(flow).packet(b"data");
        let [high, low] = (packet.len() as u16 + 8).to_be_bytes();
        in_udp(port::GTP_U, port::GTP_U, &[0x34, 255, high, low, 0, 0, 0, 7, 0, 0, 0, 0x85, 1, 0, 9, 0], &packet)
    }),
    ("mpls", |flow| below(ethertype::MPLS, &[&[0, 6, 0x41, 64][..], &inner(flow).packet(b"data")].concat())),
    ("etherip", |flow| in_ip(protocol::ETHERIP, &[0x30, 0], &inner(flow).frame(b"data"))),
    ("fragments", fragment),
    ("one label", |flow| labelled(flow, 7)),
    ("labels", |flow| labelled(0, 1 + flow as u8)),
];

/// Creates a veth pair whose receiving end has an RPS mask of two CPUs. Returns `None` if this
/// machine has only one CPU.
fn cable() -> Option<Net> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if !online.starts_with("0-") {
        skip("this machine has no CPUs 0 and 1");
        return None;
    }
    let net = Net::new()?;
    let set = "echo 3 > /sys/class/net/near0/queues/rx-0/rps_cpus";
    let set = Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", set]).status().unwrap();
    assert!(set.success());
    Some(net)
}

fn written(name: &str, test: &str, frame: fn(u16) -> Vec<u8>) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{name}.pcap"));
    fs::write(&path, pcap((0..FLOWS).map(|flow| (0, 0, frame(flow))))).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns true if the kernel's hash spreads the flows over both CPUs. `expected` is the expected
/// result, which affects only the number of tries.
fn spreads(net: &Net, path: &str, expected: bool) -> bool {
    let used = |_: &usize| (0..2).filter(|from| interrupts(net, path, *from)).count();
    if expected {
        (0..SPREAD_TRIES).filter(|n| used(n) == 2).take(SPREADS).count() == SPREADS
    } else {
        !(0..TRIES).any(|n| used(&n) == 1)
    }
}

#[test]
fn the_kernel_spreads_as_explain_predicts() {
    let Some(net) = cable() else { return };
    for (name, frame) in ENCAPSULATIONS {
        let path = written(name, "kernel", frame);
        let traffic = &explained(&[path.as_str()])["traffic"];
        let flows = traffic["kernel_flows"].as_u64().unwrap();
        assert!([1, u64::from(FLOWS)].contains(&flows), "{name}: {flows}");
        assert_eq!(traffic["kernel_largest"].as_f64(), Some(1.0 / flows as f64), "{name}");
        assert_eq!(spreads(&net, &path, flows > 1), flows > 1, "{name}: explain predicts {flows} flows");
    }
}

/// With the flow dissector of `tune --global`, the kernel spreads the flows inside VXLAN and GTP-U.
/// Packets without VXLAN or GTP-U are spread as they are without the dissector.
#[test]
fn a_flow_dissector_spreads_tunnels_with_fixed_ports() {
    let Some(net) = cable() else { return };
    let dissector = FlowDissector::load().unwrap();
    net.near(|| dissector.attach().unwrap());
    for (name, frame) in ENCAPSULATIONS {
        let expected = match name {
            "vxlan" | "gtp-u" | "gtp-u of 5G" | "plain" | "gre" => true,
            "vxlan ports" | "geneve" | "mpls" => false,
            _ => continue,
        };
        let path = written(name, "dissector", frame);
        assert_eq!(spreads(&net, &path, expected), expected, "{name}");
    }
    net.near(|| dissector.detach().unwrap());
    let path = written("vxlan", "detached", ENCAPSULATIONS.iter().find(|(name, _)| *name == "vxlan").unwrap().1);
    assert!(!spreads(&net, &path, false));
}

/// Sends the packets from the CPU `from`. Returns true if the kernel interrupted CPU `1 - from` for
/// some of the packets.
fn interrupts(net: &Net, path: &str, from: usize) -> bool {
    let all = SockProtocol::EthAll;
    let tap = net.near(|| socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all).unwrap());
    setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::new(HANG.as_secs() as i64, 0)).unwrap();
    let before = received_rps(1 - from);
    let args = ["send", "far0", path, "--cpus", &from.to_string(), "--rate", "max"];
    let sent = net.far(|| command(&args).output().unwrap());
    assert!(sent.status.success(), "{sent:?}");
    // The kernel chooses a packet's CPU before the packet socket receives the packet.
    let mut buffer = [0; 256];
    for _ in 0..FLOWS {
        recv(std::os::fd::AsRawFd::as_raw_fd(&tap), &mut buffer, nix::sys::socket::MsgFlags::empty()).unwrap();
    }
    received_rps(1 - from) > before
}

fn received_rps(cpu: usize) -> u32 {
    let table = fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let column = table.lines().nth(cpu).and_then(|row| row.split_whitespace().nth(RECEIVED_RPS)).unwrap();
    u32::from_str_radix(column, 16).unwrap()
}
