//! Kinds of traffic for the `hash` experiment: frames of each kind, each frame of a random flow.

use fastrand::Rng;

/// A kind of traffic.
#[derive(Debug)]
pub struct TrafficKind {
    /// Its name in the report.
    pub name: &'static str,
    make: fn(&mut Rng) -> Vec<u8>,
}

/// All kinds, the plainest first.
pub const TRAFFIC_KINDS: [TrafficKind; 9] = [
    TrafficKind { name: "IPv4 UDP", make: |rng| ethernet(0x0800, &v4(17, rng.u32(..), &transport(17, 53))) },
    TrafficKind { name: "IPv6 UDP", make: |rng| ethernet(0x86dd, &v6(17, rng.u32(..), &transport(17, 53))) },
    TrafficKind { name: "VLAN IPv4 TCP", make: |rng| vlan(0x0800, &v4(6, rng.u32(..), &transport(6, 443))) },
    TrafficKind { name: "mixed", make: mixed },
    TrafficKind {
        name: "IPv4 TCP to a port in range",
        make: |rng| ethernet(0x0800, &v4(6, rng.u32(..), &transport(6, 5201))),
    },
    TrafficKind {
        name: "QinQ IPv6 TCP",
        make: |rng| vlan(0x8100, &[&[0, 7, 0x86, 0xdd], &v6(6, rng.u32(..), &transport(6, 443))[..]].concat()),
    },
    TrafficKind { name: "VXLAN", make: vxlan },
    TrafficKind {
        name: "GRE",
        make: |rng| {
            ethernet(0x0800, &v4(47, 1, &[&[0, 0, 8, 0], &v4(6, rng.u32(..), &transport(6, 443))[..]].concat()))
        },
    },
    TrafficKind { name: "fragments", make: fragment },
];

/// `count` frames of a kind, the same in every run.
pub fn frames(kind: &TrafficKind, count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::with_seed(1);
    (0..count).map(|_| (kind.make)(&mut rng)).collect()
}

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &ethertype.to_be_bytes()[..], packet].concat()
}

fn vlan(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    ethernet(0x8100, &[&[0, 5], &ethertype.to_be_bytes()[..], packet].concat())
}

fn transport(protocol: u8, port: u16) -> Vec<u8> {
    let mut header = vec![0; if protocol == 6 { 20 } else { 8 }];
    header[0] = 0xc0;
    header[2..4].copy_from_slice(&port.to_be_bytes());
    if protocol == 6 {
        header[12] = 0x50;
    }
    header
}

fn v4(protocol: u8, flow: u32, payload: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = flow.to_be_bytes();
    [&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, protocol, 0, 0, a, b, c, d, 192, 168, 0, 1], payload].concat()
}

fn v6(protocol: u8, flow: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    (packet[0], packet[6], packet[8], packet[24], packet[39]) = (0x60, protocol, 0xfd, 0xfd, 1);
    packet[20..24].copy_from_slice(&flow.to_be_bytes());
    packet.extend(payload);
    packet
}

/// IPv4, IPv6, and IPv4 with a tag, TCP and UDP, at random, so that the parser's branches cannot be predicted.
fn mixed(rng: &mut Rng) -> Vec<u8> {
    let kind = rng.u32(..);
    let protocol = if kind & 4 != 0 { 6 } else { 17 };
    let (flow, upper) = (rng.u32(..), transport(protocol, 443));
    match kind & 3 {
        0 => ethernet(0x0800, &v4(protocol, flow, &upper)),
        1 => vlan(0x0800, &v4(protocol, flow, &upper)),
        _ => ethernet(0x86dd, &v6(protocol, flow, &upper)),
    }
}

fn vxlan(rng: &mut Rng) -> Vec<u8> {
    let inner = ethernet(0x0800, &v4(6, rng.u32(..), &transport(6, 443)));
    ethernet(0x0800, &v4(17, 1, &[&transport(17, 4789)[..], &[8, 0, 0, 0, 0, 0, 1, 0], &inner[..]].concat()))
}

/// Fragments after the first. The path has a table of fragmented datagrams; here only the frame itself counts.
fn fragment(rng: &mut Rng) -> Vec<u8> {
    let mut packet = v4(17, rng.u32(..), &[0; 64]);
    packet[6..8].copy_from_slice(&[0x20, 185]);
    ethernet(0x0800, &packet)
}
