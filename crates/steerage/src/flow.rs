//! From a frame's headers to its [`FlowKey`].
//!
//! [`flow_key`] reads Ethernet, VLAN tags, IPv4, IPv6 and the ports. What nearly every frame is made of goes a straight
//! line of a few loads and compares; everything else is left to `careful`, which takes its time but not more of it than
//! its two limits allow. [`link_key`] is for frames that hold no IP.
//!
//! Architecture invariant: nothing here trusts a length that a frame states about itself. Every read is a checked read
//! of the slice given, which is why arbitrary bytes cannot do worse than get an arbitrary key.

use steerage_mem::hash::{FlowKey, protocol};

/// VLAN tags that are read: an outer and an inner one (IEEE 802.1ad). A frame with more has no flow key.
const VLAN_TAGS_MAX: usize = 2;

/// IPv6 extension headers that are skipped to find the ports; beyond, the flow is known by addresses and by the type of
/// the header at which reading ended. RFC 8200, 4.1, has no use for more than five of the kinds skipped here; the rest
/// is for senders that know no better.
const IPV6_EXTENSIONS_MAX: usize = 8;

/// EtherTypes (IEEE registration authority).
mod ethertype {
    pub(super) const IPV4: u16 = 0x0800;
    pub(super) const IPV6: u16 = 0x86dd;
    /// IEEE 802.1Q, a customer's tag.
    pub(super) const VLAN: u16 = 0x8100;
    /// IEEE 802.1ad, a provider's tag.
    pub(super) const VLAN_SERVICE: u16 = 0x88a8;
    /// A provider's tag before there was a standard.
    pub(super) const VLAN_QINQ: u16 = 0x9100;
    /// Below this the field is the frame's length (IEEE 802.3, 3.2.6).
    pub(super) const MIN: u16 = 0x0600;
    /// What Linux calls a frame with a length in the field (`ETH_P_802_2`): it is no registered type.
    pub(super) const LLC: u16 = 0x0004;
}

/// IPv6 extension headers that are skipped, by their protocol numbers.
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const DESTINATION: u8 = 60;
}

/// Length in bytes: two addresses and an EtherType.
const ETHERNET_LEN: usize = 14;
const VLAN_TAG_LEN: usize = 4;
/// Source and destination port, with which TCP, UDP and SCTP begin.
const PORTS_LEN: usize = 4;
/// Without options.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// First byte of an IPv4 header without options: version 4, five words of four bytes.
const IPV4_PLAIN: u8 = 0x45;
/// Bits of the IPv4 flags and offset field: more fragments, and the offset. The third flag, don't fragment, says
/// nothing.
const IPV4_FRAGMENT: u16 = 0x3fff;
/// The same in an IPv6 fragment header: the offset, and more fragments in the lowest bit.
const IPV6_FRAGMENT: u16 = 0xfff9;

/// The flow that an Ethernet frame belongs to, as its sender sees it: apply [`FlowKey::both_directions`] where both
/// directions are to meet. `None` if the frame holds no IP, no whole IP header, or more than two VLAN tags: see
/// [`link_key`].
///
/// * TCP, UDP and SCTP: by addresses, ports and protocol. VLAN ids take no part.
/// * Other protocols: by addresses and protocol, ports 0. So also TCP, UDP and SCTP cut off before the ports.
/// * Fragments: likewise, the first one too, so that all fragments of a datagram agree. The protocol is that of the
///   IPv4 header or of the IPv6 fragment header, which every fragment has. An IPv6 fragment header that says it is the
///   only one (RFC 6946) is skipped like any extension.
///
/// `frame` begins with the destination address and may be cut short at the end; the frame check sequence is ignored.
/// Lengths that the headers state are not compared with the frame's: a frame padded to the Ethernet minimum, one cut by
/// a capture and one coalesced by the kernel all have the key of their flow.
#[must_use]
#[inline(always)]
pub fn flow_key(frame: &[u8]) -> Option<FlowKey> {
    match plain(frame) {
        Some(key) => Some(key),
        None => careful(frame).map(FlowKey::by_words),
    }
}

