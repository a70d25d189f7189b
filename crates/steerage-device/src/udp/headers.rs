use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use steerage::LinkType;
use steerage::flow::offload::{BadOffload, Offload, VIRTIO_BYTES};
use steerage::flow::wire::checksum::fold;
use steerage::flow::wire::{IpHeader, ipv4, ipv6, protocol, put, udp};

use super::sys::{Control, NAME_BYTES, Name};

pub(super) const HEADERS_MAX: usize = ipv6::BYTES + udp::BYTES;
/// The socket options `UDP_SEGMENT` and `UDP_GRO` of linux/udp.h.
pub(super) const UDP_SEGMENT: i32 = 103;
pub(super) const UDP_GRO: i32 = 104;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The last two bits of the traffic class are the ECN bits.
    pub(super) class: u8,
}

pub(super) fn name_of(address: SocketAddr) -> (Name, usize) {
    let mut name = [0; NAME_BYTES];
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, len) = match address {
        SocketAddr::V4(v4) => {
            name[4..8].copy_from_slice(&v4.ip().octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            name[8..24].copy_from_slice(&v6.ip().octets());
            name[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (libc::AF_INET6, NAME_BYTES)
        }
    };
    name[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (Name(name), len)
}

pub(super) fn address_of(Name(name): &Name) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([name[2], name[3]]);
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => Some((Ipv4Addr::from(*name[4..].first_chunk::<4>()?), port).into()),
        libc::AF_INET6 => {
            let scope = u32::from_ne_bytes(*name[24..].first_chunk()?);
            let ip = Ipv6Addr::from(*name[8..].first_chunk::<16>()?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}

/// Returns the destination, the traffic class, and the size of merged datagrams (0: not merged).
pub(super) fn told(control: &Control) -> (Option<IpAddr>, u8, usize) {
    let (mut to, mut class, mut segment) = (None, 0, 0);
    let int = |data: &[u8]| data.first_chunk().map_or(0, |int| i32::from_ne_bytes(*int));
    for (level, kind, data) in control.items() {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let address = data.get(8..).and_then(<[u8]>::first_chunk::<4>);
                to = address.map(|octets| Ipv4Addr::from(*octets).into()).or(to);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if to.is_none() => {
                to = data.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).to_canonical());
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => class = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => class = int(data) as u8,
            (libc::SOL_UDP, UDP_GRO) => segment = int(data).max(0) as usize,
            _ => {}
        }
    }
    (to, class, segment)
}

pub(super) fn header_bytes(ends: &Ends) -> usize {
    if ends.source.is_ipv4() { ipv4::BYTES + udp::BYTES } else { HEADERS_MAX }
}

/// Writes the headers before the payload in `packet`. `segment` is the payload size of merged
/// datagrams, or 0 for a single datagram. The kernel has already checked the UDP checksum. The
/// written checksum is incomplete, or 0 (no checksum) for a single IPv4 datagram.
pub(super) fn write(ends: &Ends, segment: usize, packet: &mut [u8]) -> Result<Option<Offload>, BadOffload> {
    let network_bytes = header_bytes(ends) - udp::BYTES;
    let (network, datagram) = packet.split_at_mut_checked(network_bytes).ok_or(BadOffload::Header)?;
    // The kernel does not report the real hop limit, so the header has a default hop limit.
    let ip = IpHeader { class: ends.class, ..IpHeader::new(ends.source.ip(), ends.destination.ip(), protocol::UDP) };
    let pseudo = ip.write(network, datagram.len()).ok_or(BadOffload::Header)?;
    put(datagram, 0, ends.source.port().to_be_bytes());
    put(datagram, 2, ends.destination.port().to_be_bytes());
    put(datagram, udp::LENGTH_AT, (datagram.len() as u16).to_be_bytes());
    put(datagram, udp::CHECKSUM_AT, [0; 2]);
    let is_merged = segment != 0 && segment < datagram.len() - udp::BYTES;
    if !is_merged && ends.source.is_ipv4() {
        return Ok(None);
    }
    put(datagram, udp::CHECKSUM_AT, fold(pseudo).to_be_bytes());
    let (kind, segment) = if is_merged { (5, segment) } else { (0, 0) };
    let segment = u16::try_from(segment).map_err(|_| BadOffload::SegmentSize)?;
    let mut virtio = [0; VIRTIO_BYTES];
    (virtio[0], virtio[1]) = (1, kind);
    virtio[4..6].copy_from_slice(&segment.to_le_bytes());
    virtio[6..8].copy_from_slice(&(network_bytes as u16).to_le_bytes());
    virtio[8..10].copy_from_slice(&6_u16.to_le_bytes());
    Offload::from_virtio(&virtio, packet, LinkType::RAW)
}

/// Returns the addresses of the packet and the length of its headers. `None`: the packet is not a
/// complete UDP packet.
pub(super) fn read(front: &[u8], total: usize) -> Option<(Ends, usize)> {
    let be16 = |at: usize| Some(u16::from_be_bytes(*front.get(at..)?.first_chunk()?));
    let version = front.first()? >> 4;
    let (network_bytes, class, source, destination): (_, _, IpAddr, IpAddr) = if version == 4 {
        let header: &[u8; ipv4::BYTES] = front.first_chunk()?;
        let bytes = usize::from(header[0] & 0xf) * 4;
        let is_whole = usize::from(be16(2)?) == total && be16(6)? & ipv4::FRAGMENT == 0;
        if bytes < ipv4::BYTES || !is_whole || header[ipv4::PROTOCOL_AT] != protocol::UDP {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*header[at..].first_chunk::<4>()?));
        (bytes, header[1], address(12)?.into(), address(16)?.into())
    } else {
        let header: &[u8; ipv6::BYTES] = front.first_chunk()?;
        if version != 6 || usize::from(be16(4)?) + ipv6::BYTES != total || header[ipv6::PROTOCOL_AT] != protocol::UDP {
            return None;
        }
        let address = |at: usize| Some(Ipv6Addr::from(*header[at..].first_chunk::<16>()?));
        (ipv6::BYTES, header[0] << 4 | header[1] >> 4, address(8)?.into(), address(24)?.into())
    };
    let at = network_bytes;
    let is_whole = usize::from(be16(at + 4)?) + network_bytes == total && front.len() >= at + udp::BYTES;
    let ends = Ends {
        source: SocketAddr::new(source, be16(at)?),
        destination: SocketAddr::new(destination, be16(at + 2)?),
        class,
    };
    (is_whole && ends.destination.port() != 0).then_some((ends, at + udp::BYTES))
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// True if a router or a peer sent the error, false if this machine's kernel did.
    pub(super) is_icmp: bool,
    /// The MTU of the path, if a packet was too long for the path.
    pub(super) path_mtu: Option<u32>,
}

/// Parses `struct sock_extended_err` of linux/errqueue.h in the ancillary data.
pub(super) fn report(control: &Control) -> Option<Report> {
    const OF_ICMP: [u8; 2] = [2, 3];
    control.items().find_map(|(level, kind, data)| {
        let is_report = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        let int = |at: usize| Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?));
        let (errno, info) = (int(0).filter(|_| is_report)?, int(8)?);
        let path_mtu = (errno == libc::EMSGSIZE as u32 && info != 0).then_some(info);
        Some(Report { is_icmp: OF_ICMP.contains(&data[4]), path_mtu })
    })
}
