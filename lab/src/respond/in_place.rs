//! Replies that overwrite the packet to which they reply: ARP (RFC 826), neighbour discovery (RFC
//! 4861), ICMP echo (RFC 792, 4443), UDP echo (RFC 862), and TCP segments of no connection.

use std::net::Ipv6Addr;

use steerage::flow::wire::checksum::{adjusted, finish, finish_transport, sum};
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};
use steerage::flow::wire::{be16, be32, ethernet, ethertype, icmp, icmp6, ipv4, ipv6, protocol, put, tcp, udp};
use steerage::{NoRoom, Packet};

use super::config::Config;
use super::counts::Fate;
use super::neighbour::{Broken, Solicitation};
use super::packet::{Ip, Tcp};
use steerage_router::addresses::Mac;

/// The recommended TTL and hop limit (IANA, "IP parameters").
pub(super) const HOP_LIMIT: u8 = 64;

const ARP_BYTES: usize = 28;
/// The length of a neighbour message without options: type, code, checksum, flags and target.
const NEIGHBOUR_BYTES: usize = 24;
const LINK_OPTION_BYTES: usize = 8;
/// The flag of an advertisement that replies to a solicitation. `OVERRIDE`: the flag of an
/// advertisement that replaces the stored link address.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const MSS_OPTION_BYTES: usize = 4;

fn resized<'p>(packet: &'p mut Packet<'_>, len: usize) -> Result<&'p mut [u8], NoRoom> {
    // A packet that was merged from several frames is copied into one frame.
    let is = packet.total_len();
    if is > len {
        packet.truncate(len)?;
    } else if is < len {
        packet.append(len - is)?;
    }
    packet.data_mut()
}

fn turn_link(frame: &mut [u8], config: &Config) {
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&config.mac);
}

pub(super) fn arp(packet: &mut Packet<'_>, config: &Config) -> Result<Fate, Fate> {
    let frame = packet.data();
    let arp: &[u8; ARP_BYTES] = frame.get(ethernet::BYTES..).and_then(<[u8]>::first_chunk).ok_or(Fate::BadHeader)?;
    // The ARP message must be a request for Ethernet and IPv4, with addresses of 6 and 4 bytes.
    if arp[..8] != [0, 1, 8, 0, 6, 4, 0, 1] {
        return Err(Fate::NotOurs);
    }
    let asked = [arp[24], arp[25], arp[26], arp[27]];
    config.local(asked.into()).ok_or(Fate::NotOurs)?;
    // The bytes after the ARP message are padding of any length.
    let frame = resized(packet, ethernet::BYTES + ARP_BYTES).map_err(|_| Fate::NoRoom)?;
    turn_link(frame, config);
    let arp = &mut frame[ethernet::BYTES..];
    arp[7] = 2;
    arp.copy_within(8..18, 18);
    arp[8..14].copy_from_slice(&config.mac);
    arp[14..18].copy_from_slice(&asked);
    Ok(Fate::Arp)
}

