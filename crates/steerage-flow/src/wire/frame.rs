//! Writes IP headers, and builds whole frames.

use std::net::{IpAddr, SocketAddr};

use super::bytes::put;
use super::checksum::{finish, finish_transport, sum};
use super::{ethernet, ethertype, icmp, ipv4, ipv6, protocol, tcp, udp};

/// The default TTL and hop limit that IANA recommends ("IP parameters").
const HOPS: u8 = 64;

/// An IP header without options or extensions.
///
/// ```
/// use steerage_flow::wire::{IpHeader, ipv4, protocol};
///
/// let mut packet = [0; ipv4::BYTES + 8];
/// let header = IpHeader::new([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP);
/// header.write(&mut packet, 8).expect("both addresses are IPv4");
/// assert_eq!(packet[..4], [0x45, 0, 0, 28]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same IP version as the source.
    pub destination: IpAddr,
    /// The protocol number of the payload.
    pub protocol: u8,
    /// The traffic class, of which the last two bits are ECN.
    pub class: u8,
    /// The TTL or hop limit.
    pub hops: u8,
    /// IPv4's identification, which has no meaning if the flag "don't fragment" is set (RFC 6864).
    pub identification: u16,
    /// IPv4's flags and fragment offset. A new header has the flag "don't fragment".
    pub fragment: u16,
}

impl IpHeader {
    /// Creates an IP header with a hop limit of 64 and, for IPv4, the flag "don't fragment".
    #[inline]
    pub fn new(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8) -> Self {
        let (source, destination) = (source.into(), destination.into());
        Self { source, destination, protocol, class: 0, hops: HOPS, identification: 0, fragment: ipv4::DONT_FRAGMENT }
    }

    /// Returns the length of the header in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        if self.source.is_ipv4() { ipv4::BYTES } else { ipv6::BYTES }
    }

    /// Writes the header with its checksum to the beginning of `to`, for a payload of `payload`
    /// bytes. Returns the partial checksum of the pseudo-header. Returns `None` if the addresses
    /// have different IP versions, the packet is too long, or `to` is too short.
    #[inline]
    pub fn write(&self, to: &mut [u8], payload: usize) -> Option<u64> {
        let header = to.get_mut(..self.bytes())?;
        let addresses = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                (header[0], header[1]) = (ipv4::PLAIN, self.class);
                put(header, 2, u16::try_from(ipv4::BYTES + payload).ok()?.to_be_bytes());
                put(header, 4, self.identification.to_be_bytes());
                put(header, 6, self.fragment.to_be_bytes());
                (header[8], header[ipv4::PROTOCOL_AT]) = (self.hops, self.protocol);
                put(header, ipv4::CHECKSUM_AT, [0; 2]);
                put(header, ipv4::ADDRESSES.start, source.octets());
                put(header, ipv4::ADDRESSES.start + 4, destination.octets());
                put(header, ipv4::CHECKSUM_AT, finish(sum(header, 0)).to_be_bytes());
                ipv4::ADDRESSES
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                put(header, 0, (6 << 28 | u32::from(self.class) << 20).to_be_bytes());
                put(header, 4, u16::try_from(payload).ok()?.to_be_bytes());
                (header[ipv6::PROTOCOL_AT], header[7]) = (self.protocol, self.hops);
                put(header, ipv6::ADDRESSES.start, source.octets());
                put(header, ipv6::ADDRESSES.start + 16, destination.octets());
                ipv6::ADDRESSES
            }
            _ => return None,
        };
        Some(sum(&header[addresses], payload as u64 + u64::from(self.protocol)))
    }
}

/// Builds frames with correct lengths and checksums for tests, generated traffic and experiments.
///
/// ```
/// use steerage_flow::dissect::{Layers, flow_key};
/// use steerage_flow::wire::FrameBuilder;
/// use steerage_flow::{FlowKey, LinkType};
///
/// let request = FrameBuilder::udp(([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 53)).vlan(5).frame(b"query");
/// let key = flow_key(&request, LinkType::ETHERNET, Layers::Inner).expect("an IP packet");
/// assert_eq!(key.to_string(), "udp 10.0.0.1:4000 > 10.0.0.2:53");
/// ```
#[derive(Clone, Debug)]
pub struct FrameBuilder {
    /// The Ethernet addresses and the VLAN tags, without the EtherType after the last tag.
    link: Vec<u8>,
    ip: IpHeader,
    /// The transport header, without its length and checksum.
    transport: Vec<u8>,
}

impl FrameBuilder {
    /// Describes a UDP datagram between two addresses and ports.
    pub fn udp(from: impl Into<SocketAddr>, to: impl Into<SocketAddr>) -> Self {
        Self::between(from.into(), to.into(), protocol::UDP, udp::BYTES)
    }

