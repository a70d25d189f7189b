//! [`Dissection`] is the result of dissecting a frame, for tools.

use std::fmt;
use std::ops::Range;

use crate::flow_key::FlowKey;

use crate::limits::{FLOW_HEADERS_MAX, VLAN_IDS};

/// Selects the flow of a packet inside a tunnel: the inner flow, or the flow of the tunnel itself.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::dissect::{Layers, dissect};
///
/// // IPv4 in IPv4: 10.0.0.1 to 10.0.0.2, and in it 192.0.2.1 to 192.0.2.2.
/// let mut packet = [0; 40];
/// (packet[0], packet[3], packet[9]) = (0x45, 40, 4);
/// packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
/// (packet[20], packet[23], packet[29]) = (0x45, 20, 99);
/// packet[32..40].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
///
/// let inner = dissect(&packet, LinkType::RAW, Layers::Inner);
/// assert_eq!(inner.key.source().map(|end| end.ip()), Some([192, 0, 2, 1].into()));
/// let outer = dissect(&packet, LinkType::RAW, Layers::Outer);
/// assert_eq!(outer.key.source().map(|end| end.ip()), Some([10, 0, 0, 1].into()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layers {
    /// The flow of the innermost IP header that can be read. With `Inner`, the flows inside a
    /// tunnel are spread over the CPUs.
    #[default]
    Inner,
    /// The flow of the outermost IP header. With `Outer`, all packets of a tunnel stay together on
    /// one CPU.
    Outer,
}

/// The result of [`dissect`](super::dissect). All offsets are in bytes from the first byte of the
/// frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dissection {
    /// The flow key of the frame. The source in the flow key is the frame's sender. An ICMP error
    /// has the flow key of the packet that it quotes. The key of an ICMP error has the direction of
    /// the error: from the receiver of the quoted packet to its sender. The flow key of an ICMP
    /// query has the query's identifier as both ports. The ports in the flow key are 0 for all
    /// fragments except the first, and for a packet that is cut off before the ports.
    pub key: FlowKey,
    /// True if `key` is the flow key of a flow between IP addresses. If the field `is_flow` is
    /// false, `key` consists of the link addresses and the EtherType.
    pub is_flow: bool,
    /// The reason why the dissection of the frame ended.
    pub end: End,
    /// The innermost IP header that was read. With [`Layers::Outer`], this field contains the
    /// outermost IP header. An IP header that an ICMP error quotes is not stored in this field.
    pub ip: Option<IpLayer>,
    /// The offset of the header that follows `ip` and its extension headers. `None` if the frame
    /// contains no part of that header.
    pub transport_offset: Option<u32>,
    /// The offset of the payload of a TCP, UDP or SCTP packet. If the frame is cut off, this offset
    /// may be after the frame's end.
    pub payload_offset: Option<u32>,
    /// The TCP flags. The lower 8 bits are the flags of RFC 9293, and bit 8 is the flag AE (RFC
    /// 9768).
    pub tcp_flags: Option<u16>,
    /// The ICMP type and code.
    pub icmp: Option<(u8, u8)>,
    /// True if `key` is the flow key of a packet that an ICMP error quotes.
    pub is_quoted: bool,
    /// The fragments in the frame, at most two, from the outermost to the innermost. A frame
    /// contains two fragments if a packet inside a tunnel is a fragment, and the tunnel's own
    /// packet is also a fragment.
    pub fragments: [Option<Fragment>; 2],
    /// The VLAN identifiers of the tags before the first IP header, beginning with the outermost
    /// tag.
    pub vlans: [Option<u16>; VLAN_IDS],
    /// The innermost tunnel that the dissection entered.
    pub tunnel: Option<Tunnel>,
    pub(super) headers: Headers,
}