fn neighbour(packet: &mut Packet<'_>, ip: &Ip, config: &Config) -> Result<Fate, Fate> {
    let frame = packet.data();
    // Without a link header, there are no link addresses to resolve.
    if ip.at == 0 {
        return Err(Fate::BadHeader);
    }
    let Solicitation { target, is_probe } =
        Solicitation::read(&frame[ip.at..ip.end]).map_err(|broken| match broken {
            Broken::Checksum => Fate::BadChecksum,
            _ => Fate::BadHeader,
        })?;
    config.local(target.into()).ok_or(Fate::NotOurs)?;
    let target = target.octets();
    let frame = resized(packet, ip.payload + NEIGHBOUR_BYTES + LINK_OPTION_BYTES).map_err(|_| Fate::NoRoom)?;
    turn_link(frame, config);
    let (head, icmp) = frame.split_at_mut(ip.payload);
    let header = &mut head[ip.at..];
    header.copy_within(8..24, 24);
    header[8..24].copy_from_slice(&target);
    if is_probe {
        // A probing host has no address yet, so the reply goes to all nodes.
        header[24..40].copy_from_slice(&Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
        head[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    }
    let len = icmp.len();
    put(head, ip.at + 4, (len as u16).to_be_bytes());
    icmp[..4].copy_from_slice(&[icmp6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0]);
    icmp[4..8].copy_from_slice(&[OVERRIDE | if is_probe { 0 } else { SOLICITED }, 0, 0, 0]);
    icmp[NEIGHBOUR_BYTES..NEIGHBOUR_BYTES + 2].copy_from_slice(&[2, 1]);
    icmp[NEIGHBOUR_BYTES + 2..].copy_from_slice(&config.mac);
    let checksum = finish(sum(&frame[ip.payload..], ip.pseudo(frame, len)));
    put(frame, ip.payload + 2, checksum.to_be_bytes());
    Ok(Fate::Neighbour)
}

/// Replies to ICMP echo requests, and to neighbour solicitations, which are ICMPv6 packets.
pub(super) fn icmp(packet: &mut Packet<'_>, ip: &Ip, config: &Config) -> Result<Fate, Fate> {
    let frame = packet.data();
    let icmp = &frame[ip.payload..ip.end];
    if icmp.len() < icmp::BYTES {
        return Err(Fate::BadHeader);
    }
    if config.verifies && !ip.checksum_is_valid(frame, ip.protocol == protocol::ICMP6) {
        return Err(Fate::BadChecksum);
    }
    let (asks, answers) = if ip.is_v4 { (icmp::ECHO, icmp::ECHO_REPLY) } else { (icmp6::ECHO, icmp6::ECHO_REPLY) };
    match (ip.local, icmp[0], icmp[1]) {
        (_, icmp6::NEIGHBOUR_SOLICITATION, _) if !ip.is_v4 => return neighbour(packet, ip, config),
        (Some(_), kind, 0) if kind == asks => {}
        _ => return Err(Fate::Unserved),
    }
    let frame = echoed(packet, ip, config)?;
    let icmp = &mut frame[ip.payload..];
    let before = be16(icmp, 0);
    icmp[0] = answers;
    // The pseudo-header's checksum is the same for the request and for the reply.
    let checksum = adjusted(be16(icmp, 2), before, be16(icmp, 0));
    put(icmp, 2, checksum.to_be_bytes());
    Ok(Fate::IcmpEcho)
}

/// `whole` is the contiguous copy of merged datagrams, which are sent back merged.
pub(super) fn udp(packet: &mut Packet<'_>, whole: Option<&[u8]>, ip: &Ip, config: &Config) -> Result<Fate, Fate> {
    let frame = whole.unwrap_or_else(|| packet.data());
    let udp = &frame[ip.payload..ip.end];
    if udp.len() < udp::BYTES || usize::from(be16(udp, 4)) != udp.len() {
        return Err(Fate::BadHeader);
    }
    let (from, to, checksum) = (be16(udp, 0), be16(udp, 2), be16(udp, 6));
    // A datagram from an echo port gets no reply, because two echo services would send it back and
    // forth forever.
    if !config.echo.contains(&to) || config.echo.contains(&from) || from == 0 || ip.local.is_none() {
        return Err(Fate::Unserved);
    }
    // Only IPv4 allows datagrams without a checksum: RFC 768, RFC 8200 (8.1).
    let is_absent = checksum == 0 && ip.is_v4;
    if config.verifies && whole.is_none() && !is_absent && !ip.checksum_is_valid(frame, true) {
        return Err(Fate::BadChecksum);
    }
    let frame = match whole {
        Some(_) => packet.data_mut().map(|headers| swapped(headers, ip, config)).map_err(|_| Fate::NoRoom)?,
        None => echoed(packet, ip, config)?,
    };
    put(frame, ip.payload, to.to_be_bytes());
    put(frame, ip.payload + 2, from.to_be_bytes());
    // If checksums are not verified, the sender may have left out the UDP checksum.
    if !config.verifies && !is_absent && whole.is_none() {
        frame[ip.payload + 6..ip.payload + 8].fill(0);
        let checksum = finish_transport(sum(&frame[ip.payload..], ip.pseudo(frame, ip.end - ip.payload)));
        put(frame, ip.payload + 6, checksum.to_be_bytes());
    }
    Ok(Fate::UdpEcho)
}

/// A reply has the length of the request. A request that is longer than the link's MTU gets no
/// reply.
fn echoed<'p>(packet: &'p mut Packet<'_>, ip: &Ip, config: &Config) -> Result<&'p mut [u8], Fate> {
    if ip.end - ip.at > config.mtu {
        return Err(Fate::Fragment);
    }
    turned(packet, ip, config).map_err(|_| Fate::NoRoom)
}

/// Checksums stay valid, because they do not depend on the order of the source and destination,
/// which are swapped.
fn turned<'p>(packet: &'p mut Packet<'_>, ip: &Ip, config: &Config) -> Result<&'p mut [u8], NoRoom> {
    Ok(swapped(resized(packet, ip.end)?, ip, config))
}

fn swapped<'p>(frame: &'p mut [u8], ip: &Ip, config: &Config) -> &'p mut [u8] {
    if ip.at > 0 {
        turn_link(frame, config);
    }
    let header = &mut frame[ip.at..];
    if ip.is_v4 {
        let (from, to) = header[12..20].split_at_mut(4);
        from.swap_with_slice(to);
        let before = be16(header, 8);
        header[8] = HOP_LIMIT;
        let checksum = adjusted(be16(header, 10), before, be16(header, 8));
        put(header, 10, checksum.to_be_bytes());
    } else {
        let (from, to) = header[8..40].split_at_mut(16);
        from.swap_with_slice(to);
        header[7] = HOP_LIMIT;
    }
    frame
}

