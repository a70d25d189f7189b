//! Reads the fields of an IP header that a router needs, and refuses packets that a router must not
//! forward (RFC 1812, 5.2.2 and 5.3; RFC 8200; RFC 4291).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use steerage::flow::wire::checksum::{finish, sum};
use steerage::flow::wire::{be16, icmp, icmp6, ipv4, ipv6, protocol};

use super::reason::Fate;
use crate::addresses::{is_of_a_host_v4, is_of_a_host_v6, is_source_v4};

/// The maximum number of IPv6 extension headers. No packet needs more than 8 (RFC 8200, 4.1).
const EXTENSIONS_MAX: usize = 8;

/// The IP header of a frame, at the offset `at`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ip {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) destination: IpAddr,
    pub(super) ttl: u8,
    /// Packets with a link-local address are never forwarded, but may be for this machine.
    pub(super) link_local: bool,
}

/// `bytes` is the length of the frame, including additional pages. `broadcasts` are the broadcast
/// addresses of the link on which the frame arrived.
#[inline]
pub(super) fn v4(frame: &[u8], at: usize, bytes: usize, broadcasts: &[Ipv4Addr]) -> Result<Ip, Fate> {
    let (packet, bytes) = (&frame[at..], bytes - at);
    let header: &[u8; ipv4::BYTES] = packet.first_chunk().ok_or(Fate::BadHeader)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let len = usize::from(be16(header, 2));
    if header[0] >> 4 != 4 || header_len < ipv4::BYTES || len < header_len || len > bytes {
        return Err(Fate::BadHeader);
    }
    if finish(sum(packet.get(..header_len).ok_or(Fate::BadHeader)?, 0)) != 0 {
        return Err(Fate::BadChecksum);
    }
    let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (source, destination) = (address(12), address(16));
    if !is_source_v4(source, broadcasts) {
        return Err(Fate::MartianSource);
    }
    if !is_of_a_host_v4(destination) {
        return Err(Fate::MartianDestination);
    }
    let link_local = source.is_link_local() || destination.is_link_local();
    Ok(Ip { at, len, destination: destination.into(), ttl: header[8], link_local })
}

#[inline]
pub(super) fn v6(frame: &[u8], at: usize, bytes: usize) -> Result<Ip, Fate> {
    let (packet, bytes) = (&frame[at..], bytes - at);
    let header: &[u8; ipv6::BYTES] = packet.first_chunk().ok_or(Fate::BadHeader)?;
    let len = ipv6::BYTES + usize::from(be16(header, 4));
    if header[0] >> 4 != 6 || len > bytes {
        return Err(Fate::BadHeader);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8), address(24));
    if !is_of_a_host_v6(source) {
        return Err(Fate::MartianSource);
    }
    if !is_of_a_host_v6(destination) {
        return Err(Fate::MartianDestination);
    }
    let link_local = source.is_unicast_link_local() || destination.is_unicast_link_local();
    Ok(Ip { at, len, destination: destination.into(), ttl: header[7], link_local })
}

/// Returns true if an ICMP error about the packet may be sent: never about an ICMP error, or about
/// a fragment after the first (RFC 1812, 4.3.2.7).
pub(super) fn may_answer_v4(packet: &[u8]) -> bool {
    let Some(header) = packet.first_chunk::<{ ipv4::BYTES }>() else { return false };
    let is_later = be16(header, 6) & ipv4::OFFSET != 0;
    let kind = packet.get(usize::from(header[0] & 0xf) * 4);
    // A packet with an unreadable ICMP type might be an ICMP error.
    let is_error = header[ipv4::PROTOCOL_AT] == protocol::ICMP && kind.is_none_or(|kind| icmp::ERRORS.contains(kind));
    !is_later && !is_error
}

