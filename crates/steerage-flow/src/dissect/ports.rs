//! Tables of the UDP ports that identify a tunnel.

use crate::wire::port::{CAPWAP, GENEVE, GRE, GTP_U, MPLS, TEREDO, TZSP, VXLAN};

/// Only the destination port identifies these; the source port depends on the flow inside.
pub(super) const TO: [u16; 6] = [GTP_U, GRE, VXLAN, GENEVE, MPLS, TZSP];
/// Either port identifies these: one side has this port, and the other side has one of its own, in both directions.
pub(super) const TO_OR_FROM: [u16; 2] = [TEREDO, CAPWAP];

/// Each destination port and each source port that identifies a tunnel is in one of these pairs, in network byte order.
pub(crate) static PAIRS: [[[u8; 2]; 2]; 8] = {
    assert!(TO.len() + TO_OR_FROM.len() == 8);
    let (mut pairs, mut at) = ([[[0; 2]; 2]; 8], 0);
    while at < pairs.len() {
        let to = if at < TO.len() { TO[at] } else { TO_OR_FROM[at - TO.len()] };
        pairs[at] = [TO_OR_FROM[at % TO_OR_FROM.len()].to_be_bytes(), to.to_be_bytes()];
        at += 1;
    }
    pairs
};

/// The port that identifies a tunnel, if one of them does.
#[inline(always)]
pub(super) const fn of_tunnel(from: u16, to: u16) -> Option<u16> {
    match (from, to) {
        (_, GTP_U | GRE | VXLAN | GENEVE | MPLS | TZSP | TEREDO | CAPWAP) => Some(to),
        (TEREDO | CAPWAP, _) => Some(from),
        _ => None,
    }
}

/// Whether a port with this upper byte may identify a tunnel: the destination, and the source at 256 further on.
static UPPER_BYTES: [bool; 512] = {
    let (mut bytes, mut at) = ([false; 512], 0);
    while at < TO.len() {
        bytes[(TO[at] >> 8) as usize] = true;
        at += 1;
    }
    at = 0;
    while at < TO_OR_FROM.len() {
        bytes[(TO_OR_FROM[at] >> 8) as usize] = true;
        bytes[256 + (TO_OR_FROM[at] >> 8) as usize] = true;
        at += 1;
    }
    bytes
};

/// False if the ports identify no tunnel, for nearly all packets: two loads.
#[inline(always)]
pub(super) fn may_be_tunnel(from: u16, to: u16) -> bool {
    let [[from, _], [to, _]] = [from.to_be_bytes(), to.to_be_bytes()];
    UPPER_BYTES[usize::from(to)] | UPPER_BYTES[256 + usize::from(from)]
}
