//! Reads the fields of a packet that the responder needs for a reply.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use steerage::LinkType;
use steerage::flow::wire::checksum::{finish, pseudo_sum, sum};
use steerage::flow::wire::protocol::{AUTHENTICATION, DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
use steerage::flow::wire::{be16, be32, ethernet, ethertype, ipv4, ipv6, tcp};

use super::config::Config;
use super::counts::Fate;
use steerage_router::addresses::{is_of_a_host_v6, is_source_v4};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Arp,
    Ip(Ip),
}

/// Offsets and fields of an IP packet for this host. The header is complete and has no options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    pub(super) at: usize,
    pub(super) is_v4: bool,
    pub(super) protocol: u8,
    pub(super) payload: usize,
    pub(super) end: usize,
    /// The index of the responder's address, or `None` for an IPv6 multicast address.
    pub(super) local: Option<u8>,
}

/// The endpoints of a TCP connection. IPv4 addresses are stored as IPv4-mapped IPv6 addresses (RFC
/// 4291, 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) remote: [u8; 16],
    pub(super) remote_port: u16,
    pub(super) local: u8,
    pub(super) local_port: u16,
}

/// Returns the contents of a packet for this host. For a packet that is invalid or not for this
/// host, returns the [`Fate`] to count.
pub(super) fn read(frame: &[u8], link: LinkType, wire_len: usize, config: &Config) -> Result<Held, Fate> {
    let (at, is_v4) = match link {
        LinkType::ETHERNET => match type_of(frame, config)? {
            ethertype::ARP => return Ok(Held::Arp),
            ethertype::IPV4 => (ethernet::BYTES, true),
            ethertype::IPV6 => (ethernet::BYTES, false),
            _ => return Err(Fate::NotOurs),
        },
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => match frame.first().map(|byte| byte >> 4) {
            Some(version @ (4 | 6)) => (0, version == 4),
            _ => return Err(Fate::BadHeader),
        },
        _ => return Err(Fate::NotOurs),
    };
    if wire_len > frame.len() {
        return Err(Fate::BadHeader);
    }
    if is_v4 { ipv4(frame, at, config) } else { ipv6(frame, at, config) }.map(Held::Ip)
}

/// Returns the EtherType of a frame for the host's link address or for a possible group address.
fn type_of(frame: &[u8], config: &Config) -> Result<u16, Fate> {
    let header: &[u8; ethernet::BYTES] = frame.first_chunk().ok_or(Fate::BadHeader)?;
    let kind = be16(header, ethernet::TYPE_AT);
    let may_be_ours = match kind {
        ethertype::ARP => header[..6] == [0xff; 6],
        ethertype::IPV6 => header[..3] == [0x33, 0x33, 0xff],
        _ => false,
    };
    // The sender's link address must not be a group address.
    let is_sound = header[6] & 1 == 0;
    if (may_be_ours || header[..6] == config.mac) && is_sound { Ok(kind) } else { Err(Fate::NotOurs) }
}

fn ipv4(frame: &[u8], at: usize, config: &Config) -> Result<Ip, Fate> {
    let packet = &frame[at..];
    let header: &[u8; ipv4::BYTES] = packet.first_chunk().ok_or(Fate::BadHeader)?;
    let (bytes, total) = (usize::from(header[0] & 0xf) * 4, usize::from(be16(header, 2)));
    if header[0] >> 4 != 4 || bytes < ipv4::BYTES || total < bytes || total > packet.len() {
        return Err(Fate::BadHeader);
    }
    let destination = Ipv4Addr::from(*header.last_chunk().ok_or(Fate::BadHeader)?);
    let local = config.local(destination.into()).ok_or(Fate::NotOurs)?;
    if config.verifies && finish(sum(&packet[..bytes], 0)) != 0 {
        return Err(Fate::BadChecksum);
    }
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    if !is_source_v4(source, &config.broadcasts) || source == destination {
        return Err(Fate::BadHeader);
    }
    // In a fragment, the bit "more fragments" is set, or the offset is not 0.
    if be16(header, 6) & ipv4::FRAGMENT != 0 {
        return Err(Fate::Fragment);
    }
    if bytes > ipv4::BYTES {
        return Err(Fate::Options);
    }
    let (payload, end) = (at + bytes, at + total);
    Ok(Ip { at, is_v4: true, protocol: header[ipv4::PROTOCOL_AT], payload, end, local: Some(local) })
}

