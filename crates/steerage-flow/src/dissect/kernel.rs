//! Finds the flow of a packet according to Linux's own flow hash, which RPS uses.
//!
//! `__skb_get_hash_net` (net/core/flow_dissector.c of Linux 6.18) hashes the fields in
//! [`KernelFlow`]. The hash key is secret and chosen at boot, so the hash cannot be predicted, but
//! packets with equal fields go to the same CPU.

use crate::flow_key::FlowKey;
use crate::wire::{be16, be32, be128, ethertype, ipv4, ipv6, protocol};

use super::dissection::{Dissection, Header, HeaderKind};
use super::tunnel::gre;

/// The fields from which Linux computes its flow hash, if the network card provides no hash.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::dissect::{KernelFlow, Layers, dissect};
/// use steerage_flow::wire::FrameBuilder;
///
/// let seen = |from: ([u8; 4], u16), to: ([u8; 4], u16)| {
///     let frame = FrameBuilder::udp(from, to).frame(b"");
///     KernelFlow::of(&frame, &dissect(&frame, LinkType::ETHERNET, Layers::Inner))
/// };
/// let (client, server) = (([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 53));
/// assert_eq!(seen(client, server), seen(server, client));
/// assert_ne!(seen(client, server), seen(([10, 0, 0, 1], 4001), server));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelFlow {
    /// The addresses of the last IP header that Linux reads, in ascending order, and the ports.
    /// Without IP, all packets with the same EtherType are one flow.
    key: Option<FlowKey>,
    ethertype: u16,
    vlan: u16,
    gre: u32,
    /// The IPv6 flow label. Linux reads no header after an IPv6 header with a flow label.
    label: u32,
}

impl KernelFlow {
    /// Finds the fields that Linux hashes in a frame that was dissected with
    /// [`Layers::Inner`](super::Layers::Inner).
    #[must_use]
    pub fn of(frame: &[u8], found: &Dissection) -> Self {
        let mut seen = Self { key: None, ethertype: 0, vlan: 0, gre: 0, label: 0 };
        let mut reader = Reader { frame, last: None };
        for header in found.headers() {
            if !reader.enters(header.kind) || !seen.add(frame, header) {
                break;
            }
            reader.last = Some(header);
        }
        if seen.key.is_none() {
            seen.ethertype = reader.ethertype();
        }
        seen
    }

    fn add(&mut self, frame: &[u8], header: Header) -> bool {
        let bytes = frame.get(header.offset as usize..).unwrap_or_default();
        match header.kind {
            HeaderKind::Vlan if self.vlan == 0 => self.vlan = bytes.first_chunk::<2>().map_or(0, |tag| be16(tag, 0)),
            HeaderKind::Gre => self.gre = gre_key(bytes).unwrap_or(0),
            HeaderKind::Ipv4 => return self.ipv4(bytes),
            HeaderKind::Ipv6 => return self.ipv6(bytes),
            _ => {}
        }
        true
    }

    fn ipv4(&mut self, bytes: &[u8]) -> bool {
        let Some(header) = bytes.first_chunk::<{ ipv4::BYTES }>() else { return false };
        let protocol = header[ipv4::PROTOCOL_AT];
        let is_fragment = be16(header, 6) & ipv4::FRAGMENT != 0;
        let payload = bytes.get(4 * usize::from(header[0] & 0x0f)..).filter(|_| !is_fragment);
        let (source, destination) = ports(protocol, payload);
        let key = FlowKey::v4_bits((be32(header, 12), source), (be32(header, 16), destination), protocol);
        self.key = Some(key.both_directions());
        !is_fragment
    }

    fn ipv6(&mut self, bytes: &[u8]) -> bool {
        let Some(header) = bytes.first_chunk::<{ ipv6::BYTES }>() else { return false };
        self.label = be32(header, 0) & FLOW_LABEL;
        let stops = self.label != 0;
        let (mut protocol, mut payload) = (header[ipv6::PROTOCOL_AT], bytes.get(ipv6::BYTES..));
        while let (false, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION, Some(&[next, length, ..])) =
            (stops, protocol, payload)
        {
            protocol = next;
            payload = payload.and_then(|bytes| bytes.get(8 * (1 + usize::from(length))..));
        }
        let (source, destination) = ports(protocol, payload.filter(|_| !stops));
        let key = FlowKey::v6_bits((be128(header, 8), source), (be128(header, 24), destination), protocol);
        self.key = Some(key.both_directions());
        !stops && protocol != protocol::FRAGMENT
    }
}

