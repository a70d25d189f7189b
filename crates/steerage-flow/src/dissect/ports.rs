//! Tables of the UDP ports that identify a tunnel.

use crate::wire::port::{CAPWAP, GENEVE, GRE, GTP_U, MPLS, TEREDO, TZSP, VXLAN};

/// These ports identify a tunnel only as the destination port, because the source port depends on
/// the inner flow.
pub(super) const TO: [u16; 6] = [GTP_U, GRE, VXLAN, GENEVE, MPLS, TZSP];
/// These ports identify a tunnel as the source or the destination port, because the other side of
/// such a tunnel uses an arbitrary port.
pub(super) const TO_OR_FROM: [u16; 2] = [TEREDO, CAPWAP];

/// All ports that identify a tunnel, as pairs of a destination port and a source port in network
/// byte order.
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

/// Returns the port that identifies a tunnel, if `from` or `to` does.
#[inline(always)]
pub(super) const fn of_tunnel(from: u16, to: u16) -> Option<u16> {
    match (from, to) {
        (_, GTP_U | GRE | VXLAN | GENEVE | MPLS | TZSP | TEREDO | CAPWAP) => Some(to),
        (TEREDO | CAPWAP, _) => Some(from),
        _ => None,
    }
}

/// For each upper byte of a port, true if some port with that byte identifies a tunnel. The entries
/// for destination ports come first; the entries for source ports begin at 256.
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

/// Returns false for nearly all packets, with two loads: the ports identify no tunnel.
#[inline(always)]
pub(super) fn may_be_tunnel(from: u16, to: u16) -> bool {
    let [[from, _], [to, _]] = [from.to_be_bytes(), to.to_be_bytes()];
    UPPER_BYTES[usize::from(to)] | UPPER_BYTES[256 + usize::from(from)]
}
