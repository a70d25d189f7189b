//! Frames of many kinds, each kind in a thousand flows.

/// A kind of traffic.
#[derive(Debug)]
pub struct Sample {
    /// Its name in the table.
    pub name: &'static str,
    make: fn(&mut u64) -> Vec<u8>,
}

/// All of them.
pub const SAMPLES: [Sample; 9] = [
    Sample { name: "IPv4 UDP", make: |chance| ethernet(0x0800, &v4(17, draw(chance), &transport(17, 53))) },
    Sample { name: "IPv6 UDP", make: |chance| ethernet(0x86dd, &v6(17, draw(chance), &transport(17, 53))) },
    Sample { name: "VLAN IPv4 TCP", make: |chance| vlan(0x0800, &v4(6, draw(chance), &transport(6, 443))) },
    Sample { name: "mixed", make: mixed },
    Sample {
        name: "IPv4 TCP to a port in range",
        make: |chance| ethernet(0x0800, &v4(6, draw(chance), &transport(6, 5201))),
    },
    Sample {
        name: "QinQ IPv6 TCP",
        make: |chance| vlan(0x8100, &[&[0, 7, 0x86, 0xdd], &v6(6, draw(chance), &transport(6, 443))[..]].concat()),
    },
    Sample { name: "VXLAN", make: vxlan },
    Sample {
        name: "GRE",
        make: |chance| {
            ethernet(0x0800, &v4(47, 1, &[&[0, 0, 8, 0], &v4(6, draw(chance), &transport(6, 443))[..]].concat()))
        },
    },
    Sample { name: "fragments", make: fragment },
];

/// `count` frames, the same in every run.
pub fn frames(sample: &Sample, count: usize) -> Vec<Vec<u8>> {
    let mut chance = 0x9E37_79B9_7F4A_7C15;
    (0..count).map(|_| (sample.make)(&mut chance)).collect()
}

/// Xorshift.
fn draw(chance: &mut u64) -> u32 {
    *chance ^= *chance >> 12;
    *chance ^= *chance << 25;
    *chance ^= *chance >> 27;
    (chance.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
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

/// IPv4, IPv6, and IPv4 with a tag, TCP and UDP, at random: the parser's branches cannot be foretold.
fn mixed(chance: &mut u64) -> Vec<u8> {
    let kind = draw(chance);
    let protocol = if kind & 4 != 0 { 6 } else { 17 };
    let (flow, upper) = (draw(chance), transport(protocol, 443));
    match kind & 3 {
        0 => ethernet(0x0800, &v4(protocol, flow, &upper)),
        1 => vlan(0x0800, &v4(protocol, flow, &upper)),
        _ => ethernet(0x86dd, &v6(protocol, flow, &upper)),
    }
}

fn vxlan(chance: &mut u64) -> Vec<u8> {
    let inner = ethernet(0x0800, &v4(6, draw(chance), &transport(6, 443)));
    ethernet(0x0800, &v4(17, 1, &[&transport(17, 4789)[..], &[8, 0, 0, 0, 0, 0, 1, 0], &inner[..]].concat()))
}

/// Later ones. (The table of datagrams is the path's: here it is what a frame tells by itself.)
fn fragment(chance: &mut u64) -> Vec<u8> {
    let mut packet = v4(17, draw(chance), &[0; 64]);
    packet[6..8].copy_from_slice(&[0x20, 185]);
    ethernet(0x0800, &packet)
}