fn ipv6(frame: &[u8], at: usize, config: &Config) -> Result<Ip, Fate> {
    let packet = &frame[at..];
    let header: &[u8; ipv6::BYTES] = packet.first_chunk().ok_or(Fate::BadHeader)?;
    let length = usize::from(be16(header, 4));
    if header[0] >> 4 != 6 || ipv6::BYTES + length > packet.len() {
        return Err(Fate::BadHeader);
    }
    let destination = Ipv6Addr::from(*header.last_chunk().ok_or(Fate::BadHeader)?);
    let local = config.local(destination.into());
    if local.is_none() && !destination.is_multicast() {
        return Err(Fate::NotOurs);
    }
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).map_err(|_| Fate::BadHeader)?);
    // A host without an address uses the unspecified source to check whether an address is in use:
    // RFC 4862.
    let asks = source.is_unspecified() && local.is_none();
    if !(is_of_a_host_v6(source) || asks) || source == destination {
        return Err(Fate::BadHeader);
    }
    match header[ipv6::PROTOCOL_AT] {
        FRAGMENT => return Err(Fate::Fragment),
        HOP_BY_HOP | ROUTING | AUTHENTICATION | DESTINATION => return Err(Fate::Options),
        _ => {}
    }
    let payload = at + ipv6::BYTES;
    Ok(Ip { at, is_v4: false, protocol: header[ipv6::PROTOCOL_AT], payload, end: payload + length, local })
}

impl Ip {
    pub(super) fn checksum_is_valid(&self, frame: &[u8], with_pseudo: bool) -> bool {
        let pseudo = if with_pseudo { self.pseudo(frame, self.end - self.payload) } else { 0 };
        finish(sum(&frame[self.payload..self.end], pseudo)) == 0
    }

    /// The pseudo-header has the same partial checksum in both directions of a flow.
    pub(super) fn pseudo(&self, frame: &[u8], len: usize) -> u64 {
        pseudo_sum(&frame[self.at..], self.is_v4, self.protocol, len)
    }

    pub(super) fn key(&self, frame: &[u8], local: u8) -> Key {
        let remote = match self.is_v4 {
            true => v4(&frame[self.at + 12..]).to_ipv6_mapped().octets(),
            false => frame[self.at + 8..].first_chunk().copied().unwrap_or_default(),
        };
        let ports = &frame[self.payload..];
        Key { remote, remote_port: be16(ports, 0), local, local_port: be16(ports, 2) }
    }
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::from(bytes.first_chunk::<4>().copied().unwrap_or_default())
}

impl Key {
    pub(super) fn peer(&self) -> IpAddr {
        Ipv6Addr::from(self.remote).to_canonical()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u16,
    pub(super) window: u16,
    pub(super) bytes: usize,
    pub(super) len: usize,
}

pub(super) const ACKNOWLEDGED_AT: usize = 8;

impl Tcp {
    pub(super) fn read(segment: &[u8]) -> Result<Self, Fate> {
        let header: &[u8; tcp::BYTES] = segment.first_chunk().ok_or(Fate::BadHeader)?;
        let bytes = usize::from(header[tcp::FLAGS_AT] >> 4) * 4;
        if bytes < tcp::BYTES || bytes > segment.len() || be16(header, 0) == 0 || be16(header, 2) == 0 {
            return Err(Fate::BadHeader);
        }
        Ok(Self {
            sequence: be32(header, 4),
            acknowledged: be32(header, ACKNOWLEDGED_AT),
            flags: be16(header, tcp::FLAGS_AT) & tcp::FLAGS,
            window: be16(header, 14),
            bytes,
            len: segment.len() - bytes,
        })
    }

    pub(super) fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    pub(super) fn has_none_of(&self, flags: u16) -> bool {
        self.flags & flags == 0
    }
}

/// Returns the value of the MSS option: RFC 9293, 3.7.1.
pub(super) fn mss_of(options: &[u8]) -> Option<u16> {
    let mut left = options;
    loop {
        match left {
            [] | [0, ..] => return None,
            [1, rest @ ..] => left = rest,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, len, ..] if *len >= 2 => left = left.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}