impl Dissection {
    /// Returns an empty dissection. The code that walks over the frame's headers writes its results
    /// into this dissection.
    #[inline(always)]
    pub(super) fn blank() -> Self {
        Self {
            key: FlowKey::v4_bits((0, 0), (0, 0), 0),
            is_flow: false,
            end: End::Complete,
            ip: None,
            transport_offset: None,
            payload_offset: None,
            tcp_flags: None,
            icmp: None,
            is_quoted: false,
            fragments: [None, None],
            vlans: [None; VLAN_IDS],
            tunnel: None,
            headers: Headers::EMPTY,
        }
    }

    /// The flow key, if it belongs to a flow between IP addresses.
    #[must_use]
    pub fn flow(&self) -> Option<FlowKey> {
        self.is_flow.then_some(self.key.by_words())
    }

    /// The headers that were read, in the order in which they are in the frame.
    #[must_use]
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header> + DoubleEndedIterator + '_ {
        self.headers.iter()
    }

    /// Returns the fragment in `fragments` whose IP header is `ip`.
    #[must_use]
    pub fn fragment(&self) -> Option<&Fragment> {
        let at = self.ip?.offset;
        self.fragments.iter().flatten().find(|fragment| fragment.ip_offset == at)
    }
}

/// An IP header that the dissection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpLayer {
    /// The offset of the IP header in the frame.
    pub offset: u32,
    /// The IP version: 4 or 6.
    pub version: u8,
    /// The protocol of the IP payload, after all extension headers that were read.
    pub protocol: u8,
    /// The packet's length in bytes, including the IP header, as the IP header states it. IPFIX
    /// calls this length the octet count. `None` if the IP header states no length, as in a
    /// jumbogram (RFC 2675) or in a packet that the kernel merged from several packets.
    pub stated_bytes: Option<u32>,
}

/// A fragment of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fragment {
    /// The offset of the IP header that identifies the packet as a fragment.
    pub ip_offset: u32,
    /// The datagram's identification: 16 bits for IPv4, 32 bits for IPv6.
    pub id: u32,
    /// The position of the fragment's data within the datagram, in bytes. 0 for the first fragment.
    pub offset: u32,
    /// The number of data bytes in the fragment, as the headers state it.
    pub bytes: u32,
    /// True if more fragments follow this fragment.
    pub more: bool,
    /// A key that identifies the datagram: it is equal for all fragments of the datagram. The
    /// datagram's key consists of the addresses and the identification, and for IPv4 also of the
    /// protocol (RFC 791, RFC 8200).
    pub datagram: FlowKey,
}

impl Fragment {
    /// Creates a fragment. The new fragment's IP header is at the offset `ip_offset`, and the
    /// fragment contains the bytes `data` of its datagram. This function is for tests of code that
    /// reads fragments.
    #[must_use]
    pub const fn new(ip_offset: u32, id: u32, data: Range<u32>, more: bool, datagram: FlowKey) -> Self {
        Self { ip_offset, id, offset: data.start, bytes: data.end - data.start, more, datagram }
    }
}

/// A tunnel that the dissection entered.
///
/// ```
/// use steerage_flow::LinkType;
/// use steerage_flow::dissect::{HeaderKind, Layers, dissect};
///
/// // An MPLS label of 100, and below it an IPv4 header.
/// let mut frame = [0; 60];
/// frame[12..19].copy_from_slice(&[0x88, 0x47, 0x00, 0x06, 0x41, 64, 0x45]);
/// let found = dissect(&frame, LinkType::ETHERNET, Layers::Inner);
/// let tunnel = found.tunnel.expect("the label");
/// assert_eq!((tunnel.kind, tunnel.id), (HeaderKind::Mpls, Some(100)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tunnel {
    /// The kind of tunnel.
    pub kind: HeaderKind,
    /// The tunnel's identifier, such as a VXLAN network identifier.
    ///
    /// | tunnel | identifier |
    /// |---|---|
    /// | VXLAN, VXLAN-GPE, Geneve | network identifier, 24 bits |
    /// | NSH | service path, 24 bits |
    /// | LISP | instance, 24 bits |
    /// | L2TP | session; in version 2 after the tunnel, with 16 bits each |
    /// | EoIP | tunnel, 16 bits |
    /// | GTP-U | endpoint identifier |
    /// | GRE | key; in version 1 the call id |
    /// | MPLS | the lowest label, 20 bits |
    /// | PPPoE | session |
    /// | provider backbone | service, 24 bits |
    /// | ERSPAN | session, 10 bits |
    pub id: Option<u32>,
}

