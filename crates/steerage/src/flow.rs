//! From a frame's headers to its [`FlowKey`].
//!
//! [`flow_key`] is for steering, [`dissect`] for tools; they agree. What nearly every frame is made of goes a straight line
//! of a few loads and compares (`plain`); everything else, and all of `dissect`, is the walk of `walk`, which takes its time
//! but not more of it than its limits allow. What is read and what stays together is told in `docs/flows.md`.
//!
//! | module | what it reads |
//! |---|---|
//! | `plain` | Ethernet, a tag at most, IP without options or extensions, TCP and UDP outside of tunnels |
//! | `walk` | one header a step, each of them by the modules below |
//! | `link` | Ethernet and other link headers, tags, PPP, MPLS |
//! | `network` | IPv4, IPv6, extensions, fragments |
//! | `transport` | ports, ICMP |
//! | `tunnel` | GRE, VXLAN, Geneve, GTP-U |
//! | `dissection`, `numbers`, `bytes` | what is told; the assigned numbers; how they are read |
//! | `fragments` | datagrams under way, so that later fragments follow the first to arrive |

mod bytes;
mod dissection;
pub(crate) mod fragments;
mod link;
mod network;
mod numbers;
mod plain;
#[cfg(test)]
mod tests;
mod transport;
mod tunnel;
mod walk;

pub use dissection::{Dissection, End, Fragment, Header, HeaderKind, IpLayer, Layers, Tunnel};
pub(crate) use plain::{plain, plain_ip};
use steerage_mem::hash::FlowKey;

use crate::rx::LinkType;

/// The flow that a frame belongs to, as its sender sees it: apply [`FlowKey::both_directions`] where both directions are to
/// meet. `None` if the frame holds no IP, or no whole IP header. The same as [`dissect`]'s [`flow`](Dissection::flow).
///
/// * TCP, UDP and SCTP: by addresses, ports and protocol. Tags, labels and tunnel ids take no part.
/// * ICMP queries: by addresses and identifier, which stands for both ports. ICMP errors: by the flow that they quote.
/// * Other protocols: by addresses and protocol, ports 0. So also TCP, UDP and SCTP cut off before the ports, and later
///   fragments; a first fragment has its flow's key. (Steering keeps a datagram's fragments together all the same.)
///
/// `frame` begins with the header that `link` says and may be cut short at the end; a frame check sequence is ignored.
/// Lengths that the headers state are not compared with the frame's: a frame padded to the Ethernet minimum, one cut by a
/// capture and one coalesced by the kernel all have the key of their flow.
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

/// Fills in what is blank, where it is: a dissection is too long to be moved about (measured: half of the time).
#[inline(never)]
fn dissect_into(frame: &[u8], link: LinkType, layers: Layers, found: &mut Dissection) {
    walk::Walk::new(frame, layers, found).run(link);
}

#[cold]
#[inline(never)]
fn slowly(frame: &[u8], link: LinkType, layers: Layers) -> Option<FlowKey> {
    dissect(frame, link, layers).flow()
}

/// All that a frame's headers tell. Constant work, and no allocation.
///
/// ```
/// use steerage::LinkType;
/// use steerage::flow::{self, End, HeaderKind, Layers};
///
/// let mut frame = [0; 60];
/// frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]); // IPv4
/// frame[16..18].copy_from_slice(&40u16.to_be_bytes());
/// (frame[23], frame[29], frame[33]) = (6, 1, 2); // TCP, 0.0.0.1, 0.0.0.2
/// (frame[35], frame[37], frame[46], frame[47]) = (80, 90, 0x50, 0x12); // ports, header length, SYN and ACK
///
/// let found = flow::dissect(&frame, LinkType::ETHERNET, Layers::Inner);
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
