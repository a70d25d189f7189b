//! What a frame's headers tell, for tools.

use std::fmt;

use steerage_mem::hash::FlowKey;

use crate::limits::{FLOW_HEADERS_MAX, VLAN_TAGS_MAX};

/// Which flow counts where packets are in tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layers {
    /// The innermost that can be read: the flows of a tunnel spread over the CPUs.
    #[default]
    Inner,
    /// That of the first IP header: a tunnel stays together.
    Outer,
}

/// What [`dissect`](super::dissect) found. Offsets are in bytes from the frame's first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dissection {
    /// What the frame is known by; the source is the sender. An ICMP error has the key of the flow that it tells of, in the
    /// direction in which the error itself goes: from the receiver of the packet quoted to its sender. An ICMP query has
    /// its identifier as both ports. A later fragment, and what is cut off before the ports, has ports 0.
    pub key: FlowKey,
    /// Whether `key` is of IP. If not, it is of the link: stations and type.
    pub is_flow: bool,
    /// Why reading ended.
    pub end: End,
    /// The innermost IP header that was read (the outermost for [`Layers::Outer`]); the one quoted by an error is not
    /// meant.
    pub ip: Option<IpLayer>,
    /// Where the header behind `ip` and its extensions begins, if there is any of it.
    pub transport_offset: Option<u32>,
    /// Where the payload of TCP, UDP or SCTP begins. It may lie behind the end of a frame that is cut.
    pub payload_offset: Option<u32>,
    /// TCP's flags: the lower 8 bits as in RFC 9293, and bit 8, AE (RFC 9768).
    pub tcp_flags: Option<u16>,
    /// ICMP's type and code.
    pub icmp: Option<(u8, u8)>,
    /// Whether `key` is that of a flow quoted by an ICMP error.
    pub is_quoted: bool,
    /// If the packet of `ip` is a fragment, or that of an outer header. Two at most: the outermost comes first, and last
    /// the innermost.
    pub fragments: [Option<Fragment>; 2],
    /// Ids of the outermost frame's VLAN tags, from the outside.
    pub vlans: [Option<u16>; VLAN_TAGS_MAX],
    /// The innermost tunnel that was entered.
    pub tunnel: Option<Tunnel>,
    pub(super) headers: Headers,
}

impl Dissection {
    /// Of no frame yet.
    #[inline(always)]
    pub(super) fn blank() -> Self {
        Self {
            key: FlowKey::v4((0, 0), (0, 0), 0),
            is_flow: false,
            end: End::Complete,
            ip: None,
            transport_offset: None,
            payload_offset: None,
            tcp_flags: None,
            icmp: None,
            is_quoted: false,
            fragments: [None, None],
            vlans: [None; VLAN_TAGS_MAX],
            tunnel: None,
            headers: Headers::EMPTY,
        }
    }

    /// The key, if it is of IP.
    #[must_use]
    pub fn flow(&self) -> Option<FlowKey> {
        self.is_flow.then_some(self.key.by_words())
    }

    /// The headers that were read, in their order.
    #[must_use]
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header> + DoubleEndedIterator + '_ {
        self.headers.iter()
    }

    /// What `ip` says of fragments.
    #[must_use]
    pub fn fragment(&self) -> Option<&Fragment> {
        let at = self.ip?.offset;
        self.fragments.iter().flatten().find(|fragment| fragment.ip_offset == at)
    }
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpLayer {
    /// Where it begins.
    pub offset: u32,
    /// 4 or 6.
    pub version: u8,
    /// What it carries, after all extension headers that were read.
    pub protocol: u8,
    /// The length that it states, header and all, in bytes: what IPFIX counts as octets. `None` where it states none: a
    /// jumbogram (RFC 2675), or what the kernel put together from many packets.
    pub stated_bytes: Option<u32>,
}

/// A fragment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The offset of the IP header that says so.
    pub ip_offset: u32,
    /// The datagram's identification: 16 bits of IPv4, 32 of IPv6.
    pub id: u32,
    /// Where its data belongs in the datagram, in bytes. The first fragment has 0.
    pub offset: u32,
    /// How many bytes of data it states.
    pub bytes: u32,
    /// Whether more follow.
    pub more: bool,
    /// What all fragments of the datagram have in common: addresses, protocol (IPv4 only: RFC 791, RFC 8200) and id.
    pub datagram: FlowKey,
}

/// A tunnel that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// What it is.
    pub kind: HeaderKind,
    /// Which one: VXLAN's and Geneve's network identifier (24 bits), GTP-U's endpoint identifier, GRE's key (of version 1:
    /// the call id), the lowest MPLS label (20 bits), PPPoE's session.
    pub id: Option<u32>,
}

/// A header and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: HeaderKind,
    /// Where it begins.
    pub offset: u32,
}

/// Kinds of headers.
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
}

impl HeaderKind {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 24] = [
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
        })
    }
}

/// Why reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// All that a flow is known by was read.
    Complete,
    /// The frame ends within a header.
    Truncated,
    /// A later fragment: what follows is data from the midst of a datagram.
    LaterFragment,
    /// A header that contradicts its standard.
    Malformed,
    /// More headers, tags, extensions or tunnels than are read: see the limits.
    TooDeep,
    /// Frames of this link type are not read.
    UnknownLink,
    /// A frame, or a tunnel, of this EtherType, which is not read.
    UnknownEtherType(u16),
    /// PPP of this protocol, which is not read.
    UnknownPpp(u16),
    /// An IP protocol that is not read any further. The flow goes by addresses and protocol.
    UnknownProtocol(u8),
    /// A tunnel holds something that is not said, or not IP.
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
            Self::UnknownPpp(number) => write!(f, "PPP protocol {number:#06x}, which is not read"),
            Self::UnknownProtocol(number) => write!(f, "IP protocol {number}, which is not read further"),
            Self::UnknownPayload => f.write_str("a tunnel whose payload is not known"),
        }
    }
}

/// A list of fixed size, four bytes a header, since every frame's has to be emptied: the kind as its number in
/// [`HeaderKind::ALL`] above, the offset below.
#[derive(Clone)]
pub(super) struct Headers {
    list: [u32; FLOW_HEADERS_MAX],
    len: usize,
}

const OFFSET_BITS: u32 = 24;
/// Frames are shorter.
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
const _: () = assert!(steerage_mem::FRAME_BYTES_MAX <= OFFSET_MASK as usize);

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
