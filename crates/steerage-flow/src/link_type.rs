/// The type of a frame's first header, as one of tcpdump's numbers
/// (<https://www.tcpdump.org/linktypes.html>).
///
/// ```
/// use steerage_flow::dissect::{Layers, dissect};
/// use steerage_flow::LinkType;
///
/// // A packet from a TUN device begins with its IP header: here IPv4 of UDP.
/// let mut packet = [0; 28];
/// (packet[0], packet[3], packet[9], packet[21], packet[23]) = (0x45, 28, 17, 53, 99);
/// assert_eq!(dissect(&packet, LinkType::RAW, Layers::Inner).key.to_string(), "udp 0.0.0.0:53 > 0.0.0.0:99");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// A BSD loopback header, in the byte order of the machine that wrote the capture.
    pub const NULL: Self = Self(0);
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);
    /// PPP (RFC 1661), with or without the address and control bytes of HDLC.
    pub const PPP: Self = Self(9);
    /// IPv4 or IPv6 without a link header: the value of `DLT_RAW` on BSD systems.
    pub const RAW_BSD: Self = Self(12);
    /// IPv4 or IPv6 without a link header: the value of `DLT_RAW` on OpenBSD.
    pub const RAW_OPENBSD: Self = Self(14);
    /// PPP in HDLC framing (RFC 1662), or a payload in Cisco's HDLC framing.
    pub const PPP_HDLC: Self = Self(50);
    /// IPv4 or IPv6 without a link header.
    pub const RAW: Self = Self(101);
    /// Cisco's HDLC framing.
    pub const C_HDLC: Self = Self(104);
    /// A BSD loopback header in network byte order.
    pub const LOOP: Self = Self(108);
    /// The header of a Linux cooked capture.
    pub const LINUX_SLL: Self = Self(113);
    /// IPv4 without a link header.
    pub const IPV4: Self = Self(228);
    /// IPv6 without a link header.
    pub const IPV6: Self = Self(229);
    /// The header of a Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// The supported link types. A slot (a packet's entry in a ring) stores an index of this list
    /// in four bits. The default is 0 (Ethernet).
    pub const READ: &[Self] = &[
        Self::ETHERNET,
        Self::RAW,
        Self::IPV4,
        Self::IPV6,
        Self::RAW_BSD,
        Self::RAW_OPENBSD,
        Self::LINUX_SLL,
        Self::LINUX_SLL2,
        Self::PPP,
        Self::PPP_HDLC,
        Self::NULL,
        Self::LOOP,
        Self::C_HDLC,
    ];

    const _FIT: () = assert!(Self::READ.len() < 16, "the code behind the last is that of all others");

    /// A link type that steerage does not support.
    pub const UNKNOWN: Self = Self(u16::MAX);

    /// Returns the index of this link type in [`READ`](Self::READ), or the length of that list.
    /// This code has four bits.
    pub fn code(self) -> u8 {
        Self::READ.iter().position(|link| *link == self).unwrap_or(Self::READ.len()) as u8
    }

    /// Returns the link type whose [`code`](Self::code) is `code`.
    #[inline]
    pub fn of_code(code: u8) -> Self {
        Self::READ.get(usize::from(code)).copied().unwrap_or(Self::UNKNOWN)
    }
}