impl Tunnel {
    /// Creates a tunnel of the kind `kind` with the identifier `id`.
    #[must_use]
    pub const fn new(kind: HeaderKind, id: Option<u32>) -> Self {
        Self { kind, id }
    }
}

/// A header and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// The kind of header.
    pub kind: HeaderKind,
    /// The offset of the header in the frame.
    pub offset: u32,
}

/// The kinds of headers that the dissection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the name of a header")]
pub enum HeaderKind {
    Ethernet,
    Vlan,
    Snap,
    CiscoMetadata,
    LinuxCooked,
    BsdLoopback,
    Hdlc,
    Ppp,
    Pppoe,
    Mpls,
    Ipv4,
    Ipv6,
    Ipv6Extension,
    Authentication,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
    Gre,
    EtherIp,
    Vxlan,
    Geneve,
    GtpU,
    Backbone,
    Macsec,
    Erspan,
    Wccp,
    Teredo,
    Capwap,
    Tzsp,
    VxlanGpe,
    Nsh,
    L2tp,
    Lisp,
    Gue,
    Eoip,
    ControlWord,
}

impl HeaderKind {
    /// All kinds of headers, sorted by their numbers.
    pub const ALL: [Self; 38] = [
        Self::Ethernet,
        Self::Vlan,
        Self::Snap,
        Self::CiscoMetadata,
        Self::LinuxCooked,
        Self::BsdLoopback,
        Self::Hdlc,
        Self::Ppp,
        Self::Pppoe,
        Self::Mpls,
        Self::Ipv4,
        Self::Ipv6,
        Self::Ipv6Extension,
        Self::Authentication,
        Self::Tcp,
        Self::Udp,
        Self::Sctp,
        Self::Icmp,
        Self::Icmp6,
        Self::Gre,
        Self::EtherIp,
        Self::Vxlan,
        Self::Geneve,
        Self::GtpU,
        Self::Backbone,
        Self::Macsec,
        Self::Erspan,
        Self::Wccp,
        Self::Teredo,
        Self::Capwap,
        Self::Tzsp,
        Self::VxlanGpe,
        Self::Nsh,
        Self::L2tp,
        Self::Lisp,
        Self::Gue,
        Self::Eoip,
        Self::ControlWord,
    ];
}

impl fmt::Display for HeaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Snap => "LLC/SNAP",
            Self::CiscoMetadata => "Cisco MetaData",
            Self::LinuxCooked => "Linux cooked",
            Self::BsdLoopback => "BSD loopback",
            Self::Hdlc => "HDLC",
            Self::Ppp => "PPP",
            Self::Pppoe => "PPPoE",
            Self::Mpls => "MPLS",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension",
            Self::Authentication => "AH",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Icmp => "ICMP",
            Self::Icmp6 => "ICMPv6",
            Self::Gre => "GRE",
            Self::EtherIp => "EtherIP",
            Self::Vxlan => "VXLAN",
            Self::Geneve => "Geneve",
            Self::GtpU => "GTP-U",
            Self::Backbone => "PBB",
            Self::Macsec => "MACsec",
            Self::Erspan => "ERSPAN",
            Self::Wccp => "WCCP",
            Self::Teredo => "Teredo",
            Self::Capwap => "CAPWAP",
            Self::Tzsp => "TZSP",
            Self::VxlanGpe => "VXLAN-GPE",
            Self::Nsh => "NSH",
            Self::L2tp => "L2TP",
            Self::Lisp => "LISP",
            Self::Gue => "GUE",
            Self::Eoip => "EoIP",
            Self::ControlWord => "control word",
        })
    }
}

