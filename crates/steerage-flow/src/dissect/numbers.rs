//! The assigned numbers that the dissector knows, one module for each registry.

/// The length of an IP header without options.
pub(super) const IPV4_LEN: usize = 20;
pub(super) const IPV6_LEN: usize = 40;

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
    /// IEEE 802.1Q, 9.5: a backbone's tag, before a customer's whole frame (802.1ah).
    pub(crate) const BACKBONE: u16 = 0x88e7;
    /// IEEE 802.1AE.
    pub(crate) const MACSEC: u16 = 0x88e5;
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

/// Protocol types that mean something in GRE alone.
pub(super) mod gre {
    /// ERSPAN, types I and II.
    pub(crate) const ERSPAN: u16 = 0x88be;
    /// ERSPAN, type III.
    pub(crate) const ERSPAN_3: u16 = 0x22eb;
    /// WCCP, a packet that a router redirects to a cache.
    pub(crate) const WCCP: u16 = 0x883e;
}

/// PPP protocol numbers (IANA).
pub(super) mod ppp {
    pub(crate) const IPV4: u16 = 0x0021;
    pub(crate) const IPV6: u16 = 0x0057;
    pub(crate) const MPLS: u16 = 0x0281;
    pub(crate) const MPLS_MULTICAST: u16 = 0x0283;
}

/// UDP ports of tunnels (IANA, but for TZSP).
pub(super) mod port {
    /// 3GPP TS 29.281, 4.4.2.
    pub(crate) const GTP_U: u16 = 2152;
    /// RFC 4380.
    pub(crate) const TEREDO: u16 = 3544;
    /// RFC 8086.
    pub(crate) const GRE: u16 = 4754;
    /// RFC 7348.
    pub(crate) const VXLAN: u16 = 4789;
    /// RFC 5415.
    pub(crate) const CAPWAP: u16 = 5247;
    /// RFC 8926.
    pub(crate) const GENEVE: u16 = 6081;
    /// RFC 7510.
    pub(crate) const MPLS: u16 = 6635;
    /// Registered for nothing else.
    pub(crate) const TZSP: u16 = 37008;

    /// Only the destination port identifies these; the source port depends on the flow inside.
    pub(crate) const TO: [u16; 6] = [GTP_U, GRE, VXLAN, GENEVE, MPLS, TZSP];
    /// Either port identifies these: one side has this port, and the other side has one of its own, in both directions.
    pub(crate) const TO_OR_FROM: [u16; 2] = [TEREDO, CAPWAP];

    /// Each destination port and each source port that identifies a tunnel is in one of these pairs, in network byte order.
    pub(crate) static PAIRS: [[[u8; 2]; 2]; 8] = {
        assert!(TO.len() + TO_OR_FROM.len() == 8);
        let (mut pairs, mut at) = ([[[0; 2]; 2]; 8], 0);
        while at < pairs.len() {
            let to = if at < TO.len() { TO[at] } else { TO_OR_FROM[at - TO.len()] };
            pairs[at] = [TO_OR_FROM[at % TO_OR_FROM.len()].to_be_bytes(), to.to_be_bytes()];
            at += 1;
        }
        pairs
    };

    /// The port that identifies a tunnel, if one of them does.
    #[inline(always)]
    pub(crate) const fn of_tunnel(from: u16, to: u16) -> Option<u16> {
        match (from, to) {
            (_, GTP_U | GRE | VXLAN | GENEVE | MPLS | TZSP | TEREDO | CAPWAP) => Some(to),
            (TEREDO | CAPWAP, _) => Some(from),
            _ => None,
        }
    }

    /// Whether a port with this upper byte may identify a tunnel: the destination, and the source at 256 further on.
    static UPPER_BYTES: [bool; 512] = {
        let (mut bytes, mut at) = ([false; 512], 0);
        while at < TO.len() {
            bytes[(TO[at] >> 8) as usize] = true;
            at += 1;
        }
        at = 0;
        while at < TO_OR_FROM.len() {
            bytes[(TO_OR_FROM[at] >> 8) as usize] = true;
            bytes[256 + (TO_OR_FROM[at] >> 8) as usize] = true;
            at += 1;
        }
        bytes
    };

    /// False if the ports identify no tunnel, for nearly all packets: two loads.
    #[inline(always)]
    pub(crate) fn may_be_tunnel(from: u16, to: u16) -> bool {
        let [[from, _], [to, _]] = [from.to_be_bytes(), to.to_be_bytes()];
        UPPER_BYTES[usize::from(to)] | UPPER_BYTES[256 + usize::from(from)]
    }
}