/// Returns true if an ICMPv6 error about the packet may be sent, by the rules of RFC 4443, 2.4 e.
pub(super) fn may_answer_v6(packet: &[u8]) -> bool {
    use protocol::{AUTHENTICATION, DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
    let (Some(&first), mut at) = (packet.get(ipv6::PROTOCOL_AT), ipv6::BYTES) else { return false };
    let mut next = first;
    for _ in 0..EXTENSIONS_MAX {
        if next == protocol::ICMP6 {
            return packet.get(at).is_some_and(|kind| *kind >= icmp6::FIRST_INFORMATIONAL && *kind != icmp6::REDIRECT);
        }
        if !matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
            return true;
        }
        let Some(&[following, len, high, low]) = packet.get(at..).and_then(<[u8]>::first_chunk) else { return false };
        at += match next {
            FRAGMENT if u16::from_be_bytes([high, low]) & ipv6::OFFSET != 0 => return false,
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        next = following;
    }
    false
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn v4(packet: &[u8]) -> Result<Ip, Fate> {
        super::v4(packet, 0, packet.len(), &[[192, 0, 2, 255].into()])
    }

    fn v6(packet: &[u8]) -> Result<Ip, Fate> {
        super::v6(packet, 0, packet.len())
    }

    fn udp_v4(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
        let mut packet = Vec::new();
        PacketBuilder::ipv4(source, destination, 64).udp(1, 2).write(&mut packet, b"payload").unwrap();
        packet
    }

    fn udp_v6(source: &str, destination: &str) -> Vec<u8> {
        let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv6(octets(source), octets(destination), 64);
        builder.udp(1, 2).write(&mut packet, b"payload").unwrap();
        packet
    }

    #[test]
    fn a_good_packet_is_read() {
        let packet = udp_v4([10, 0, 0, 1], [192, 0, 2, 1]);
        let read = v4(&packet).unwrap();
        assert_eq!((read.destination, read.len, read.ttl), (IpAddr::from([192, 0, 2, 1]), packet.len(), 64));
        assert_eq!(v4(&[packet, vec![0; 11]].concat()).unwrap().len, 35);
        let packet = udp_v6("2001:db8::1", "fd00::2");
        let read = v6(&packet).unwrap();
        assert_eq!((read.len, read.ttl, read.link_local), (packet.len(), 64, false));
        assert!(v6(&udp_v6("fe80::1", "fd00::2")).unwrap().link_local);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = udp_v4([10, 0, 0, 1], [192, 0, 2, 1]);
        let with = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            v4(&packet).unwrap_err()
        };
        assert_eq!([with(0, 0x55), with(0, 0x44), with(3, 19), with(3, 36)], [Fate::BadHeader; 4]);
        assert_eq!([with(8, 63), with(0, 0x46), with(10, 0xab)], [Fate::BadChecksum; 3]);
        for short in 0..good.len() {
            assert_eq!(v4(&good[..short]).unwrap_err(), Fate::BadHeader);
        }
        let good = udp_v6("2001:db8::1", "fd00::2");
        for short in 0..good.len() {
            assert_eq!(v6(&good[..short]).unwrap_err(), Fate::BadHeader);
        }
    }

    #[test]
    fn martians_are_known() {
        let to = [192, 0, 2, 1];
        for from in [[0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 5], [239, 9, 9, 9], [240, 0, 0, 1], [255; 4]] {
            assert_eq!(v4(&udp_v4(from, to)).unwrap_err(), Fate::MartianSource, "{from:?}");
            assert_eq!(v4(&udp_v4(to, from)).unwrap_err(), Fate::MartianDestination, "{from:?}");
        }
        assert_eq!(v4(&udp_v4([192, 0, 2, 255], to)).unwrap_err(), Fate::MartianSource, "a broadcast of the link");
        assert!(v4(&udp_v4([169, 254, 1, 1], to)).unwrap().link_local);
        assert!(v4(&udp_v4(to, [169, 254, 1, 1])).unwrap().link_local);
        for from in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert_eq!(v6(&udp_v6(from, "fd00::1")).unwrap_err(), Fate::MartianSource, "{from}");
            assert_eq!(v6(&udp_v6("fd00::1", from)).unwrap_err(), Fate::MartianDestination, "{from}");
        }
    }

    #[test]
    fn errors_and_later_fragments_are_not_answered() {
        let mut packet = udp_v4([10, 0, 0, 1], [192, 0, 2, 1]);
        assert!(may_answer_v4(&packet));
        packet[6..8].copy_from_slice(&[0x20, 0]);
        assert!(may_answer_v4(&packet), "the first fragment");
        packet[6..8].copy_from_slice(&[0x20, 1]);
        assert!(!may_answer_v4(&packet), "a later one");
        packet[6..8].fill(0);
        packet[9] = protocol::ICMP;
        for (kind, may) in [(0, true), (8, true), (13, true), (3, false), (5, false), (11, false), (12, false)] {
            packet[20] = kind;
            assert_eq!(may_answer_v4(&packet), may, "type {kind}");
        }
        assert!(!may_answer_v4(&packet[..20]));

        let mut packet = udp_v6("2001:db8::1", "fd00::2");
        assert!(may_answer_v6(&packet));
        packet[6] = protocol::ICMP6;
        for (kind, may) in [(128, true), (129, true), (135, true), (1, false), (3, false), (127, false), (137, false)] {
            packet[40] = kind;
            assert_eq!(may_answer_v6(&packet), may, "type {kind}");
        }
        let extended = |offset: u8, kind: u8| {
            let mut extended = packet[..40].to_vec();
            extended[6] = 60;
            extended.extend([44, 0, 0, 0, 0, 0, 0, 0, protocol::ICMP6, 0, 0, offset, 0, 0, 0, 9, kind, 0, 0, 0]);
            extended
        };
        assert!(
            may_answer_v6(&extended(1, 128)) && !may_answer_v6(&extended(1, 3)) && !may_answer_v6(&extended(8, 128))
        );
        assert!(!may_answer_v6(&extended(1, 128)[..44]));
    }
}
