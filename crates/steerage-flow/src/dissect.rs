//! Reads the headers of a frame and finds its [`FlowKey`].
//!
//! [`flow_key`], for steering, and [`dissect`], for tools, find the same key. The fast path `plain`
//! suffices for nearly every frame. For other frames, `walk` reads one header after another, in a
//! time that is bounded by `limits`. `docs/flows.md` lists the headers that are read.
//!
//! | module | what it reads |
//! |---|---|
//! | `plain` | Ethernet with at most one tag, IP without options or extensions, TCP and UDP outside of tunnels |
//! | `walk` | one header per step, with the functions of the modules below |
//! | `link` | Ethernet and other link headers, tags, PPP, MPLS |
//! | `network` | IPv4, IPv6, extensions, fragments |
//! | `transport` | ports, ICMP |
//! | `tunnel` | GRE, EtherIP, Geneve, GTP-U |
//! | `overlay` | VXLAN, NSH, LISP, GUE, L2TP, EoIP, Ethernet below MPLS labels |
//! | `mirror` | ERSPAN, WCCP, TZSP, CAPWAP, Teredo: headers around copied, redirected or tunnelled packets |
//! | `kernel` | the flow that Linux's own hash sees |
//! | `dissection`, `ports` | the result; the UDP ports of tunnels |

mod dissection;
mod dissections;
mod kernel;
mod link;
mod mirror;
mod network;
mod overlay;
mod plain;
mod ports;
#[cfg(test)]
mod tests;
mod transport;
mod tunnel;
mod walk;

use crate::flow_key::FlowKey;
use crate::link_type::LinkType;
pub use dissection::{Dissection, End, FRAME_BYTES_MAX, Fragment, Header, HeaderKind, IpLayer, Layers, Tunnel};
pub use dissections::Dissections;
pub use kernel::KernelFlow;
pub(crate) use plain::{plain, plain_ip};
pub use ports::set_vxlan_ports;
pub(crate) use ports::{FROM_LANES, LANES as TUNNEL_PORTS, are_chosen as are_ports_chosen};

/// Returns the flow key of a frame, or `None` if the frame has no complete IP header. The source in
/// the key is the frame's sender. The result equals [`flow`](Dissection::flow) of the result of
/// [`dissect`].
///
/// - The key of TCP, UDP and SCTP packets has addresses, ports and protocol. VLAN tags, MPLS labels
///   and tunnel identifiers are not part of the flow key.
/// - The key of ICMP queries has the addresses, and the query's identifier as both ports. An ICMP
///   error has the flow key of the packet that the error quotes.
/// - The key of other protocols has addresses and protocol, and 0 as both ports. The ports are also
///   0 in a packet that is cut off before its ports, and in all fragments except the first.
///   ([`FragmentTable`](crate::FragmentTable) keeps all fragments of a datagram together.)
///
/// `link` is the type of the frame's first header. The frame may be truncated. Lengths in headers
/// are not compared with the frame's length, so the key does not depend on padding, a frame check
/// sequence, a cut by the capture, or merging by the kernel.
#[must_use]
#[inline(always)]
pub fn flow_key(frame: &[u8], link: LinkType, layers: Layers) -> Option<FlowKey> {
    let plain = match link {
        LinkType::ETHERNET => plain(frame, layers),
        LinkType::RAW => plain_ip(frame, layers),
        _ => None,
    };
    match plain {
        Some(key) => Some(key),
        None => slowly(frame, link, layers).map(FlowKey::by_words),
    }
}

/// Returns true if steerage reads UDP packets between these ports as a tunnel (see
/// `docs/flows.md`), for programs that parse simple packets themselves.
///
/// ```
/// use steerage_flow::dissect::is_tunnel;
///
/// assert!(is_tunnel(49152, 4789), "VXLAN");
/// assert!(!is_tunnel(4789, 49152), "only the destination port says so");
/// ```
#[must_use]
#[inline(always)]
pub fn is_tunnel(from: u16, to: u16) -> bool {
    ports::may_be_tunnel(from, to) && ports::of_tunnel(from, to).is_some()
}

/// Writes the result to `found`, because returning the large `Dissection` took half of the time of
/// a dissection.
#[inline(never)]
fn dissect_into(frame: &[u8], link: LinkType, layers: Layers, found: &mut Dissection) {
    walk::Walk::new(frame, layers, found).run(link);
}

#[cold]
#[inline(never)]
fn slowly(frame: &[u8], link: LinkType, layers: Layers) -> Option<FlowKey> {
    dissect(frame, link, layers).flow()
}

/// Returns all that steerage reads from the headers of a frame, in bounded time and without
/// allocating memory.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::dissect::{self, End, HeaderKind, Layers};
///
/// let mut frame = [0; 60];
/// frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]); // IPv4
/// frame[16..18].copy_from_slice(&40u16.to_be_bytes());
/// (frame[23], frame[29], frame[33]) = (6, 1, 2); // TCP, 0.0.0.1, 0.0.0.2
/// (frame[35], frame[37], frame[46], frame[47]) = (80, 90, 0x50, 0x12); // ports, header length, SYN and ACK
///
/// let found = dissect::dissect(&frame, LinkType::ETHERNET, Layers::Inner);
/// assert_eq!(found.key.to_string(), "tcp 0.0.0.1:80 > 0.0.0.2:90");
/// assert_eq!(found.ip.and_then(|ip| ip.stated_bytes), Some(40));
/// assert_eq!((found.tcp_flags, found.payload_offset), (Some(0x12), Some(54)));
/// assert_eq!(found.headers().next_back().map(|header| header.kind), Some(HeaderKind::Tcp));
/// assert_eq!(found.end, End::Complete);
/// ```
#[must_use]
#[inline]
pub fn dissect(frame: &[u8], link: LinkType, layers: Layers) -> Dissection {
    let mut found = Dissection::blank();
    dissect_into(frame, link, layers, &mut found);
    found
}
