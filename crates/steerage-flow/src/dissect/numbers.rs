//! The assigned numbers that the dissector knows, one module for each registry.

/// EtherTypes (IEEE registration authority).
pub(super) mod ethertype {
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const IPV6: u16 = 0x86dd;
    /// IEEE 802.1Q, a customer's tag.
    pub(crate) const VLAN: u16 = 0x8100;
    /// IEEE 802.1ad, a provider's tag.
    pub(crate) const VLAN_SERVICE: u16 = 0x88a8;
    /// A provider's tag from before the standard.
    pub(crate) const VLAN_QINQ: u16 = 0x9100;
    /// RFC 5332: unicast, or all MPLS packets.
    pub(crate) const MPLS: u16 = 0x8847;
    pub(crate) const MPLS_MULTICAST: u16 = 0x8848;
    /// RFC 2516, the session stage. Frames of the discovery stage contain no IP.
    pub(crate) const PPPOE_SESSION: u16 = 0x8864;
    /// RFC 1701: Ethernet in a tunnel ("transparent Ethernet bridging").
    pub(crate) const BRIDGED: u16 = 0x6558;
    /// RFC 2637: PPP in GRE version 1.
    pub(crate) const PPP: u16 = 0x880b;
    /// Cisco MetaData, a group tag before the real type.
    pub(crate) const METADATA: u16 = 0x8909;
    /// Below this, the field contains the frame's length (IEEE 802.3, 3.2.6).
    pub(crate) const MIN: u16 = 0x0600;
    /// Linux's number for a frame whose field contains a length (`ETH_P_802_2`). It is not a registered type.
    pub(crate) const LLC: u16 = 0x0004;
}

/// Protocol numbers (IANA) in addition to those of [`protocol`](crate::protocol).
pub(super) mod number {
    /// IPv6 extension headers that are skipped (RFC 8200; 140 is RFC 5533).
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const DESTINATION: u8 = 60;
    pub(crate) const SHIM6: u8 = 140;
    /// RFC 4302, over both versions of IP. It encrypts nothing.
    pub(crate) const AUTHENTICATION: u8 = 51;
    /// RFC 2003 and RFC 4213: IP in IP.
    pub(crate) const IPV4: u8 = 4;
    pub(crate) const IPV6: u8 = 41;
    /// RFC 3378.
    pub(crate) const ETHERIP: u8 = 97;
    /// RFC 4023.
    pub(crate) const MPLS: u8 = 137;
    /// RFC 8986.
    pub(crate) const ETHERNET: u8 = 143;
    /// RFC 8200, 4.7.
    pub(crate) const NOTHING: u8 = 59;
}

/// PPP protocol numbers (IANA).
pub(super) mod ppp {
    pub(crate) const IPV4: u16 = 0x0021;
    pub(crate) const IPV6: u16 = 0x0057;
    pub(crate) const MPLS: u16 = 0x0281;
    pub(crate) const MPLS_MULTICAST: u16 = 0x0283;
}

/// UDP destination ports of tunnels (IANA). Only the destination port identifies a tunnel; the source port depends on
/// the flow inside.
pub(super) mod port {
    /// 3GPP TS 29.281, 4.4.2.
    pub(crate) const GTP_U: u16 = 2152;
    /// RFC 7348.
    pub(crate) const VXLAN: u16 = 4789;
    /// RFC 8926.
    pub(crate) const GENEVE: u16 = 6081;
    /// RFC 7510.
    pub(crate) const MPLS: u16 = 6635;
    /// The lowest and the highest of these ports, so that one compare lets nearly all other traffic pass.
    pub(crate) const MIN: u16 = GTP_U;
    pub(crate) const MAX: u16 = MPLS;

    pub(crate) const ALL: [u16; 4] = [GTP_U, VXLAN, GENEVE, MPLS];

    #[inline(always)]
    pub(crate) const fn is_tunnel(port: u16) -> bool {
        matches!(port, GTP_U | VXLAN | GENEVE | MPLS)
    }
}
