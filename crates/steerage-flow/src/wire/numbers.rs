//! Assigned numbers (one module for each registry), and layouts of headers (one module for each
//! kind of header). All lengths and offsets are in bytes.

/// EtherTypes (IEEE registration authority).
pub mod ethertype {
    /// IPv4 (RFC 894).
    pub const IPV4: u16 = 0x0800;
    /// ARP (RFC 826).
    pub const ARP: u16 = 0x0806;
    /// IPv6 (RFC 2464).
    pub const IPV6: u16 = 0x86dd;
    /// A customer's VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// A provider's VLAN tag (IEEE 802.1ad).
    pub const VLAN_SERVICE: u16 = 0x88a8;
    /// A provider's VLAN tag before IEEE 802.1ad.
    pub const VLAN_QINQ: u16 = 0x9100;
    /// LACP and other protocols between the two ends of a link (IEEE 802.3, annex 57A).
    pub const SLOW_PROTOCOLS: u16 = 0x8809;
    /// MPLS packets, either all or only unicast (RFC 5332).
    pub const MPLS: u16 = 0x8847;
    /// MPLS multicast packets (RFC 5332).
    pub const MPLS_MULTICAST: u16 = 0x8848;
    /// PPPoE packets (RFC 2516). Frames of PPPoE's discovery stage contain no IP.
    pub const PPPOE_SESSION: u16 = 0x8864;
    /// Ethernet frames in a tunnel ("transparent Ethernet bridging", RFC 1701).
    pub const BRIDGED: u16 = 0x6558;
    /// PPP in GRE version 1 (RFC 2637).
    pub const PPP: u16 = 0x880b;
    /// Cisco MetaData: a security group tag before the EtherType of the payload.
    pub const METADATA: u16 = 0x8909;
    /// A provider backbone's tag, followed by a customer's whole frame (IEEE 802.1Q, 9.5).
    pub const BACKBONE: u16 = 0x88e7;
    /// Network service header (RFC 8300).
    pub const NSH: u16 = 0x894f;
    /// MACsec (IEEE 802.1AE).
    pub const MACSEC: u16 = 0x88e5;
    /// The smallest EtherType. A smaller number in place of an EtherType is the frame's length
    /// (IEEE 802.3, 3.2.6).
    pub const MIN: u16 = 0x0600;
    /// Linux's number, not a registered EtherType, for a frame with a length field (`ETH_P_802_2`).
    pub const LLC: u16 = 0x0004;
}

/// IP protocol numbers and IPv6 extension headers (IANA, "Protocol Numbers").
pub mod protocol {
    /// ICMP over IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// DCCP (RFC 4340).
    pub const DCCP: u8 = 33;
    /// Generic routing encapsulation (RFC 2784).
    pub const GRE: u8 = 47;
    /// IPsec encapsulating security payload (RFC 4303).
    pub const ESP: u8 = 50;
    /// ICMP over IPv6 (RFC 4443).
    pub const ICMP6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: u8 = 136;

    /// IPv6 hop-by-hop options (RFC 8200, 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// IPv6 routing header (RFC 8200, 4.4).
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header (RFC 8200, 4.5).
    pub const FRAGMENT: u8 = 44;
    /// IPv6 destination options (RFC 8200, 4.6).
    pub const DESTINATION: u8 = 60;
    /// No header follows (RFC 8200, 4.7).
    pub const NOTHING: u8 = 59;
    /// IPv6 header of Shim6 (RFC 5533).
    pub const SHIM6: u8 = 140;
    /// IPsec authentication header (RFC 4302). The payload after this header is not encrypted.
    pub const AUTHENTICATION: u8 = 51;

    /// IPv4 in IP (RFC 2003).
    pub const IPV4: u8 = 4;
    /// IPv6 in IP (RFC 4213).
    pub const IPV6: u8 = 41;
    /// Ethernet in IP (EtherIP, RFC 3378).
    pub const ETHERIP: u8 = 97;
    /// MPLS in IP (RFC 4023).
    pub const MPLS: u8 = 137;
    /// L2TP, version 3 (RFC 3931).
    pub const L2TP: u8 = 115;
    /// An Ethernet frame in IPv6 (RFC 8986).
    pub const ETHERNET: u8 = 143;