/// The key of a frame that has no [`flow_key`]: its stations and the type of what it holds, after up to two VLAN tags.
///
/// All frames with a length in place of a type count as one type. A frame too short for an Ethernet header is known by
/// all the bytes that it has.
#[must_use]
#[inline(always)]
pub fn link_key(frame: &[u8]) -> FlowKey {
    link(frame).by_words()
}

#[cold]
#[inline(never)]
fn link(frame: &[u8]) -> FlowKey {
    let Some([d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = frame.first_chunk() else {
        return FlowKey::from_bytes(frame);
    };
    let Some((ethertype, _)) = payload(frame) else {
        return FlowKey::from_bytes(frame);
    };
    let ethertype = if ethertype < ethertype::MIN { ethertype::LLC } else { ethertype };
    FlowKey::link([*s0, *s1, *s2, *s3, *s4, *s5], [*d0, *d1, *d2, *d3, *d4, *d5], ethertype)
}

/// Ethernet, at most one tag, IP without options, extensions or fragments, TCP or UDP. `None` is "not so plain".
#[inline(always)]
fn plain(frame: &[u8]) -> Option<FlowKey> {
    let head: &[u8; ETHERNET_LEN + VLAN_TAG_LEN] = frame.first_chunk()?;
    let mut ethertype = be16(head, 12);
    let mut packet = frame.get(ETHERNET_LEN..)?;
    if ethertype == ethertype::VLAN {
        ethertype = be16(head, 16);
        packet = packet.get(VLAN_TAG_LEN..)?;
    }
    match ethertype {
        ethertype::IPV4 => plain_ipv4(packet.first_chunk()?),
        ethertype::IPV6 => plain_ipv6(packet.first_chunk()?),
        _ => None,
    }
}

#[inline(always)]
fn plain_ipv4(header: &[u8; IPV4_LEN + PORTS_LEN]) -> Option<FlowKey> {
    let protocol = header[9];
    let plain = header[0] == IPV4_PLAIN && be16(header, 6) & IPV4_FRAGMENT == 0 && has_common_ports(protocol);
    plain.then(|| FlowKey::v4((be32(header, 12), be16(header, 20)), (be32(header, 16), be16(header, 22)), protocol))
}

#[inline(always)]
fn plain_ipv6(header: &[u8; IPV6_LEN + PORTS_LEN]) -> Option<FlowKey> {
    let protocol = header[6];
    let plain = header[0] >> 4 == 6 && has_common_ports(protocol);
    plain.then(|| FlowKey::v6((be128(header, 8), be16(header, 40)), (be128(header, 24), be16(header, 42)), protocol))
}

/// SCTP is left to `careful`: it is rare enough not to cost the others a compare.
#[inline(always)]
fn has_common_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP)
}

/// All that `flow_key` promises, step by step.
#[cold]
#[inline(never)]
fn careful(frame: &[u8]) -> Option<FlowKey> {
    match payload(frame)? {
        (ethertype::IPV4, packet) => ipv4(packet),
        (ethertype::IPV6, packet) => ipv6(packet),
        _ => None,
    }
}

/// What an Ethernet frame holds, after its VLAN tags: EtherType and bytes. If a tag is cut off, or there is one too
/// many, it is the tag's own type. `None` if there is no whole Ethernet header.
fn payload(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (header, mut payload) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let mut ethertype = be16(header, 12);
    for _ in 0..VLAN_TAGS_MAX {
        if !matches!(ethertype, ethertype::VLAN | ethertype::VLAN_SERVICE | ethertype::VLAN_QINQ) {
            break;
        }
        let Some((tag, rest)) = payload.split_first_chunk::<VLAN_TAG_LEN>() else { break };
        ethertype = be16(tag, 2);
        payload = rest;
    }
    Some((ethertype, payload))
}