    /// Describes a TCP segment between two addresses and ports, with the flag ACK and the window
    /// 65,535.
    pub fn tcp(from: impl Into<SocketAddr>, to: impl Into<SocketAddr>) -> Self {
        Self::between(from.into(), to.into(), protocol::TCP, tcp::BYTES).flags(tcp::ACK).window(u16::MAX)
    }

    /// Describes an ICMP message, or an ICMPv6 message if the addresses are IPv6.
    pub fn icmp(from: impl Into<IpAddr>, to: impl Into<IpAddr>, kind: u8, code: u8) -> Self {
        let from = from.into();
        let mut built = Self::ip(from, to, if from.is_ipv4() { protocol::ICMP } else { protocol::ICMP6 });
        built.transport = vec![kind, code, 0, 0, 0, 0, 0, 0];
        built
    }

    /// Describes an IP packet without a transport header: the payload follows the IP header.
    pub fn ip(from: impl Into<IpAddr>, to: impl Into<IpAddr>, protocol: u8) -> Self {
        // Locally administered addresses have the second lowest bit of the first byte set.
        let link = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1].to_vec();
        Self { link, ip: IpHeader::new(from, to, protocol), transport: Vec::new() }
    }

    fn between(from: SocketAddr, to: SocketAddr, protocol: u8, bytes: usize) -> Self {
        let mut built = Self::ip(from.ip(), to.ip(), protocol);
        built.transport.resize(bytes, 0);
        put(&mut built.transport, 0, from.port().to_be_bytes());
        put(&mut built.transport, 2, to.port().to_be_bytes());
        built
    }

    /// Sets the Ethernet addresses of the frame.
    #[must_use]
    pub fn stations(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        put(&mut self.link, 0, destination);
        put(&mut self.link, ethernet::ADDRESS_BYTES, source);
        self
    }

    /// Adds a VLAN tag (802.1Q) after the tags that were added before.
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Self {
        self.link.extend([ethertype::VLAN, id].map(u16::to_be_bytes).as_flattened());
        self
    }

    /// Changes fields of the IP header other than the addresses and the protocol.
    #[must_use]
    pub fn with_ip(mut self, change: impl FnOnce(&mut IpHeader)) -> Self {
        change(&mut self.ip);
        self
    }

    /// Sets the flags of the TCP header.
    #[must_use]
    pub fn flags(self, flags: u16) -> Self {
        let words = (tcp::BYTES / 4) as u16;
        self.tcp_field(tcp::FLAGS_AT, (words << 12 | flags).to_be_bytes())
    }

    /// Sets the sequence number of the TCP header.
    #[must_use]
    pub fn sequence(self, number: u32) -> Self {
        self.tcp_field(4, number.to_be_bytes())
    }

    /// Sets the acknowledgement number of the TCP header.
    #[must_use]
    pub fn acknowledgement(self, number: u32) -> Self {
        self.tcp_field(8, number.to_be_bytes())
    }

    /// Sets the window of the TCP header.
    #[must_use]
    pub fn window(self, bytes: u16) -> Self {
        self.tcp_field(14, bytes.to_be_bytes())
    }

    fn tcp_field<const N: usize>(mut self, at: usize, value: [u8; N]) -> Self {
        assert_eq!(self.ip.protocol, protocol::TCP, "only TCP has this field");
        put(&mut self.transport, at, value);
        self
    }

    /// Returns the total length of all headers in bytes.
    pub fn header_bytes(&self) -> usize {
        self.link.len() + 2 + self.ip.bytes() + self.transport.len()
    }

    /// Returns the Ethernet frame with this payload.
    ///
    /// # Panics
    /// Panics if the addresses have different IP versions, or the packet is longer than IP allows.
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let ethertype = if self.ip.source.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
        self.after([&self.link[..], &ethertype.to_be_bytes()].concat(), payload)
    }

    /// Returns an Ethernet frame of `bytes` bytes, with a payload of zeros.
    ///
    /// # Panics
    /// Panics if the headers are longer than `bytes`, or if [`frame`](Self::frame) panics.
    pub fn frame_of(&self, bytes: usize) -> Vec<u8> {
        self.frame(&vec![0; bytes.checked_sub(self.header_bytes()).expect("the headers are longer")])
    }

    /// Returns the IP packet with this payload, without an Ethernet header.
    ///
    /// # Panics
    /// Panics if [`frame`](Self::frame) panics.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        self.after(Vec::new(), payload)
    }

    fn after(&self, mut bytes: Vec<u8>, payload: &[u8]) -> Vec<u8> {
        let ip_at = bytes.len();
        let transport_at = ip_at + self.ip.bytes();
        bytes.resize(transport_at, 0);
        bytes.extend([&self.transport, payload].concat());
        let (head, segment) = bytes.split_at_mut(transport_at);
        let pseudo = self.ip.write(&mut head[ip_at..], segment.len()).expect("an IP packet");
        if self.transport.is_empty() {
            return bytes;
        }
        let (at, checksum) = match self.ip.protocol {
            protocol::UDP => {
                put(segment, udp::LENGTH_AT, (segment.len() as u16).to_be_bytes());
                (udp::CHECKSUM_AT, finish_transport(sum(segment, pseudo)))
            }
            protocol::TCP => (tcp::CHECKSUM_AT, finish(sum(segment, pseudo))),
            protocol::ICMP6 => (icmp::CHECKSUM_AT, finish(sum(segment, pseudo))),
            _ => (icmp::CHECKSUM_AT, finish(sum(segment, 0))),
        };
        put(segment, at, checksum.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const V4: [[u8; 4]; 2] = [[10, 0, 0, 1], [192, 0, 2, 9]];
    const V6: [[u8; 16]; 2] = [[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfe; 16]];

    fn built(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        bytes
    }

    #[test]
    fn frames_are_those_of_another_library() {
        let (one, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let link = || PacketBuilder::ethernet2(one, other);
        for payload in [&b""[..], b"odd", &[0xff; 1400]] {
            let udp = FrameBuilder::udp((V4[0], 4000), (V4[1], 53));
            let same = built(|to| link().ipv4(V4[0], V4[1], 64).udp(4000, 53).write(to, payload).unwrap());
            assert_eq!(udp.frame(payload), same);
            assert_eq!(udp.packet(payload), same[ethernet::BYTES..]);
            let udp = FrameBuilder::udp((V6[0], 4000), (V6[1], 53)).vlan(5);
            let tagged = link().single_vlan(5.try_into().unwrap());
            let same = built(|to| tagged.ipv6(V6[0], V6[1], 64).udp(4000, 53).write(to, payload).unwrap());
            assert_eq!((udp.frame(payload), udp.header_bytes()), (same, 18 + 40 + 8));
            let tcp = FrameBuilder::tcp((V6[0], 5), (V6[1], 80)).sequence(7).acknowledgement(8).window(9);
            let tcp = tcp.flags(tcp::SYN | tcp::ACK | tcp::PSH);
            let same = link().ipv6(V6[0], V6[1], 64).tcp(5, 80, 7, 9).syn().ack(8).psh();
            assert_eq!(tcp.frame(payload), built(|to| same.write(to, payload).unwrap()));
            let echo = FrameBuilder::icmp(V4[0], V4[1], icmp::ECHO, 0).stations(other, one);
            let same = PacketBuilder::ethernet2(other, one).ipv4(V4[0], V4[1], 64).icmpv4_echo_request(0, 0);
            assert_eq!(echo.frame(payload), built(|to| same.write(to, payload).unwrap()));
            let error = FrameBuilder::icmp(V6[0], V6[1], 3, 0);
            let same = link().ipv6(V6[0], V6[1], 64).icmpv6_raw(3, 0, [0; 4]);
            assert_eq!(error.frame(payload), built(|to| same.write(to, payload).unwrap()));
        }
    }

    #[test]
    fn fields_of_the_ip_header_are_written() {
        let changed = FrameBuilder::udp((V4[0], 1), (V4[1], 2)).with_ip(|ip| {
            (ip.class, ip.hops, ip.identification, ip.fragment) = (3, 9, 0x1234, ipv4::MORE_FRAGMENTS | 5);
        });
        let packet = changed.packet(b"payload!");
        let read = etherparse::Ipv4HeaderSlice::from_slice(&packet).unwrap();
        assert_eq!((read.dcp().value(), read.ecn().value(), read.ttl()), (0, 3, 9));
        assert_eq!((read.identification(), read.more_fragments(), read.fragments_offset().value()), (0x1234, true, 5));
        assert_eq!((read.header_checksum(), packet.len()), (read.to_header().calc_header_checksum(), 36));
        assert_eq!(changed.frame_of(60).len(), 60);
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let header = IpHeader::new(V4[0], V4[1], protocol::UDP);
        let mut to = [0; ipv6::BYTES];
        assert_eq!(header.write(&mut to[..19], 0), None);
        assert_eq!((header.write(&mut to, 65_515).is_some(), header.write(&mut to, 65_516)), (true, None));
        assert_eq!(IpHeader::new(V4[0], V6[1], protocol::UDP).write(&mut to, 0), None);
        assert_eq!(IpHeader::new(V6[0], V6[1], protocol::UDP).write(&mut to, 65_536), None);
    }
}
