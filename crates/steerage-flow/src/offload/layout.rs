//! The offsets of the headers of a packet that can be split or merged: TCP or UDP, not fragmented.

use super::HEADER_BYTES_MAX;
use crate::LinkType;
use crate::wire::{be16, ethernet, ethertype, ipv4, ipv6, protocol, tcp, udp, vlan};

const TAGS_MAX: usize = 2;
const EXTENSIONS_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) network_at: usize,
    pub(super) is_v4: bool,
    pub(super) protocol: u8,
    pub(super) transport_at: usize,
    pub(super) payload_at: usize,
}

impl Layout {
    pub(super) fn checksum_at(&self) -> usize {
        if self.protocol == protocol::TCP { tcp::CHECKSUM_AT } else { udp::CHECKSUM_AT }
    }
}

fn network_at(frame: &[u8], link: LinkType) -> Option<(usize, bool)> {
    match link {
        LinkType::ETHERNET => {
            let mut at = ethernet::TYPE_AT;
            for _ in 0..=TAGS_MAX {
                match u16::from_be_bytes(*frame.get(at..)?.first_chunk()?) {
                    ethertype::IPV4 => return Some((at + 2, true)),
                    ethertype::IPV6 => return Some((at + 2, false)),
                    ethertype::VLAN | ethertype::VLAN_SERVICE => at += vlan::BYTES,
                    _ => return None,
                }
            }
            None
        }
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => {
            Some((0, frame.first()? >> 4 == 4))
        }
        _ => None,
    }
}

/// Returns `None` if the packet is not TCP or UDP, is cut off, has headers that are too long, or is
/// followed by further bytes.
pub(super) fn read(frame: &[u8], link: LinkType) -> Option<Layout> {
    let (network_at, is_v4) = network_at(frame, link)?;
    let packet = &frame[network_at..];
    let (protocol, transport) = if is_v4 { read_v4(packet)? } else { read_v6(packet)? };
    let header = packet.get(transport..)?;
    let header_bytes = match protocol {
        protocol::TCP => Some(usize::from(header.get(tcp::FLAGS_AT)? >> 4) * 4).filter(|bytes| *bytes >= tcp::BYTES)?,
        protocol::UDP => udp::BYTES,
        _ => return None,
    };
    let transport_at = network_at + transport;
    let payload_at = transport_at + header_bytes;
    (header.len() >= header_bytes && payload_at <= HEADER_BYTES_MAX).then_some(Layout {
        network_at,
        is_v4,
        protocol,
        transport_at,
        payload_at,
    })
}

fn read_v4(packet: &[u8]) -> Option<(u8, usize)> {
    let header: &[u8; ipv4::BYTES] = packet.first_chunk()?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let is_whole = usize::from(be16(header, 2)) == packet.len();
    let is_fragment = be16(header, 6) & ipv4::FRAGMENT != 0;
    (header[0] >> 4 == 4 && header_bytes >= ipv4::BYTES && is_whole && !is_fragment)
        .then_some((header[ipv4::PROTOCOL_AT], header_bytes))
}

fn read_v6(packet: &[u8]) -> Option<(u8, usize)> {
    let header: &[u8; ipv6::BYTES] = packet.first_chunk()?;
    if header[0] >> 4 != 6 || usize::from(be16(header, 4)) != packet.len() - ipv6::BYTES {
        return None;
    }
    let (mut next, mut at) = (header[ipv6::PROTOCOL_AT], ipv6::BYTES);
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(next, protocol::HOP_BY_HOP | protocol::DESTINATION) {
            break;
        }
        let [following, units] = *packet.get(at..)?.first_chunk()?;
        (next, at) = (following, at + 8 * (usize::from(units) + 1));
    }
    Some((next, at))
}