fn ipv4(packet: &[u8]) -> Option<FlowKey> {
    let header: &[u8; IPV4_LEN] = packet.first_chunk()?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || header_len < IPV4_LEN {
        return None;
    }
    let protocol = header[9];
    let fragment = be16(header, 6) & IPV4_FRAGMENT != 0;
    let (source, destination) =
        if fragment { (0, 0) } else { ports(protocol, packet.get(header_len..).unwrap_or_default()) };
    Some(FlowKey::v4((be32(header, 12), source), (be32(header, 16), destination), protocol))
}

fn ipv6(packet: &[u8]) -> Option<FlowKey> {
    let (header, mut rest) = packet.split_first_chunk::<IPV6_LEN>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut protocol = header[6];
    for _ in 0..IPV6_EXTENSIONS_MAX {
        match skip_extension(protocol, rest) {
            Skipped::To(next, behind) => (protocol, rest) = (next, behind),
            Skipped::Fragment(next) => (protocol, rest) = (next, &[]),
            Skipped::Nothing => break,
        }
        if rest.is_empty() {
            break;
        }
    }
    let (source, destination) = ports(protocol, rest);
    Some(FlowKey::v6((be128(header, 8), source), (be128(header, 24), destination), protocol))
}

/// One step along an IPv6 header chain.
enum Skipped<'a> {
    /// An extension header: what comes next, and its bytes.
    To(u8, &'a [u8]),
    /// A fragment's header: what the datagram holds. It can be read in the first fragment only, so in none.
    Fragment(u8),
    /// No extension header, or one that is cut off.
    Nothing,
}

fn skip_extension(protocol: u8, bytes: &[u8]) -> Skipped<'_> {
    // Each kind is a multiple of eight bytes, the first of which is the next header's type.
    let Some(head) = bytes.first_chunk::<8>() else { return Skipped::Nothing };
    let len = match protocol {
        extension::HOP_BY_HOP | extension::ROUTING | extension::DESTINATION => 8 + 8 * usize::from(head[1]),
        extension::FRAGMENT if be16(head, 2) & IPV6_FRAGMENT != 0 => return Skipped::Fragment(head[0]),
        extension::FRAGMENT => 8,
        _ => return Skipped::Nothing,
    };
    match bytes.get(len..) {
        Some(rest) => Skipped::To(head[0], rest),
        None => Skipped::Nothing,
    }
}

/// Source and destination port, 0 where there are none.
fn ports(protocol: u8, bytes: &[u8]) -> (u16, u16) {
    match bytes.first_chunk::<PORTS_LEN>() {
        Some(ports) if protocol::has_ports(protocol) => (be16(ports, 0), be16(ports, 2)),
        _ => (0, 0),
    }
}

// Reads at a place known when the program is compiled, of an array whose length is too: no check is left.

