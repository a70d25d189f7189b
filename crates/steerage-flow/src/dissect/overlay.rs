//! Reads the headers of overlay networks, and returns the step that reads the payload. L2TP version
//! 3 and MPLS do not state the type of the payload, so this module recognizes the payload by its
//! first bytes.

use super::dissection::{End, HeaderKind};
use super::walk::{Step, Walk};
use crate::wire::{be16, be32, ethernet, ethertype, ipv4, next_protocol, ppp};

/// This VXLAN flag says that the network identifier is valid (RFC 7348, 5).
const VXLAN_VALID: u8 = 0x08;
/// This flag of VXLAN-GPE and LISP says that the header has the payload's type
/// (draft-ietf-nvo3-vxlan-gpe, 3.1; RFC 9305, 3).
const TYPED: u8 = 0x04;
/// This LISP flag says that the instance identifier is valid (RFC 9300, 5.3).
const LISP_INSTANCE: u8 = 0x08;
/// The bits of LISP's key number, which is 0 if the payload is not encrypted (RFC 9300, 5.3).
const LISP_KEY: u8 = 0x03;
/// Version and length of an NSH header, with the length in units of four bytes (RFC 8300, 2.2).
const NSH_VERSION: u8 = 0xc0;
const NSH_WORDS: u16 = 0x003f;
const NSH_WORDS_MIN: u16 = 2;
/// GUE (draft-ietf-intarea-gue, 3): in the version `GUE_BARE`, there is no GUE header before the IP
/// packet. The bits `GUE_WORDS` are the length of the optional fields in units of four bytes.
const GUE_VERSION: u8 = 0xc0;
const GUE_BARE: u8 = 0x40;
const GUE_CONTROL: u8 = 0x20;
const GUE_WORDS: u8 = 0x1f;
/// Flags and version of L2TP (RFC 2661, 3.1; RFC 3931, 4.1.2.1).
mod l2tp {
    pub(super) const CONTROL: u16 = 0x8000;
    pub(super) const LENGTH: u16 = 0x4000;
    pub(super) const SEQUENCE: u16 = 0x0800;
    pub(super) const OFFSET: u16 = 0x0200;
    pub(super) const VERSION: u16 = 0x000f;
}
/// Possible lengths in bytes of the L2TP cookie and the sublayer header together. The data packets
/// of a session do not state this length (RFC 3931, 4.1 and 4.6).
const L2TP_COOKIES: [usize; 4] = [0, 4, 8, 12];
/// The upper four bits of a pseudowire's control word (RFC 4385, 3).
const CONTROL_WORD: u8 = 0;
const CONTROL_WORD_BYTES: usize = 4;