pub(super) enum Says {
    /// The reply to a SYN.
    Welcome { cookie: u32, mss: u16, window: u16 },
    /// The reply to a segment other than a SYN: RFC 9293, 3.5.2.
    Reset,
}

pub(super) fn tcp(packet: &mut Packet<'_>, ip: &Ip, tcp: &Tcp, says: &Says, config: &Config) -> Result<(), NoRoom> {
    let options = if matches!(says, Says::Welcome { .. }) { MSS_OPTION_BYTES } else { 0 };
    let bytes = tcp::BYTES + options;
    let cut = Ip { end: ip.payload + bytes, ..*ip };
    let frame = turned(packet, &cut, config)?;
    set_length(&mut frame[ip.at..], ip, bytes);
    let pseudo = ip.pseudo(frame, bytes);
    let segment = &mut frame[ip.payload..];
    let (from, to) = segment[..4].split_at_mut(2);
    from.swap_with_slice(to);
    let after = tcp.sequence.wrapping_add(tcp.len as u32 + u32::from(tcp.has(SYN)) + u32::from(tcp.has(FIN)));
    // A SYN cookie cannot store the data of a SYN, so only the SYN is acknowledged, and the peer
    // resends the data.
    let after_syn = tcp.sequence.wrapping_add(1);
    let (sequence, acknowledged, flags, window) = match *says {
        Says::Welcome { cookie, mss, window } => {
            segment[tcp::BYTES..].copy_from_slice(&[2, 4, mss.to_be_bytes()[0], mss.to_be_bytes()[1]]);
            (cookie, after_syn, SYN | ACK, window)
        }
        Says::Reset if tcp.has(ACK) => (tcp.acknowledged, 0, RST, 0),
        Says::Reset => (0, after, RST | ACK, 0),
    };
    put(segment, 4, sequence.to_be_bytes());
    put(segment, 8, acknowledged.to_be_bytes());
    put(segment, 12, ((bytes as u16 / 4) << 12 | flags).to_be_bytes());
    put(segment, 14, window.to_be_bytes());
    segment[16..20].fill(0);
    let checksum = finish(sum(segment, pseudo));
    put(segment, 16, checksum.to_be_bytes());
    Ok(())
}

fn set_length(header: &mut [u8], ip: &Ip, payload: usize) {
    if ip.is_v4 {
        put(header, 2, ((ipv4::BYTES + payload) as u16).to_be_bytes());
        header[10..12].fill(0);
        let checksum = finish(sum(&header[..ipv4::BYTES], 0));
        put(header, 10, checksum.to_be_bytes());
    } else {
        put(header, 4, (payload as u16).to_be_bytes());
    }
}

pub(super) fn replace(packet: &mut Packet<'_>, frame: &[u8]) -> Result<(), NoRoom> {
    resized(packet, frame.len())?.copy_from_slice(frame);
    Ok(())
}

/// Completes a frame from smoltcp: sets the link addresses, adds `shift` to the sequence number,
/// and computes the checksum.
pub(super) fn finish_frame(frame: &mut [u8], at: usize, peer: Mac, config: &Config, shift: u32) {
    let is_v4 = frame[at] >> 4 == 4;
    if at > 0 {
        frame[..6].copy_from_slice(&peer);
        frame[6..12].copy_from_slice(&config.mac);
        let ethertype = if is_v4 { ethertype::IPV4 } else { ethertype::IPV6 };
        put(frame, 12, ethertype.to_be_bytes());
    }
    let payload = at + if is_v4 { ipv4::BYTES } else { ipv6::BYTES };
    let ip = Ip { at, is_v4, protocol: protocol::TCP, payload, end: frame.len(), local: None };
    let pseudo = ip.pseudo(frame, ip.end - payload);
    let segment = &mut frame[payload..];
    let sequence = be32(segment, 4).wrapping_add(shift);
    put(segment, 4, sequence.to_be_bytes());
    segment[16..18].fill(0);
    let checksum = finish(sum(segment, pseudo));
    put(segment, 16, checksum.to_be_bytes());
}