    /// Protocols that have a name in the text form of a flow key.
    const NAMES: [(u8, &str); 7] =
        [(ICMP, "icmp"), (TCP, "tcp"), (UDP, "udp"), (GRE, "gre"), (ESP, "esp"), (ICMP6, "icmp6"), (SCTP, "sctp")];

    /// Returns the protocol's name in the text form of a [`FlowKey`](crate::FlowKey), such as
    /// `tcp`. Returns `None` for a protocol that the text form shows as a number.
    #[must_use]
    pub fn name(protocol: u8) -> Option<&'static str> {
        NAMES.iter().find(|(number, _)| *number == protocol).map(|(_, name)| *name)
    }

    /// Returns the number of the protocol with this lower-case name.
    ///
    /// ```
    /// use steerage_flow::protocol;
    ///
    /// assert_eq!(protocol::named("udp").and_then(protocol::name), Some("udp"));
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Option<u8> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
    }

    /// Returns true for protocols whose header begins with two ports that RSS hashes.
    ///
    /// ```
    /// use steerage_flow::protocol;
    ///
    /// assert!(protocol::has_ports(protocol::UDP) && !protocol::has_ports(protocol::ICMP));
    /// ```
    #[must_use]
    #[inline(always)]
    pub const fn has_ports(protocol: u8) -> bool {
        matches!(protocol, TCP | UDP | SCTP)
    }
}

/// UDP ports of tunnels and of the services echo and discard. IANA assigned all ports of this
/// module, except those of TZSP and [`VXLAN_LINUX`](port::VXLAN_LINUX).
pub mod port {
    /// Echo (RFC 862).
    pub const ECHO: u16 = 7;
    /// Discard (RFC 863).
    pub const DISCARD: u16 = 9;
    /// L2TP (RFC 2661).
    pub const L2TP: u16 = 1701;
    /// GTP-U (3GPP TS 29.281, 4.4.2).
    pub const GTP_U: u16 = 2152;
    /// Teredo (RFC 4380).
    pub const TEREDO: u16 = 3544;
    /// LISP (RFC 9300).
    pub const LISP: u16 = 4341;
    /// GRE in UDP (RFC 8086).
    pub const GRE: u16 = 4754;
    /// VXLAN (RFC 7348).
    pub const VXLAN: u16 = 4789;
    /// VXLAN with a field for the payload's type (draft-ietf-nvo3-vxlan-gpe).
    pub const VXLAN_GPE: u16 = 4790;
    /// CAPWAP data (RFC 5415).
    pub const CAPWAP: u16 = 5247;
    /// GUE (draft-ietf-intarea-gue).
    pub const GUE: u16 = 6080;
    /// Geneve (RFC 8926).
    pub const GENEVE: u16 = 6081;
    /// MPLS in UDP (RFC 7510).
    pub const MPLS: u16 = 6635;
    /// The port that Linux, flannel and Cilium use for VXLAN.
    pub const VXLAN_LINUX: u16 = 8472;
    /// TZSP's usual port, which IANA has not assigned.
    pub const TZSP: u16 = 37008;
}

/// Protocol types that are valid only in GRE. All other protocol types in GRE are EtherTypes.
pub mod gre {
    /// ERSPAN, types I and II.
    pub const ERSPAN: u16 = 0x88be;
    /// ERSPAN, type III.
    pub const ERSPAN_3: u16 = 0x22eb;
    /// MikroTik's Ethernet over IP, with GRE version 1.
    pub const EOIP: u16 = 0x6400;
    /// WCCP: packets that a router redirects to a cache.
    pub const WCCP: u16 = 0x883e;
}

