//! Tables of the UDP ports that identify a tunnel.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use crate::limits::VXLAN_PORTS_MAX;
use crate::wire::port::{
    CAPWAP, GENEVE, GRE, GTP_U, GUE, L2TP, LISP, MPLS, TEREDO, TZSP, VXLAN, VXLAN_GPE, VXLAN_LINUX,
};

/// Ports that identify a tunnel only as the destination, because the source port depends on the
/// inner flow.
pub(super) const TO: [u16; 10] = [GTP_U, GRE, VXLAN, GENEVE, MPLS, TZSP, VXLAN_LINUX, VXLAN_GPE, LISP, GUE];
/// Ports that identify a tunnel as source or destination, because one end uses an arbitrary port.
pub(super) const TO_OR_FROM: [u16; 3] = [TEREDO, CAPWAP, L2TP];

/// Tunnel ports in network byte order: first [`FROM_LANES`] source ports, then destination ports.
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

#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only this kernel compares lanes"))]
pub(crate) const FROM_LANES: usize = TO_OR_FROM.len();

/// The VXLAN ports that the user chose, or 0 in unused entries. These ports apply to the whole
/// process, because all functions must find the same flow for a packet.
static CHOSEN: [AtomicU16; VXLAN_PORTS_MAX] = [const { AtomicU16::new(0) }; VXLAN_PORTS_MAX];

/// Makes the whole process read UDP packets to these ports as VXLAN, in addition to 4789 and 8472.
/// Each call replaces the ports of earlier calls. Call this function before the first frame is
/// dissected. At most [`VXLAN_PORTS_MAX`](crate::limits::VXLAN_PORTS_MAX) ports are used.
pub fn set_vxlan_ports(ports: &[u16]) {
    // Unused entries of `CHOSEN` are at its end, because `are_chosen` reads only the first entry.
    let mut used = ports.iter().copied().filter(|port| *port != 0);
    for chosen in &CHOSEN {
        let port = used.next().unwrap_or(0);
        chosen.store(port, Ordering::Relaxed);
        if port != 0 {
            UPPER_BYTES[usize::from(port >> 8)].store(true, Ordering::Relaxed);
        }
    }
}

/// Returns true if the user chose VXLAN ports. The hash kernel for plain frames compares only the
/// ports in [`LANES`], so it must not be used if the user chose VXLAN ports.
pub(crate) fn are_chosen() -> bool {
    CHOSEN[0].load(Ordering::Relaxed) != 0
}

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

/// True if a port with this upper byte may identify a tunnel: 256 entries for destination ports,
/// and then 256 entries for source ports.
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

/// For nearly all packets, these two table look-ups are enough to rule out a tunnel.
#[inline(always)]
pub(super) fn may_be_tunnel(from: u16, to: u16) -> bool {
    let [[from, _], [to, _]] = [from.to_be_bytes(), to.to_be_bytes()];
    let is_some = |at: usize| UPPER_BYTES[at].load(Ordering::Relaxed);
    is_some(usize::from(to)) | is_some(256 + usize::from(from))
}
