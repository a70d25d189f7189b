//! The IP and UDP headers that the device writes for received datagrams, and reads from packets to
//! send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use steerage::LinkType;
use steerage::flow::offload::{BadOffload, Offload, VIRTIO_BYTES, checksum};

use super::sys::{Control, NAME_BYTES, Name};

const UDP: u8 = 17;
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// The longest headers.
pub(super) const HEADERS_MAX: usize = IPV6_BYTES + UDP_BYTES;
/// The lifetime in a received packet's header. The kernel does not pass on the real one.
const HOPS: u8 = 64;

/// `UDP_SEGMENT` and `UDP_GRO` of linux/udp.h.
pub(super) const UDP_SEGMENT: i32 = 103;
pub(super) const UDP_GRO: i32 = 104;

/// The addresses, ports and traffic class of a packet's IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The traffic class, with ECN in its last two bits.
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

/// Reads the ancillary data of a datagram: the address that it was sent to, its traffic class,
/// and the size of the datagrams that were merged, or 0.
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
    if ends.source.is_ipv4() { IPV4_BYTES + UDP_BYTES } else { HEADERS_MAX }
}

/// Writes the headers of a packet with the rest of `packet` as its payload. `segment` is the size
/// of the datagrams that the payload stands for, or 0 for one. The UDP checksum, which the kernel
/// has checked, is left unfinished, or is 0 (none) for a single datagram of IPv4.
pub(super) fn write(ends: &Ends, segment: usize, packet: &mut [u8]) -> Result<Option<Offload>, BadOffload> {
    let bytes = packet.len();
    let network_bytes = header_bytes(ends) - UDP_BYTES;
    let (network, udp) = packet.split_at_mut_checked(network_bytes).ok_or(BadOffload::Header)?;
    let udp_bytes = u16::try_from(udp.len()).map_err(|_| BadOffload::Header)?;
    let addresses = match (ends.source.ip(), ends.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            network.fill(0);
            (network[0], network[1]) = (0x45, ends.class);
            let total = u16::try_from(bytes).map_err(|_| BadOffload::Header)?;
            network[2..4].copy_from_slice(&total.to_be_bytes());
            // With DF, an identification of 0 has no meaning (RFC 6864).
            (network[6], network[8], network[9]) = (0x40, HOPS, UDP);
            network[12..16].copy_from_slice(&source.octets());
            network[16..20].copy_from_slice(&destination.octets());
            let sum = checksum::finish(checksum::sum(network, 0));
            network[10..12].copy_from_slice(&sum.to_be_bytes());
            12..20
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            network[..4].copy_from_slice(&(6 << 28 | u32::from(ends.class) << 20).to_be_bytes());
            network[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
            (network[6], network[7]) = (UDP, HOPS);
            network[8..24].copy_from_slice(&source.octets());
            network[24..40].copy_from_slice(&destination.octets());
            8..40
        }
        _ => return Err(BadOffload::Header),
    };
    udp[..2].copy_from_slice(&ends.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&ends.destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
    udp[6..8].fill(0);
    let is_merged = segment != 0 && segment < udp.len() - UDP_BYTES;
    if !is_merged && ends.source.is_ipv4() {
        return Ok(None);
    }
    let pseudo = checksum::fold(checksum::sum(&network[addresses], u64::from(udp_bytes) + u64::from(UDP)));
    udp[6..8].copy_from_slice(&pseudo.to_be_bytes());
    let (kind, segment) = if is_merged { (5, segment) } else { (0, 0) };
    let segment = u16::try_from(segment).map_err(|_| BadOffload::SegmentSize)?;
    let mut virtio = [0; VIRTIO_BYTES];
    (virtio[0], virtio[1]) = (1, kind);
    virtio[4..6].copy_from_slice(&segment.to_le_bytes());
    virtio[6..8].copy_from_slice(&(network_bytes as u16).to_le_bytes());
    virtio[8..10].copy_from_slice(&6_u16.to_le_bytes());
    Offload::from_virtio(&virtio, packet, LinkType::RAW)
}

/// Reads the headers of a packet of `total` bytes. Returns their contents and their length. `None`
/// if the packet is not a complete UDP packet.
pub(super) fn read(front: &[u8], total: usize) -> Option<(Ends, usize)> {
    let be16 = |at: usize| Some(u16::from_be_bytes(*front.get(at..)?.first_chunk()?));
    let version = front.first()? >> 4;
    let (network_bytes, class, source, destination): (_, _, IpAddr, IpAddr) = if version == 4 {
        let header: &[u8; IPV4_BYTES] = front.first_chunk()?;
        let bytes = usize::from(header[0] & 0xf) * 4;
        let is_whole = usize::from(be16(2)?) == total && be16(6)? & 0x3fff == 0;
        if bytes < IPV4_BYTES || !is_whole || header[9] != UDP {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*header[at..].first_chunk::<4>()?));
        (bytes, header[1], address(12)?.into(), address(16)?.into())
    } else {
        let header: &[u8; IPV6_BYTES] = front.first_chunk()?;
        if version != 6 || usize::from(be16(4)?) + IPV6_BYTES != total || header[6] != UDP {
            return None;
        }
        let address = |at: usize| Some(Ipv6Addr::from(*header[at..].first_chunk::<16>()?));
        (IPV6_BYTES, header[0] << 4 | header[1] >> 4, address(8)?.into(), address(24)?.into())
    };
    let at = network_bytes;
    let is_whole = usize::from(be16(at + 4)?) + network_bytes == total && front.len() >= at + UDP_BYTES;
    let ends = Ends {
        source: SocketAddr::new(source, be16(at)?),
        destination: SocketAddr::new(destination, be16(at + 2)?),
        class,
    };
    (is_whole && ends.destination.port() != 0).then_some((ends, at + UDP_BYTES))
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    /// Whether a router or a peer sent the report. Otherwise this machine's kernel did.
    pub(super) is_icmp: bool,
    /// The MTU of the path, if a packet was too long for it.
    pub(super) path_mtu: Option<u32>,
}

/// Reads `struct sock_extended_err` of linux/errqueue.h.
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
