//! Tables of the UDP ports that identify a tunnel.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use crate::limits::VXLAN_PORTS_MAX;
use crate::wire::port::{
    CAPWAP, GENEVE, GRE, GTP_U, GUE, L2TP, LISP, MPLS, TEREDO, TZSP, VXLAN, VXLAN_GPE, VXLAN_LINUX,
};

/// UDP ports that identify a tunnel only if they are the destination port, because the tunnel's
/// source port depends on the inner flow.
pub(super) const TO: [u16; 10] = [GTP_U, GRE, VXLAN, GENEVE, MPLS, TZSP, VXLAN_LINUX, VXLAN_GPE, LISP, GUE];
/// UDP ports that identify a tunnel if they are the source port or the destination port, because
/// one end of the tunnel uses an arbitrary port.
pub(super) const TO_OR_FROM: [u16; 3] = [TEREDO, CAPWAP, L2TP];

/// All ports that identify a tunnel, in network byte order. The first [`FROM_LANES`] entries of the
/// table are source ports, and the other entries are destination ports.
pub(crate) static LANES: [[u8; 2]; 16] = {
    assert!(TO.len() + 2 * TO_OR_FROM.len() == 16);
    let (mut lanes, mut at) = ([[0; 2]; 16], 0);
    while at < lanes.len() {
        let from = TO_OR_FROM.len();
        let port = if at < from {
            TO_OR_FROM[at]
        } else if at < 2 * from {
            TO_OR_FROM[at - from]
        } else {
            TO[at - 2 * from]
        };
        lanes[at] = port.to_be_bytes();
        at += 1;
    }
    lanes
};

/// The number of entries in the table [`LANES`] that are source ports.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only this kernel compares lanes"))]
pub(crate) const FROM_LANES: usize = TO_OR_FROM.len();

/// The UDP ports that the user chose for VXLAN. An unused entry is 0. The dissector has no other
/// settings than the chosen VXLAN ports. The chosen VXLAN ports apply to the whole process, so that
/// all functions find the same flow for a frame.
static CHOSEN: [AtomicU16; VXLAN_PORTS_MAX] = [const { AtomicU16::new(0) }; VXLAN_PORTS_MAX];

/// Makes the whole process read UDP packets to the ports `ports` as VXLAN, in addition to the ports
/// 4789 and 8472. The source ports of these UDP packets do not matter. The new VXLAN ports replace
/// the ports of an earlier call. Call this function before the first frame is dissected. At most
/// [`VXLAN_PORTS_MAX`](crate::limits::VXLAN_PORTS_MAX) ports are used, and port 0 is ignored.
pub fn set_vxlan_ports(ports: &[u16]) {
    // The unused entries must be at the end of the array `CHOSEN`, because `are_chosen` reads only
    // the first entry.
    let mut used = ports.iter().copied().filter(|port| *port != 0);
    for chosen in &CHOSEN {
        let port = used.next().unwrap_or(0);
        chosen.store(port, Ordering::Relaxed);
        if port != 0 {
            UPPER_BYTES[usize::from(port >> 8)].store(true, Ordering::Relaxed);
        }
    }
}

/// Returns true if the user chose a port for VXLAN. If the user chose a VXLAN port, the code that
/// hashes plain frames cannot be used, because it compares only the ports in [`LANES`].
pub(crate) fn are_chosen() -> bool {
    CHOSEN[0].load(Ordering::Relaxed) != 0
}

/// Returns the port `from` or `to` that identifies a tunnel, if there is one. If a packet is sent
/// to any port of VXLAN, returns the constant [`VXLAN`].
#[inline(always)]
pub(super) fn of_tunnel(from: u16, to: u16) -> Option<u16> {
    match (from, to) {
        _ if to != 0 && CHOSEN.iter().any(|port| port.load(Ordering::Relaxed) == to) => Some(VXLAN),
        (_, VXLAN_LINUX) => Some(VXLAN),
        (_, GTP_U | GRE | VXLAN | GENEVE | MPLS | TZSP | VXLAN_GPE | LISP | GUE | TEREDO | CAPWAP | L2TP) => Some(to),
        (TEREDO | CAPWAP | L2TP, _) => Some(from),
        _ => None,
    }
}

/// A table with an entry for each value of the upper byte of a port, once for destination ports and
/// once for source ports. A table entry is true if a port with this upper byte identifies a tunnel.
/// The table's entries for destination ports come first. The table's entries for source ports begin
/// at index 256.
static UPPER_BYTES: [AtomicBool; 512] = {
    let (mut bytes, mut at) = ([const { AtomicBool::new(false) }; 512], 0);
    while at < TO.len() {
        bytes[(TO[at] >> 8) as usize] = AtomicBool::new(true);
        at += 1;
    }
    at = 0;
    while at < TO_OR_FROM.len() {
        bytes[(TO_OR_FROM[at] >> 8) as usize] = AtomicBool::new(true);
        bytes[256 + (TO_OR_FROM[at] >> 8) as usize] = AtomicBool::new(true);
        at += 1;
    }
    bytes
};

/// If this function returns false, neither port identifies a tunnel. For nearly all packets,
/// `may_be_tunnel` is the whole test for tunnels: two loads from memory.
#[inline(always)]
pub(super) fn may_be_tunnel(from: u16, to: u16) -> bool {
    let [[from, _], [to, _]] = [from.to_be_bytes(), to.to_be_bytes()];
    let is_some = |at: usize| UPPER_BYTES[at].load(Ordering::Relaxed);
    is_some(usize::from(to)) | is_some(256 + usize::from(from))
}