/// The reason why the dissection of a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The dissection has read all headers that it needs for the flow key.
    Complete,
    /// The frame ends within a header.
    Truncated,
    /// The packet is not the first fragment of a datagram, so its payload is data from the middle
    /// of the datagram.
    LaterFragment,
    /// A header contradicts its standard.
    Malformed,
    /// The frame has more headers, tags, extensions or tunnels than the [`limits`](crate::limits)
    /// allow.
    TooDeep,
    /// Frames of this link type are not supported.
    UnknownLink,
    /// The payload of the frame, or of a tunnel, has this unsupported EtherType.
    UnknownEtherType(u16),
    /// The frame has a length instead of an EtherType, and its LLC header (IEEE 802.2) names an
    /// unsupported protocol.
    UnknownLlc,
    /// The remaining bytes of the frame are encrypted.
    Encrypted,
    /// The PPP payload has this unsupported protocol.
    UnknownPpp(u16),
    /// The IP payload has this unsupported protocol. The flow key of a packet with an unsupported
    /// IP protocol consists of addresses and protocol.
    UnknownProtocol(u8),
    /// The type of a tunnel's payload is not stated, or the payload is not IP.
    UnknownPayload,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Truncated => f.write_str("cut off within a header"),
            Self::LaterFragment => f.write_str("a later fragment, which has no ports"),
            Self::Malformed => f.write_str("a header that contradicts its standard"),
            Self::TooDeep => f.write_str("more headers than are read"),
            Self::UnknownLink => f.write_str("a link type that is not read"),
            Self::UnknownEtherType(number) => write!(f, "EtherType {number:#06x}, which is not read"),
            Self::UnknownLlc => f.write_str("an 802.3 frame with LLC, which is not read"),
            Self::Encrypted => f.write_str("encrypted from there on"),
            Self::UnknownPpp(number) => write!(f, "PPP protocol {number:#06x}, which is not read"),
            Self::UnknownProtocol(number) => write!(f, "IP protocol {number}, which is not read further"),
            Self::UnknownPayload => f.write_str("a tunnel whose payload is not known"),
        }
    }
}

/// A list of the frame's headers. The list has a fixed size. Each entry has four bytes. The list of
/// a frame's headers is small, because the list must be cleared for every frame. The upper bits of
/// a list entry contain the header's kind, as an index in [`HeaderKind::ALL`]. The lower bits of a
/// list entry contain the header's offset.
#[derive(Clone)]
pub(super) struct Headers {
    list: [u32; FLOW_HEADERS_MAX],
    len: usize,
}

const OFFSET_BITS: u32 = 24;
/// The lower bits of a list entry have room for the offset of any header in a frame.
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
/// The maximum length in bytes of a frame. All header offsets in a frame of this length fit in the
/// lower bits of a list entry.
pub const FRAME_BYTES_MAX: usize = OFFSET_MASK as usize;

impl Headers {
    const EMPTY: Self = Self { list: [0; FLOW_HEADERS_MAX], len: 0 };

    #[inline]
    pub(super) fn push(&mut self, kind: HeaderKind, offset: usize) -> Result<(), End> {
        let place = self.list.get_mut(self.len).ok_or(End::TooDeep)?;
        *place = (kind as u32) << OFFSET_BITS | offset as u32 & OFFSET_MASK;
        self.len += 1;
        Ok(())
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = Header> + DoubleEndedIterator + '_ {
        let kind = |packed: u32| HeaderKind::ALL[(packed >> OFFSET_BITS) as usize];
        let read = self.list.get(..self.len).unwrap_or_default();
        read.iter().map(move |packed| Header { kind: kind(*packed), offset: packed & OFFSET_MASK })
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
