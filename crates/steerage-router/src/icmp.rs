//! ICMP and ICMPv6 errors, which overwrite the packets that they report: RFC 792, 1191, 1812
//! (4.3), 4443.

use std::net::{Ipv4Addr, Ipv6Addr};

use steerage::{NoRoom, Packet};

use super::header::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};
use crate::checksum::{finish, sum};

const ICMP_HEADER_BYTES: usize = 8;
const MAC_BYTES: usize = 6;
/// The maximum length of an ICMP error, because every host must accept this many bytes: RFC 1812,
/// 4.3.2.3.
const IPV4_ERROR_BYTES_MAX: usize = 576;
/// The maximum length of an ICMPv6 error, because every link must carry this many bytes: RFC 4443,
/// 2.4 c.
const IPV6_ERROR_BYTES_MAX: usize = 1280;
/// The TTL and hop limit of ICMP errors: the recommended default (IANA, "IP parameters").
const TTL: u8 = 64;
/// IP precedence "internetwork control": RFC 1812, 4.3.2.5.
const PRECEDENCE: u8 = 0xc0;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    TimeExceeded,
    NoRoute,
    HostUnreachable,
    Prohibited,
    /// The packet exceeds the MTU of the next hop, which is this number of bytes.
    TooBig(usize),
}

impl Problem {
    fn v4(self) -> (u8, u8, u32) {
        match self {
            Self::TimeExceeded => (11, 0, 0),
            Self::NoRoute => (3, 0, 0),
            Self::HostUnreachable => (3, 1, 0),
            Self::Prohibited => (3, 13, 0),
            Self::TooBig(mtu) => (3, 4, mtu.min(0xffff) as u32),
        }
    }

    fn v6(self) -> (u8, u8, u32) {
        match self {
            Self::TimeExceeded => (3, 0, 0),
            Self::NoRoute => (1, 0, 0),
            Self::HostUnreachable => (1, 3, 0),
            Self::Prohibited => (1, 1, 0),
            Self::TooBig(mtu) => (2, 0, mtu as u32),
        }
    }
}

/// Replaces the packet by an ICMP error from `source` to the packet's sender.
///
/// The packet begins with `link` bytes of Ethernet header, or with no link header if `link` is 0.
/// The next `len` bytes are IPv4.
pub(super) fn answer_v4(
    packet: &mut Packet<'_>,
    link: usize,
    len: usize,
    source: Ipv4Addr,
    problem: Problem,
) -> Result<(), NoRoom> {
    const HEADERS: usize = IPV4_HEADER_BYTES + ICMP_HEADER_BYTES;
    let quoted = len.min(IPV4_ERROR_BYTES_MAX - HEADERS);
    let data = make_room(packet, link, quoted, HEADERS)?;
    let (header, icmp) = data[link..].split_at_mut(IPV4_HEADER_BYTES);
    let to: [u8; 4] = icmp[ICMP_HEADER_BYTES + 12..][..4].try_into().map_err(|_| NoRoom)?;
    write_icmp(icmp, problem.v4(), 0);
    header.fill(0);
    (header[0], header[1], header[8], header[9]) = (0x45, PRECEDENCE, TTL, ICMP);
    header[2..4].copy_from_slice(&((HEADERS + quoted) as u16).to_be_bytes());
    // "Don't fragment" is set, so the identification has no meaning (RFC 6864).
    header[6] = 0x40;
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&to);
    let checksum = finish(sum(header, 0));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

pub(super) fn answer_v6(
    packet: &mut Packet<'_>,
    link: usize,
    len: usize,
    source: Ipv6Addr,
    problem: Problem,
) -> Result<(), NoRoom> {
    const HEADERS: usize = IPV6_HEADER_BYTES + ICMP_HEADER_BYTES;
    let quoted = len.min(IPV6_ERROR_BYTES_MAX - HEADERS);
    let data = make_room(packet, link, quoted, HEADERS)?;
    let (header, icmp) = data[link..].split_at_mut(IPV6_HEADER_BYTES);
    let to: [u8; 16] = icmp[ICMP_HEADER_BYTES + 8..][..16].try_into().map_err(|_| NoRoom)?;
    let (source, payload) = (source.octets(), icmp.len());
    // The pseudo-header: RFC 8200, 8.1.
    let pseudo = sum(&to, sum(&source, payload as u64 + u64::from(ICMPV6)));
    write_icmp(icmp, problem.v6(), pseudo);
    header.fill(0);
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    (header[6], header[7]) = (ICMPV6, TTL);
    header[8..24].copy_from_slice(&source);
    header[24..40].copy_from_slice(&to);
    Ok(())
}

/// Makes room for `headers` bytes after the link header, swaps the link addresses, and keeps only
/// the first `quoted` bytes of the packet.
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
        let (to, from) = data[..2 * MAC_BYTES].split_at_mut(MAC_BYTES);
        to.swap_with_slice(from);
    }
    Ok(data)
}

fn write_icmp(icmp: &mut [u8], (kind, code, rest): (u8, u8, u32), pseudo: u64) {
    icmp[..4].copy_from_slice(&[kind, code, 0, 0]);
    icmp[4..8].copy_from_slice(&rest.to_be_bytes());
    let checksum = finish(sum(icmp, pseudo));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
}