impl Walk<'_> {
    /// Reads a VXLAN header (RFC 7348, 5): flags, a reserved field, the network identifier, a
    /// reserved field.
    pub(super) fn vxlan(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Vxlan)?;
        if header[0] & VXLAN_VALID == 0 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Vxlan, Some(be32(header, 4) >> 8));
        Ok(Step::Ethernet)
    }

    pub(super) fn vxlan_gpe(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::VxlanGpe)?;
        let id = (header[0] & VXLAN_VALID != 0).then_some(be32(header, 4) >> 8);
        self.enter(HeaderKind::VxlanGpe, id);
        if header[0] & TYPED == 0 { Ok(Step::Ethernet) } else { of_next_protocol(header[3]) }
    }

    /// Reads an NSH header (RFC 8300, 2): version, flags, length, metadata type, payload type,
    /// service path, metadata.
    pub(super) fn nsh(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Nsh)?;
        let words = be16(header, 0) & NSH_WORDS;
        if header[0] & NSH_VERSION != 0 || words < NSH_WORDS_MIN {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Nsh, Some(be32(header, 4) >> 8));
        self.skip(usize::from(words - NSH_WORDS_MIN) * 4);
        of_next_protocol(header[3])
    }

    /// Reads a LISP header (RFC 9300, 5.3): flags, nonce, instance identifier, status bits, then
    /// IP.
    pub(super) fn lisp(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Lisp)?;
        if header[0] & LISP_KEY != 0 {
            return Err(End::Encrypted);
        }
        self.enter(HeaderKind::Lisp, (header[0] & LISP_INSTANCE != 0).then_some(be32(header, 4) >> 8));
        if header[0] & TYPED == 0 { Ok(Step::Ip) } else { of_next_protocol(header[3]) }
    }

    /// Reads a GUE header (draft-ietf-intarea-gue, 3): version, control flag, length, IP protocol,
    /// flags, optional fields.
    pub(super) fn gue(&mut self) -> Result<Step, End> {
        let [first] = *self.peek::<1>().ok_or(End::Truncated)?;
        if first & GUE_VERSION == GUE_BARE {
            self.note(HeaderKind::Gue, self.offset())?;
            self.enter(HeaderKind::Gue, None);
            return Ok(Step::Ip);
        }
        let header = self.take::<4>(HeaderKind::Gue)?;
        if first & GUE_VERSION != 0 {
            return Err(End::Malformed);
        }
        if first & GUE_CONTROL != 0 {
            return Err(End::Complete);
        }
        self.skip(usize::from(first & GUE_WORDS) * 4);
        self.enter(HeaderKind::Gue, None);
        self.inner(header[1], End::UnknownPayload)
    }

    /// Reads an L2TP header. Version 2 (RFC 2661, 3.1): flags and version, length, tunnel, session,
    /// sequence numbers, padding, then PPP. Version 3 (RFC 3931, 4.1.2.1): flags and version,
    /// reserved, session.
    pub(super) fn l2tp_in_udp(&mut self) -> Result<Step, End> {
        let header = self.take::<2>(HeaderKind::L2tp)?;
        let flags = be16(header, 0);
        if flags & l2tp::CONTROL != 0 {
            return Err(End::Complete);
        }
        match flags & l2tp::VERSION {
            2 => {}
            3 => {
                self.skip(2);
                return self.l2tp_session();
            }
            _ => return Err(End::Malformed),
        }
        self.skip(if flags & l2tp::LENGTH != 0 { 2 } else { 0 });
        let ids = be32(self.peek::<4>().ok_or(End::Truncated)?, 0);
        self.skip(if flags & l2tp::SEQUENCE != 0 { 8 } else { 4 });
        if flags & l2tp::OFFSET != 0 {
            let padding = be16(self.peek::<2>().ok_or(End::Truncated)?, 0);
            self.skip(2 + usize::from(padding));
        }
        self.enter(HeaderKind::L2tp, Some(ids));
        Ok(Step::Ppp)
    }

    /// Reads L2TP in IP (RFC 3931, 4.1.1). An L2TP control message has the session number 0.
    pub(super) fn l2tp_in_ip(&mut self) -> Result<Step, End> {
        self.note(HeaderKind::L2tp, self.offset())?;
        match self.peek::<4>() {
            Some([0, 0, 0, 0]) => Err(End::Complete),
            _ => self.l2tp_session(),
        }
    }

    /// Reads a session of L2TP version 3: the session number, cookie and sublayer header, then
    /// Ethernet or PPP.
    fn l2tp_session(&mut self) -> Result<Step, End> {
        let session = be32(self.peek::<4>().ok_or(End::Truncated)?, 0);
        self.skip(4);
        self.enter(HeaderKind::L2tp, Some(session));
        for cookie in L2TP_COOKIES {
            let at = self.offset() + cookie;
            if self.is_ethernet(at) {
                self.skip(cookie);
                return Ok(Step::Ethernet);
            }
            let is_ppp = |start: &[u8; 4]| {
                start[..2] == ppp::IN_HDLC && matches!(be16(start, 2), ppp::IPV4 | ppp::IPV6 | ppp::MPLS)
            };
            if self.peek_at::<4>(at).is_some_and(is_ppp) {
                self.skip(cookie);
                return Ok(Step::Ppp);
            }
        }
        Err(End::UnknownPayload)
    }

    /// Reads MikroTik's Ethernet over IP: a length and the little-endian tunnel identifier, then an
    /// Ethernet frame.
    pub(super) fn eoip(&mut self) -> Result<Step, End> {
        let header = self.take::<4>(HeaderKind::Eoip)?;
        self.enter(HeaderKind::Eoip, Some(u16::from_le_bytes([header[2], header[3]]).into()));
        Ok(Step::Ethernet)
    }

    /// Reads a pseudowire (RFC 4448). MPLS does not state whether a control word precedes the
    /// pseudowire's Ethernet frame.
    pub(super) fn pseudowire(&mut self) -> Result<Step, End> {
        let Some([first]) = self.peek::<1>() else { return Err(End::Truncated) };
        if first >> 4 == CONTROL_WORD && self.is_ethernet(self.offset() + CONTROL_WORD_BYTES) {
            self.take::<CONTROL_WORD_BYTES>(HeaderKind::ControlWord)?;
            return Ok(Step::Ethernet);
        }
        if self.is_ethernet(self.offset()) { Ok(Step::Ethernet) } else { Err(End::UnknownPayload) }
    }

    /// Returns true if the bytes from `at` on may be an Ethernet frame: the source address is not a
    /// group address, and if the EtherType is known, the payload matches it.
    pub(super) fn is_ethernet(&self, at: usize) -> bool {
        let Some(header) = self.peek_at::<{ ethernet::BYTES + 1 }>(at) else { return false };
        let payload = header[ethernet::BYTES];
        let is_station = header[ethernet::ADDRESS_BYTES] & 1 == 0;
        is_station
            && match be16(header, ethernet::TYPE_AT) {
                ethertype::IPV4 => payload >> 4 == 4 && payload >= ipv4::PLAIN,
                ethertype::IPV6 => payload >> 4 == 6,
                ethertype::VLAN | ethertype::VLAN_SERVICE | ethertype::VLAN_QINQ => true,
                ethertype::ARP | ethertype::MPLS | ethertype::PPPOE_SESSION | ethertype::BACKBONE => true,
                _ => false,
            }
    }
}