/// Payload types of NSH (RFC 8300, 2.2), VXLAN-GPE and LISP (RFC 9305).
pub mod next_protocol {
    /// IPv4.
    pub const IPV4: u8 = 1;
    /// IPv6.
    pub const IPV6: u8 = 2;
    /// Ethernet.
    pub const ETHERNET: u8 = 3;
    /// Network service header.
    pub const NSH: u8 = 4;
    /// MPLS.
    pub const MPLS: u8 = 5;
}

/// PPP protocol numbers (IANA), and PPP's framing.
pub mod ppp {
    /// The address and control bytes of PPP in HDLC framing (RFC 1662).
    pub const IN_HDLC: [u8; 2] = [0xff, 3];
    /// IPv4 in PPP (RFC 1332).
    pub const IPV4: u16 = 0x0021;
    /// IPv6 in PPP (RFC 5072).
    pub const IPV6: u16 = 0x0057;
    /// MPLS in PPP (RFC 3032, 4.3).
    pub const MPLS: u16 = 0x0281;
    /// MPLS multicast packets in PPP (RFC 3032, 4.3).
    pub const MPLS_MULTICAST: u16 = 0x0283;
}

/// The Ethernet header (IEEE 802.3).
pub mod ethernet {
    /// The length of an Ethernet header without tags.
    pub const BYTES: usize = 14;
    /// The length of an Ethernet header with two VLAN tags. An interface's MTU does not include
    /// this header.
    pub const TAGGED_BYTES: usize = BYTES + 2 * super::vlan::BYTES;
    /// The length of an Ethernet address.
    pub const ADDRESS_BYTES: usize = 6;
    /// The offset of the EtherType, or of the first VLAN tag if there is one.
    pub const TYPE_AT: usize = 12;
}

/// A VLAN tag (IEEE 802.1Q).
pub mod vlan {
    /// The length of a VLAN tag.
    pub const BYTES: usize = 4;
    /// The bits that contain the VLAN identifier.
    pub const ID: u16 = 0x0fff;
}

/// The IPv4 header (RFC 791).
pub mod ipv4 {
    use std::ops::Range;

    /// The length of an IPv4 header without options.
    pub const BYTES: usize = 20;
    /// The first byte if there are no IPv4 options: version 4, header length of five 32-bit words.
    pub const PLAIN: u8 = 0x45;
    /// The flag that forbids fragmentation.
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// The flag that is set in all fragments except the last.
    pub const MORE_FRAGMENTS: u16 = 0x2000;
    /// The bits of the fragment offset in the 16-bit word of the flags. The fragment offset is in
    /// units of eight bytes.
    pub const OFFSET: u16 = 0x1fff;
    /// A packet is a fragment if one of these bits is set in the 16-bit word of the flags.
    pub const FRAGMENT: u16 = MORE_FRAGMENTS | OFFSET;
    /// The offset of the protocol number in an IPv4 header.
    pub const PROTOCOL_AT: usize = 9;
    /// The offset of the checksum.
    pub const CHECKSUM_AT: usize = 10;
    /// The positions of the source address and the destination address.
    pub const ADDRESSES: Range<usize> = 12..20;
}

/// The IPv6 header (RFC 8200).
pub mod ipv6 {
    use std::ops::Range;

    /// The length of an IPv6 header without extension headers.
    pub const BYTES: usize = 40;
    /// The first byte of an IPv6 header if the traffic class is below 16.
    pub const PLAIN: u8 = 0x60;
    /// Masks the second 16-bit word of a fragment header (RFC 8200, 4.5). The result is the
    /// fragment offset in bytes.
    pub const OFFSET: u16 = 0xfff8;
    /// The flag in a fragment header that is set in all fragments except the last.
    pub const MORE_FRAGMENTS: u16 = 1;
    /// The offset of the payload's protocol, or of the first extension header's type.
    pub const PROTOCOL_AT: usize = 6;
    /// The positions of the source address and the destination address.
    pub const ADDRESSES: Range<usize> = 8..40;
}

