//! The positions of a packet's headers, for packets that can be cut and merged: TCP or UDP, not
//! fragmented, on IPv4 or IPv6.

use super::HEADER_BYTES_MAX;
use super::checksum::sum;
use crate::LinkType;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

/// The offset of TCP's flags.
pub(super) const TCP_FLAGS_AT: usize = 13;
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const URG: u8 = 0x20;
pub(super) const CWR: u8 = 0x80;

/// The most VLAN tags that are read.
const TAGS_MAX: usize = 2;
/// The most IPv6 extension headers that are read: hop-by-hop and destination options.
const EXTENSIONS_MAX: usize = 4;

const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;

/// The positions of a packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) network_at: usize,
    pub(super) is_v4: bool,
    pub(super) protocol: u8,
    pub(super) transport_at: usize,
    pub(super) payload_at: usize,
}

impl Layout {
    /// The offset of the checksum in the transport header.
    pub(super) fn checksum_at(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The offset of the IP header, and whether it is IPv4.
fn network_at(frame: &[u8], link: LinkType) -> Option<(usize, bool)> {
    match link {
        LinkType::ETHERNET => {
            let mut at = 12;
            for _ in 0..=TAGS_MAX {
                match frame.get(at..at + 2)? {
                    [0x08, 0x00] => return Some((at + 2, true)),
                    [0x86, 0xdd] => return Some((at + 2, false)),
                    [0x81, 0x00] | [0x88, 0xa8] => at += 4,
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

/// Reads the headers. `None` if the packet is of another kind, is cut off, is followed by other
/// bytes, or has too long headers.
pub(super) fn read(frame: &[u8], link: LinkType) -> Option<Layout> {
    let (network_at, is_v4) = network_at(frame, link)?;
    let packet = &frame[network_at..];
    let (protocol, transport) = if is_v4 { read_v4(packet)? } else { read_v6(packet)? };
    let header = packet.get(transport..)?;
    let header_bytes = match protocol {
        TCP => Some(usize::from(header.get(12)? >> 4) * 4).filter(|bytes| *bytes >= 20)?,
        UDP => UDP_BYTES,
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
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let is_whole = usize::from(be16(header, 2)) == packet.len();
    let is_fragment = be16(header, 6) & 0x3fff != 0;
    (header[0] >> 4 == 4 && header_bytes >= 20 && is_whole && !is_fragment).then_some((header[9], header_bytes))
}

fn read_v6(packet: &[u8]) -> Option<(u8, usize)> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    if header[0] >> 4 != 6 || usize::from(be16(header, 4)) != packet.len() - IPV6_BYTES {
        return None;
    }
    let (mut next, mut at) = (header[6], IPV6_BYTES);
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(next, HOP_BY_HOP | DESTINATION) {
            break;
        }
        let [following, units] = *packet.get(at..)?.first_chunk()?;
        (next, at) = (following, at + 8 * (usize::from(units) + 1));
    }
    Some((next, at))
}

/// The sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1) of a packet with these headers.
/// `bytes` is the length of its transport header and payload.
pub(super) fn pseudo_sum(header: &[u8], layout: &Layout, bytes: usize) -> u64 {
    let addresses = if layout.is_v4 { 12..20 } else { 8..40 };
    sum(&header[layout.network_at..][addresses], bytes as u64 + u64::from(layout.protocol))
}