#[inline(always)]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn be128<const N: usize>(bytes: &[u8; N], at: usize) -> u128 {
    u128::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    const PORTS: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
    /// Next header, length in eights of bytes beyond the first, and padding.
    const DESTINATION_TO_UDP: [u8; 8] = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0];

    fn frame(tags: &[u16], ethertype: u16, packet: &[&[u8]]) -> Vec<u8> {
        let mut frame = MACS.to_vec();
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 5]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(packet.concat());
        frame
    }

    fn v4(protocol: u8, flags_and_offset: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let [high, low] = flags_and_offset.to_be_bytes();
        let version = 0x45 + (options.len() / 4) as u8;
        let header = [version, 0, 0, 28, 0, 0, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        frame(&[], ethertype::IPV4, &[&header, options, payload])
    }

    fn v6_packet(next: u8, payload: &[&[u8]]) -> Vec<u8> {
        let mut packet = vec![0; IPV6_LEN];
        (packet[0], packet[6]) = (0x60, next);
        (packet[8], packet[23]) = (0xfd, 1);
        (packet[24], packet[39]) = (0xfd, 2);
        packet.extend(payload.concat());
        packet
    }

    fn v6(next: u8, payload: &[&[u8]]) -> Vec<u8> {
        frame(&[], ethertype::IPV6, &[&v6_packet(next, payload)])
    }

    fn shown(frame: &[u8]) -> String {
        flow_key(frame).map_or_else(|| link_key(frame).to_string(), |key| key.to_string())
    }

    #[test]
    fn ipv4() {
        let flow = "udp 10.0.0.1:40000 > 10.0.0.2:53";
        assert_eq!(shown(&v4(protocol::UDP, 0, &[], &PORTS)), flow);
        assert_eq!(shown(&v4(protocol::UDP, 0x4000, &[], &PORTS)), flow, "don't fragment");
        assert_eq!(shown(&v4(protocol::UDP, 0, &[1; 40], &PORTS)), flow, "options");
        assert_eq!(shown(&v4(protocol::UDP, 0, &[], &PORTS[..4])), flow, "cut after the ports");
        assert_eq!(shown(&v4(protocol::UDP, 0, &[], &PORTS[..3])), "udp 10.0.0.1 > 10.0.0.2");
        assert_eq!(shown(&v4(protocol::UDP, 0, &[1; 40], &[])[..40]), "udp 10.0.0.1 > 10.0.0.2", "cut options");
        assert_eq!(shown(&v4(protocol::SCTP, 0, &[], &PORTS)), "sctp 10.0.0.1:40000 > 10.0.0.2:53");
        assert_eq!(shown(&v4(protocol::ICMP, 0, &[], &PORTS)), "icmp 10.0.0.1 > 10.0.0.2");
    }

    #[test]
    fn all_fragments_of_a_datagram_have_one_key() {
        for flags_and_offset in [0x2000, 0x2001, 0x0001, 0x1fff] {
            assert_eq!(shown(&v4(protocol::UDP, flags_and_offset, &[], &PORTS)), "udp 10.0.0.1 > 10.0.0.2");
        }
        let fragment = |offset: [u8; 2]| [extension::DESTINATION, 0, offset[0], offset[1], 0, 0, 0, 1];
        for offset in [[0, 1], [0, 9], [0, 8], [0xff, 0xf8]] {
            let frame = v6(extension::FRAGMENT, &[&fragment(offset), &DESTINATION_TO_UDP, &PORTS]);
            assert_eq!(shown(&frame), "protocol-60 fd00::1 > fd00::2");
        }
        let only = v6(extension::FRAGMENT, &[&fragment([0, 6]), &DESTINATION_TO_UDP, &PORTS]);
        assert_eq!(shown(&only), "udp [fd00::1]:40000 > [fd00::2]:53", "reserved bits do not make a fragment");
    }

    #[test]
    fn ipv6() {
        let flow = "udp [fd00::1]:40000 > [fd00::2]:53";
        assert_eq!(shown(&v6(protocol::UDP, &[&PORTS])), flow);
        assert_eq!(shown(&v6(protocol::ICMP6, &[&PORTS])), "icmp6 fd00::1 > fd00::2");
        assert_eq!(shown(&v6(protocol::UDP, &[&PORTS[..2]])), "udp fd00::1 > fd00::2");
        for kind in [extension::HOP_BY_HOP, extension::ROUTING, extension::DESTINATION] {
            assert_eq!(shown(&v6(kind, &[&DESTINATION_TO_UDP, &PORTS])), flow);
            let long = [&[protocol::UDP, 2][..], &[0; 22]].concat();
            assert_eq!(shown(&v6(kind, &[&long, &PORTS])), flow);
            let cut = format!("protocol-{kind} fd00::1 > fd00::2");
            assert_eq!(shown(&v6(kind, &[&long[..16]])), cut);
        }
    }

    #[test]
    fn extensions_are_skipped_up_to_the_limit() {
        let more = [extension::DESTINATION, 0, 1, 4, 0, 0, 0, 0];
        let chain = |len: usize| {
            let headers = [&more.repeat(len - 1)[..], &DESTINATION_TO_UDP, &PORTS].concat();
            shown(&v6(extension::DESTINATION, &[&headers]))
        };
        assert_eq!(chain(IPV6_EXTENSIONS_MAX), "udp [fd00::1]:40000 > [fd00::2]:53");
        assert_eq!(chain(IPV6_EXTENSIONS_MAX + 1), "protocol-60 fd00::1 > fd00::2");
    }

    #[test]
    fn tags() {
        let packet = v6_packet(protocol::TCP, &[&PORTS]);
        for tags in [&[][..], &[0x8100], &[0x88a8], &[0x9100, 0x8100], &[0x88a8, 0x8100], &[0x8100, 0x8100]] {
            let tagged = frame(tags, ethertype::IPV6, &[&packet]);
            assert_eq!(shown(&tagged), "tcp [fd00::1]:40000 > [fd00::2]:53");
        }
        let three = frame(&[0x88a8, 0x8100, 0x8100], ethertype::IPV6, &[&packet]);
        assert_eq!(shown(&three), "link 02:00:00:00:00:01 > 02:00:00:00:00:02 0x8100");
    }

    #[test]
    fn no_flow() {
        let stations = "link 02:00:00:00:00:01 > 02:00:00:00:00:02";
        assert_eq!(shown(&frame(&[], 0x0806, &[])), format!("{stations} 0x0806"));
        assert_eq!(shown(&frame(&[0x8100], 0x0806, &[])), format!("{stations} 0x0806"));
        assert_eq!(shown(&frame(&[0x8100], 0x0806, &[])[..16]), format!("{stations} 0x8100"));
        assert_eq!(shown(&frame(&[], 38, &[])), format!("{stations} 0x0004"), "spanning tree: a length, no type");
        assert_eq!(shown(&v4(protocol::UDP, 0, &[], &[])[..33]), format!("{stations} 0x0800"));
        assert_eq!(shown(&MACS[..3]), "bytes 020000");
        assert_eq!(shown(&[]), "bytes ");
        let mut wrong = v4(protocol::UDP, 0, &[], &PORTS);
        for version_and_len in [0x44, 0x55, 0x65] {
            wrong[ETHERNET_LEN] = version_and_len;
            assert_eq!(shown(&wrong), format!("{stations} 0x0800"));
        }
        let mut wrong = v6(protocol::UDP, &[&PORTS]);
        wrong[ETHERNET_LEN] = 0x45;
        assert_eq!(shown(&wrong), format!("{stations} 0x86dd"));
    }

    /// Bytes that begin like a frame often enough to get past the first compares.
    fn frame_like() -> impl Strategy<Value = Vec<u8>> {
        let ethertype = prop_oneof![
            Just(vec![0x08, 0x00, 0x45]),
            Just(vec![0x86, 0xdd, 0x60]),
            Just(vec![0x81, 0x00, 0, 5, 0x08, 0x00, 0x45]),
            Just(vec![0x88, 0xa8, 0, 5, 0x86, 0xdd, 0x60]),
            Just(vec![]),
        ];
        let protocols = prop::sample::select(vec![0u8, 1, 6, 17, 43, 44, 60, 132]);
        let bytes = prop_oneof![any::<u8>(), protocols, Just(0)];
        (ethertype, prop::collection::vec(bytes, 0..160)).prop_map(|(ethertype, bytes)| {
            let mut frame = MACS.to_vec();
            frame.extend(ethertype);
            frame.extend(bytes);
            frame
        })
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_key(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (flow_key(&frame), link_key(&frame));
        }

        #[test]
        fn plain_is_only_a_short_cut(frame in frame_like(), len in 0..200_usize) {
            let frame = &frame[..len.min(frame.len())];
            if let Some(key) = plain(frame) {
                prop_assert_eq!(careful(frame), Some(key));
            }
            prop_assert_eq!(flow_key(frame), careful(frame));
        }

        /// What follows the headers is no part of the key.
        #[test]
        fn payload_does_not_matter(payload in prop::collection::vec(any::<u8>(), 0..100)) {
            for whole in [v4(protocol::TCP, 0, &[], &PORTS), v6(extension::ROUTING, &[&DESTINATION_TO_UDP, &PORTS])] {
                let longer = [&whole[..], &payload].concat();
                prop_assert_eq!(flow_key(&longer), flow_key(&whole));
            }
        }
    }
}