const FLOW_LABEL: u32 = 0x000f_ffff;

/// The bytes that Linux hashes as ports (`__skb_flow_get_ports`), which for ESP and AH are the SPI.
fn ports(protocol: u8, payload: Option<&[u8]>) -> (u16, u16) {
    let at = match protocol {
        protocol::AUTHENTICATION => 4,
        protocol::TCP | protocol::UDP | protocol::DCCP | protocol::ESP | protocol::SCTP | protocol::UDP_LITE => 0,
        _ => return (0, 0),
    };
    let ports = payload.and_then(|bytes| bytes.get(at..)?.first_chunk::<4>());
    ports.map_or((0, 0), |ports| (be16(ports, 0), be16(ports, 2)))
}

fn gre_key(header: &[u8]) -> Option<u32> {
    let flags = be16(header.first_chunk::<2>()?, 0);
    let at = if flags & gre::CHECKSUM != 0 { 8 } else { 4 };
    let key = be32(header.get(at..).filter(|_| flags & gre::KEY != 0)?.first_chunk::<4>()?, 0);
    Some(if flags & gre::VERSION == 1 { key & 0xffff } else { key })
}

struct Reader<'a> {
    frame: &'a [u8],
    last: Option<Header>,
}

impl Reader<'_> {
    fn enters(&self, kind: HeaderKind) -> bool {
        use HeaderKind::{Ethernet, Gre, Ipv4, Ipv6, Ipv6Extension, Ppp, Pppoe, Vlan};
        let Some(last) = self.last else { return true };
        match kind {
            Ethernet => last.kind == Gre && self.ethertype() == ethertype::BRIDGED,
            Vlan | Ipv4 | Ipv6 | Ipv6Extension | Pppoe | Ppp | Gre => true,
            _ => false,
        }
    }

    fn ethertype(&self) -> u16 {
        let Some(Header { kind, offset }) = self.last else { return 0 };
        let at = match kind {
            HeaderKind::Ethernet => 12,
            HeaderKind::Vlan | HeaderKind::Gre => 2,
            _ => return 0,
        };
        self.frame
            .get(offset as usize + at..)
            .and_then(|bytes| bytes.first_chunk::<2>())
            .map_or(0, |kind| be16(kind, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Layers, dissect};
    use super::*;
    use crate::LinkType;
    use crate::wire::{FrameBuilder, put};

    fn of(frame: &[u8]) -> KernelFlow {
        KernelFlow::of(frame, &dissect(frame, LinkType::ETHERNET, Layers::Inner))
    }

    #[test]
    fn fragments_go_by_addresses_and_tags_count() {
        let udp = |port: u16| FrameBuilder::udp(([10, 0, 0, 1], port), ([10, 0, 0, 2], 53));
        assert_ne!(of(&udp(1).frame(b"")), of(&udp(2).frame(b"")));
        let fragment = |port| {
            let mut frame = udp(port).frame(b"");
            put(&mut frame, 20, [0x20, 0]);
            of(&frame)
        };
        assert_eq!(fragment(1), fragment(2));
        assert_ne!(of(&udp(1).frame(b"")), of(&udp(1).vlan(7).frame(b"")));
    }

    #[test]
    fn a_flow_label_is_all_that_counts_beside_the_addresses() {
        let udp = |port: u16, label: u8| {
            let mut frame = FrameBuilder::udp(([1_u16; 8], port), ([2_u16; 8], 53)).frame(b"");
            frame[17] = label;
            of(&frame)
        };
        assert_eq!(udp(1, 9), udp(2, 9));
        assert_ne!(udp(1, 0), udp(2, 0));
        assert_ne!(udp(1, 9), udp(1, 8));
    }

    #[test]
    fn no_frame_is_too_short() {
        let frame = FrameBuilder::udp(([1_u16; 8], 1), ([2_u16; 8], 53)).vlan(3).frame(b"abc");
        for len in 0..=frame.len() {
            let _ = of(&frame[..len]);
        }
    }
}
