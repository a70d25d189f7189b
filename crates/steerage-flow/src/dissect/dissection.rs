use std::fmt;
use std::ops::Range;

use crate::flow_key::FlowKey;

use crate::limits::{FLOW_HEADERS_MAX, VLAN_IDS};

/// Selects the inner or the outer flow of a packet inside a tunnel.
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
    /// The flow of the innermost IP header that can be read: spreads a tunnel's flows over CPUs.
    #[default]
    Inner,
    /// The flow of the outermost IP header: keeps all packets of a tunnel together on one CPU.
    Outer,
}

/// The result of [`dissect`](super::dissect). Offsets are in bytes from the start of the frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Dissection {
    /// The flow key of the frame, or else a key of its link addresses. The key of an ICMP error has
    /// the direction of the error, from the receiver of the quoted packet to the sender of that
    /// packet.
    pub key: FlowKey,
    /// True if `key` is the key of a flow between IP addresses.
    pub is_flow: bool,
    /// The reason why the dissection of the frame ended.
    pub end: End,
    /// The innermost IP header that was read, or the outermost IP header with [`Layers::Outer`].
    pub ip: Option<IpLayer>,
    /// The offset of the header after `ip` and its extension headers, if it is in the frame.
    pub transport_offset: Option<u32>,
    /// The offset of the payload of TCP, UDP or SCTP, which may be after the end of a cut frame.
    pub payload_offset: Option<u32>,
    /// The TCP flags: in the lower 8 bits those of RFC 9293, in bit 8 the flag AE (RFC 9768).
    pub tcp_flags: Option<u16>,
    /// The ICMP type and code.
    pub icmp: Option<(u8, u8)>,
    /// True if `key` is the flow key of a packet that an ICMP error quotes.
    pub is_quoted: bool,
    /// The fragments in the frame, the outermost first. A frame has two fragments if a fragment is
    /// in a tunnel packet that is itself fragmented.
    pub fragments: [Option<Fragment>; 2],
    /// The VLAN identifiers before the first IP header, the outermost first.
    pub vlans: [Option<u16>; VLAN_IDS],
    /// The innermost tunnel that the dissection entered.
    pub tunnel: Option<Tunnel>,
    pub(super) headers: Headers,
}

impl Dissection {
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

    /// Returns the flow key, if it is the key of a flow between IP addresses.
    #[must_use]
    pub fn flow(&self) -> Option<FlowKey> {
        self.is_flow.then_some(self.key.by_words())
    }

    /// Returns the headers that were read, in the order of the frame.
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
    /// The protocol of the IP payload, after all extension headers.
    pub protocol: u8,
    /// The packet's length in bytes according to its IP header. `None` if no length is stated, as
    /// in a jumbogram (RFC 2675) or a packet that the kernel merged.
    pub stated_bytes: Option<u32>,
}

/// A fragment of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fragment {
    /// The offset of the IP header of the fragment.
    pub ip_offset: u32,
    /// The datagram's identification: 16 bits for IPv4, 32 bits for IPv6.
    pub id: u32,
    /// The position of the fragment's data within the datagram, in bytes.
    pub offset: u32,
    /// The number of data bytes in the fragment, according to its headers.
    pub bytes: u32,
    /// True if more fragments follow this fragment.
    pub more: bool,
    /// A key that is equal for all fragments of the datagram (RFC 791, RFC 8200).
    pub datagram: FlowKey,
}

impl Fragment {
    /// Creates a fragment with the bytes `data` of its datagram, for tests.
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

macro_rules! header_kinds {
    ($($kind:ident $name:literal)*) => {
        /// The kinds of headers that the dissection reads.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum HeaderKind {
            $(#[doc = $name] $kind,)*
        }

        impl HeaderKind {
            /// All kinds of headers, sorted by their numbers.
            pub const ALL: [Self; 38] = [$(Self::$kind),*];
        }

        impl fmt::Display for HeaderKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $(Self::$kind => $name,)*
                })
            }
        }
    };
}

header_kinds! {
    Ethernet "Ethernet"
    Vlan "VLAN"
    Snap "LLC/SNAP"
    CiscoMetadata "Cisco MetaData"
    LinuxCooked "Linux cooked"
    BsdLoopback "BSD loopback"
    Hdlc "HDLC"
    Ppp "PPP"
    Pppoe "PPPoE"
    Mpls "MPLS"
    Ipv4 "IPv4"
    Ipv6 "IPv6"
    Ipv6Extension "IPv6 extension"
    Authentication "AH"
    Tcp "TCP"
    Udp "UDP"
    Sctp "SCTP"
    Icmp "ICMP"
    Icmp6 "ICMPv6"
    Gre "GRE"
    EtherIp "EtherIP"
    Vxlan "VXLAN"
    Geneve "Geneve"
    GtpU "GTP-U"
    Backbone "PBB"
    Macsec "MACsec"
    Erspan "ERSPAN"
    Wccp "WCCP"
    Teredo "Teredo"
    Capwap "CAPWAP"
    Tzsp "TZSP"
    VxlanGpe "VXLAN-GPE"
    Nsh "NSH"
    L2tp "L2TP"
    Lisp "LISP"
    Gue "GUE"
    Eoip "EoIP"
    ControlWord "control word"
}

/// Why the dissection of a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// All headers that the flow key needs were read.
    Complete,
    /// The frame ends within a header.
    Truncated,
    /// The packet is a fragment that is not the first: its payload is data from the middle of a
    /// datagram.
    LaterFragment,
    /// A header contradicts its standard.
    Malformed,
    /// The frame has more headers of some kind than the [`limits`](crate::limits) allow.
    TooDeep,
    /// Frames of this link type are not supported.
    UnknownLink,
    /// The payload of the frame or of a tunnel has this EtherType, which steerage does not support.
    UnknownEtherType(u16),
    /// The frame has a length instead of an EtherType, and an unsupported LLC header (IEEE 802.2).
    UnknownLlc,
    /// The rest of the frame is encrypted.
    Encrypted,
    /// The PPP payload has this unsupported protocol.
    UnknownPpp(u16),
    /// The IP payload has this unsupported protocol.
    UnknownProtocol(u8),
    /// The tunnel's headers do not state the type of the payload, or the payload is not IP.
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

/// The list of headers in a frame. The list is small, because it is cleared for every frame. The
/// upper bits of each number in the list are a header's kind, as an index in [`HeaderKind::ALL`].
/// The lower bits are the offset.
#[derive(Clone)]
pub(super) struct Headers {
    list: [u32; FLOW_HEADERS_MAX],
    len: usize,
}

const OFFSET_BITS: u32 = 24;
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
/// The maximum length in bytes of a frame. Header offsets are stored in 24 bits.
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