fn of_next_protocol(number: u8) -> Result<Step, End> {
    match number {
        next_protocol::IPV4 => Ok(Step::Ipv4),
        next_protocol::IPV6 => Ok(Step::Ipv6),
        next_protocol::ETHERNET => Ok(Step::Ethernet),
        next_protocol::NSH => Ok(Step::EtherType(ethertype::NSH)),
        next_protocol::MPLS => Ok(Step::Mpls),
        _ => Err(End::UnknownPayload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissect::{Dissection, Layers, dissect, flow_key};
    use crate::link_type::LinkType;
    use crate::wire::{FrameBuilder, port, protocol};

    const FLOW: &str = "udp 10.1.1.1:1111 > 10.1.1.2:2222";

    fn inner() -> Vec<u8> {
        FrameBuilder::udp(([10, 1, 1, 1], 1111), ([10, 1, 1, 2], 2222)).frame(b"data")
    }

    fn read(frame: &[u8]) -> Dissection {
        let found = dissect(frame, LinkType::ETHERNET, Layers::Inner);
        assert_eq!(flow_key(frame, LinkType::ETHERNET, Layers::Inner), found.flow());
        for length in 0..frame.len() {
            let _ = dissect(&frame[..length], LinkType::ETHERNET, Layers::Inner);
        }
        found
    }

    fn in_udp(ports: (u16, u16), header: &[u8], payload: &[u8]) -> Dissection {
        let outer = FrameBuilder::udp(([192, 0, 2, 1], ports.0), ([192, 0, 2, 2], ports.1));
        read(&outer.frame(&[header, payload].concat()))
    }

    fn in_ip(protocol: u8, header: &[u8], payload: &[u8]) -> Dissection {
        let mut frame = FrameBuilder::udp(([192, 0, 2, 1], 0), ([192, 0, 2, 2], 0)).frame(b"");
        frame.truncate(ethernet::BYTES + ipv4::BYTES);
        frame[ethernet::BYTES + ipv4::PROTOCOL_AT] = protocol;
        read(&[&frame, header, payload].concat())
    }

    fn assert_inside(found: &Dissection, kind: HeaderKind, id: Option<u32>) {
        assert_eq!((found.key.to_string().as_str(), found.end), (FLOW, End::Complete), "{kind}");
        assert_eq!(found.tunnel.map(|tunnel| (tunnel.kind, tunnel.id)), Some((kind, id)));
    }

    #[test]
    fn vxlan_on_all_its_ports() {
        let header = [8, 0, 0, 0, 0, 0, 42, 0];
        for port in [port::VXLAN, port::VXLAN_LINUX] {
            assert_inside(&in_udp((50_000, port), &header, &inner()), HeaderKind::Vxlan, Some(42));
        }
        let (frame, packet) = (inner(), inner()[ethernet::BYTES..].to_vec());
        let nsh = |next: u8| [[0x0f, 0xc6, 1, next, 0, 0, 7, 255], [9; 8], [9; 8]].concat();
        let gpe = |flags: u8, next: u8| [flags, 0, 0, next, 0, 0, 42, 0];
        let found = |flags, next, payload: &[u8]| in_udp((50_000, port::VXLAN_GPE), &gpe(flags, next), payload);
        assert_inside(&found(0x0c, 1, &packet), HeaderKind::VxlanGpe, Some(42));
        assert_inside(&found(0x0c, 3, &frame), HeaderKind::VxlanGpe, Some(42));
        assert_inside(&found(0x08, 0, &frame), HeaderKind::VxlanGpe, Some(42));
        assert_inside(&found(0x0c, 4, &[nsh(3), frame].concat()), HeaderKind::Nsh, Some(7));
        assert_inside(&found(0x0c, 4, &[nsh(4), nsh(1), packet].concat()), HeaderKind::Nsh, Some(7));
        assert_eq!(found(0x0c, 9, &[]).end, End::UnknownPayload);
        let deep = in_udp((50_000, port::VXLAN_GPE), &gpe(0x0c, 4), &[nsh(4).repeat(40), inner()].concat());
        assert_eq!((deep.end, deep.key.to_string().as_str()), (End::TooDeep, "udp 192.0.2.1:50000 > 192.0.2.2:4790"));
    }

    #[test]
    fn nsh_below_ethernet() {
        let frame = [&inner()[..12], &ethertype::NSH.to_be_bytes(), &[0, 2, 1, 3, 0, 1, 0, 255], &inner()].concat();
        assert_inside(&read(&frame), HeaderKind::Nsh, Some(256));
    }

    #[test]
    fn l2tp_of_both_versions() {
        let packet = inner()[ethernet::BYTES..].to_vec();
        let ppp = [&[0xff, 3, 0, 0x21], &packet[..]].concat();
        let id = Some(7 << 16 | 9);
        for (header, ports) in [
            (&[0, 2, 0, 7, 0, 9][..], (1701, 1701)),
            (&[0x40, 2, 0, 99, 0, 7, 0, 9], (1701, 40_000)),
            (&[0x4a, 2, 0, 99, 0, 7, 0, 9, 0, 1, 0, 2, 0, 3, 1, 1, 1], (40_000, 1701)),
        ] {
            assert_inside(&in_udp(ports, header, &ppp), HeaderKind::L2tp, id);
        }
        assert_eq!(in_udp((1701, 1701), &[0xc8, 2, 0, 12], &[0; 8]).end, End::Complete);
        let session = [0, 0, 1, 0];
        for cookie in L2TP_COOKIES {
            let header = [&session[..], &[0x33; 12][..cookie]].concat();
            for payload in [&inner()[..], &ppp] {
                assert_inside(&in_ip(protocol::L2TP, &header, payload), HeaderKind::L2tp, Some(256));
                let header = [&[0, 3, 0, 0], &header[..]].concat();
                assert_inside(&in_udp((1701, 1701), &header, payload), HeaderKind::L2tp, Some(256));
            }
        }
        assert_eq!(in_ip(protocol::L2TP, &[0; 4], &inner()).end, End::Complete);
        assert_eq!(in_ip(protocol::L2TP, &session, &[0; 40]).end, End::UnknownPayload);
    }

    #[test]
    fn lisp_and_gue() {
        let (frame, packet) = (inner(), inner()[ethernet::BYTES..].to_vec());
        let lisp = |flags: u8, next: u8| [flags, 0, 0, next, 0, 0, 42, 1];
        assert_inside(&in_udp((50_000, port::LISP), &lisp(0xc8, 0), &packet), HeaderKind::Lisp, Some(42));
        assert_inside(&in_udp((50_000, port::LISP), &lisp(0x40, 0), &packet), HeaderKind::Lisp, None);
        assert_inside(&in_udp((50_000, port::LISP), &lisp(0x04, 3), &frame), HeaderKind::Lisp, None);
        for key in 1..=3 {
            let found = in_udp((50_000, port::LISP), &lisp(0xc8 | key, 0), &packet);
            let outer = "udp 192.0.2.1:50000 > 192.0.2.2:4341";
            assert_eq!((found.end, found.key.to_string().as_str()), (End::Encrypted, outer));
        }
        let gue = |header: &[u8], payload: &[u8]| in_udp((50_000, port::GUE), header, payload);
        assert_inside(&gue(&[0, protocol::IPV4, 0, 0], &packet), HeaderKind::Gue, None);
        assert_inside(&gue(&[2, protocol::ETHERNET, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9], &frame), HeaderKind::Gue, None);
        assert_inside(&gue(&[], &packet), HeaderKind::Gue, None);
        assert_eq!(gue(&[0x20, 1, 0, 0], &packet).end, End::Complete);
        let bare = gue(&[0, protocol::TCP, 0, 0], &[0; 40]);
        assert_eq!(
            (bare.end, bare.key.to_string().as_str()),
            (End::UnknownPayload, "udp 192.0.2.1:50000 > 192.0.2.2:6080")
        );
    }

    #[test]
    fn ethernet_over_mikrotik_and_mpls() {
        let header = [0x20, 1, 0x64, 0, 0, 60, 5, 1];
        assert_inside(&in_ip(protocol::GRE, &header, &inner()), HeaderKind::Eoip, Some(0x0105));
        let below = |labels: &[u8], payload: &[u8]| {
            read(&[&inner()[..12], &ethertype::MPLS.to_be_bytes(), labels, payload].concat())
        };
        let labels = [0, 1, 0, 64, 0, 1, 0x11, 64];
        assert_inside(&below(&labels, &inner()), HeaderKind::Mpls, Some(17));
        let found = below(&labels, &[&[0, 0, 0, 1], &inner()[..]].concat());
        assert_inside(&found, HeaderKind::Mpls, Some(17));
        assert!(found.headers().any(|header| header.kind == HeaderKind::ControlWord));
        let other = below(&labels, &[0; 60]);
        assert_eq!((other.end, other.is_flow), (End::UnknownPayload, false));
    }

    #[test]
    fn ethernet_or_ip_below_mpls() {
        let below = |payload: &[u8]| {
            read(&[&inner()[..12], &ethertype::MPLS.to_be_bytes(), &[0, 1, 0x11, 64], payload].concat())
        };
        for first in (0x40..=0x4f).chain(0x60..=0x6f) {
            for last in [0, 1, 0x14, 0xff] {
                let mut frame = inner();
                frame[..6].copy_from_slice(&[first, 1, 2, 3, 0, last]);
                assert_inside(&below(&frame), HeaderKind::Mpls, Some(17));
            }
        }
        for source in [[129, 0, 1, 1], [8, 6, 1, 1], [136, 71, 1, 1], [8, 0, 0x45, 1]] {
            let frame = FrameBuilder::tcp((source, 1), ([10, 1, 1, 2], 2)).frame(b"data");
            let [a, b, c, d] = source;
            assert_eq!(below(&frame[ethernet::BYTES..]).key.to_string(), format!("tcp {a}.{b}.{c}.{d}:1 > 10.1.1.2:2"));
        }
        let source = [0x2001, 0xdb8, 0x8100, 0, 0, 0, 0, 1];
        let frame = FrameBuilder::tcp((source, 1), ([0x2001, 0, 0, 0, 0, 0, 0, 2], 2)).frame(b"data");
        for trailer in [0, 4] {
            let packet = [&frame[ethernet::BYTES..], &[0; 4][..trailer]].concat();
            assert_eq!(below(&packet).key.to_string(), "tcp [2001:db8:8100::1]:1 > [2001::2]:2");
        }
    }
}