/// The TCP header (RFC 9293, 3.1).
pub mod tcp {
    /// The length of a TCP header without options.
    pub const BYTES: usize = 20;
    /// The offset of the 16-bit word with the header's length (the upper four bits) and the flags.
    pub const FLAGS_AT: usize = 12;
    /// The offset of the checksum.
    pub const CHECKSUM_AT: usize = 16;

    /// All flags in the 16-bit word at [`FLAGS_AT`].
    pub const FLAGS: u16 = 0x01ff;
    /// FIN: the sender has no more data.
    pub const FIN: u16 = 0x001;
    /// SYN: the segment opens a connection.
    pub const SYN: u16 = 0x002;
    /// RST: the connection is reset.
    pub const RST: u16 = 0x004;
    /// PSH: the receiver should not wait for more data.
    pub const PSH: u16 = 0x008;
    /// ACK: the header has a valid acknowledgement number.
    pub const ACK: u16 = 0x010;
    /// URG: the header has a valid urgent pointer.
    pub const URG: u16 = 0x020;
    /// ECE: the sender reports that a router marked congestion (RFC 3168).
    pub const ECE: u16 = 0x040;
    /// CWR: the sender has reduced its congestion window (RFC 3168).
    pub const CWR: u16 = 0x080;
}

/// The UDP header (RFC 768).
pub mod udp {
    /// The length of a UDP header.
    pub const BYTES: usize = 8;
    /// The offset of the length field, which counts the header and the data.
    pub const LENGTH_AT: usize = 4;
    /// The offset of the checksum. A checksum field of zero means that there is no checksum.
    pub const CHECKSUM_AT: usize = 6;
}

/// The SCTP header (RFC 9260, 3.1).
pub mod sctp {
    /// The length of an SCTP header without chunks.
    pub const BYTES: usize = 12;
}

/// The ICMP header (RFC 792), and its types.
pub mod icmp {
    /// The length of an ICMP or ICMPv6 header: type, code, checksum, and four type-specific bytes.
    pub const BYTES: usize = 8;
    /// The offset of the checksum.
    pub const CHECKSUM_AT: usize = 2;

    /// The offset of the identifier in a query.
    pub const IDENTIFIER_AT: usize = 4;

    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Echo request.
    pub const ECHO: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;

    /// Types that quote a packet: unreachable, source quench, redirect, time exceeded, parameter
    /// problem.
    pub const ERRORS: [u8; 5] = [UNREACHABLE, 4, 5, TIME_EXCEEDED, 12];
    /// Types with an identifier: echo, timestamp, information (RFC 792), address mask (RFC 950),
    /// extended echo (RFC 8335).
    pub const QUERIES: [u8; 10] = [ECHO_REPLY, ECHO, 13, 14, 15, 16, 17, 18, 42, 43];
}

/// The types of ICMPv6. An ICMPv6 header is as long as an ICMP header: see [`icmp`].
pub mod icmp6 {
    /// Destination unreachable (RFC 4443).
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big (RFC 4443).
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded (RFC 4443).
    pub const TIME_EXCEEDED: u8 = 3;
    /// The smallest ICMPv6 type that is not an error (RFC 4443, 2.1).
    pub const FIRST_INFORMATIONAL: u8 = 128;
    /// Echo request (RFC 4443).
    pub const ECHO: u8 = 128;
    /// Echo reply (RFC 4443).
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation (RFC 4861), the first type of neighbour discovery.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Neighbour solicitation (RFC 4861).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement (RFC 4861).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect (RFC 4861), the last type of neighbour discovery.
    pub const REDIRECT: u8 = 137;

    /// Types that quote a packet: unreachable, packet too big, time exceeded, parameter problem.
    pub const ERRORS: [u8; 4] = [UNREACHABLE, TOO_BIG, TIME_EXCEEDED, 4];
    /// Types with an identifier: echo (RFC 4443), extended echo (RFC 8335).
    pub const QUERIES: [u8; 4] = [ECHO, ECHO_REPLY, 160, 161];
}
