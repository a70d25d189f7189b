//! Writes ICMP and ICMPv6 errors (RFC 792, 1191, 1812 (4.3), 4443) in place of the refused packet.

use std::net::IpAddr;

use steerage::flow::wire::checksum::{finish, sum};
use steerage::flow::wire::{IpHeader, ethernet, icmp, icmp6, ipv4, ipv6, protocol, put};
use steerage::{NoRoom, Packet};

/// Every host must accept IPv4 packets of this length (RFC 1812, 4.3.2.3).
const IPV4_ERROR_BYTES_MAX: usize = 576;
/// Every link must carry IPv6 packets of this length (RFC 4443, 2.4 c).
const IPV6_ERROR_BYTES_MAX: usize = 1280;
/// The IP precedence "internetwork control" (RFC 1812, 4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    TimeExceeded,
    NoRoute,
    HostUnreachable,
    Prohibited,
    TooBig(usize),
}

impl Problem {
    fn v4(self) -> (u8, u8, u32) {
        match self {
            Self::TimeExceeded => (icmp::TIME_EXCEEDED, 0, 0),
            Self::NoRoute => (icmp::UNREACHABLE, 0, 0),
            Self::HostUnreachable => (icmp::UNREACHABLE, 1, 0),
            Self::Prohibited => (icmp::UNREACHABLE, 13, 0),
            Self::TooBig(mtu) => (icmp::UNREACHABLE, 4, mtu.min(0xffff) as u32),
        }
    }

    fn v6(self) -> (u8, u8, u32) {
        match self {
            Self::TimeExceeded => (icmp6::TIME_EXCEEDED, 0, 0),
            Self::NoRoute => (icmp6::UNREACHABLE, 0, 0),
            Self::HostUnreachable => (icmp6::UNREACHABLE, 3, 0),
            Self::Prohibited => (icmp6::UNREACHABLE, 1, 0),
            Self::TooBig(mtu) => (icmp6::TOO_BIG, 0, mtu as u32),
        }
    }
}

/// Replaces the packet with an ICMP error from `source` to the packet's sender. The packet has an
/// Ethernet header of `link` bytes and an IP packet of `len` bytes, whose version is that of
/// `source`.
pub(super) fn answer(
    packet: &mut Packet<'_>,
    link: usize,
    len: usize,
    source: IpAddr,
    problem: Problem,
) -> Result<(), NoRoom> {
    let (ip_bytes, bytes_max) =
        if source.is_ipv4() { (ipv4::BYTES, IPV4_ERROR_BYTES_MAX) } else { (ipv6::BYTES, IPV6_ERROR_BYTES_MAX) };
    let headers = ip_bytes + icmp::BYTES;
    let data = make_room(packet, link, len.min(bytes_max - headers), headers)?;
    let (header, message) = data[link..].split_at_mut(ip_bytes);
    let quoted = &message[icmp::BYTES..];
    let (ip, fields) = if source.is_ipv4() {
        let to: [u8; 4] = *quoted[ipv4::ADDRESSES].first_chunk().ok_or(NoRoom::TooLong)?;
        (IpHeader { class: PRECEDENCE, ..IpHeader::new(source, to, protocol::ICMP) }, problem.v4())
    } else {
        let to: [u8; 16] = *quoted[ipv6::ADDRESSES].first_chunk().ok_or(NoRoom::TooLong)?;
        (IpHeader::new(source, to, protocol::ICMP6), problem.v6())
    };
    let pseudo = ip.write(header, message.len()).ok_or(NoRoom::TooLong)?;
    let (kind, code, rest) = fields;
    message[..4].copy_from_slice(&[kind, code, 0, 0]);
    put(message, 4, rest.to_be_bytes());
    let checksum = finish(sum(message, if source.is_ipv4() { 0 } else { pseudo }));
    put(message, 2, checksum.to_be_bytes());
    Ok(())
}

/// Keeps the first `quoted` bytes of the IP packet, inserts `headers` bytes before them, and swaps
/// the link addresses.
fn make_room<'p>(
    packet: &'p mut Packet<'_>,
    link: usize,
    quoted: usize,
    headers: usize,
) -> Result<&'p mut [u8], NoRoom> {
    packet.truncate(link + quoted)?;
    packet.linearise()?;
    packet.prepend(headers)?;
    let data = packet.data_mut()?;
    data.copy_within(headers..headers + link, 0);
    if link > 0 {
        let (to, from) = data[..2 * ethernet::ADDRESS_BYTES].split_at_mut(ethernet::ADDRESS_BYTES);
        to.swap_with_slice(from);
    }
    Ok(data)
}
