//! Reads the headers that devices on a packet's path add to the packet, for mirroring, redirection
//! or Teredo tunnels. Each function reads one header, and returns the step for the header's
//! payload.

use super::dissection::{End, HeaderKind};
use super::walk::{Step, Walk};
use crate::limits::TZSP_TAGS_MAX;
use crate::wire::{be16, be32};

/// The version numbers in the upper four bits of an ERSPAN header: 1 for type II, and 2 for type
/// III.
const ERSPAN_2: u8 = 1;
const ERSPAN_3: u8 = 2;
/// The session identifier in the second half of an ERSPAN header's first 32 bits.
const ERSPAN_SESSION: u32 = 0x03ff;
/// Bits of an ERSPAN type III header: the type of the payload (Ethernet or IP), and a flag that
/// says that the header has another 8 bytes.
const ERSPAN_FRAME: u16 = 0x7c00;
const ERSPAN_IP: u16 = 2 << 10;
const ERSPAN_MORE: u16 = 0x0001;

/// The first two bytes of the two optional Teredo headers (authentication, and origin of a packet).
/// RFC 4380, 5.1.1, calls these headers indications.
const TEREDO_AUTHENTICATION: [u8; 2] = [0, 1];
const TEREDO_ORIGIN: [u8; 2] = [0, 0];
/// A Teredo authentication header begins with 4 bytes, followed by two fields of variable length. A
/// nonce and a confirmation byte follow the two fields of variable length. A Teredo origin header
/// contains a port and an address.
const TEREDO_AUTHENTICATION_LEN: usize = 4;
const TEREDO_NONCE_LEN: usize = 8 + 1;
const TEREDO_ORIGIN_LEN: usize = 8;

/// The first byte of an unencrypted CAPWAP header, which means version 0 (RFC 5415, 4.1).
const CAPWAP_CLEAR: u8 = 0;
const CAPWAP_DTLS: u8 = 1;
/// Flags in the first 32 bits of a CAPWAP header. One flag means that the payload is an 802.11
/// frame. The other flag means that the payload is a fragment.
const CAPWAP_NATIVE: u32 = 0x0100;
const CAPWAP_FRAGMENT: u32 = 0x0080;

/// Constants of TZSP: version 1, the types of the packets that contain a frame, the number for
/// Ethernet frames, and the tags that have no length byte.
const TZSP_VERSION: u8 = 1;
const TZSP_RECEIVED: u8 = 0;
const TZSP_TO_SEND: u8 = 1;
const TZSP_ETHERNET: u16 = 1;
const TZSP_PADDING: u8 = 0;
const TZSP_END: u8 = 1;

impl Walk<'_> {
    /// draft-foschiano-erspan, 4.2: the ERSPAN header of type II consists of version, VLAN, class
    /// and flags, session, and an index.
    pub(super) fn erspan_2(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Erspan)?;
        if header[0] >> 4 != ERSPAN_2 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Erspan, Some(be32(header, 0) & ERSPAN_SESSION));
        Ok(Step::Ethernet)
    }

    /// draft-foschiano-erspan, 4.3: the ERSPAN header of type III consists of the fields of type
    /// II, a time, a group tag, and further fields.
    pub(super) fn erspan_3(&mut self) -> Result<Step, End> {
        let header = self.take::<12>(HeaderKind::Erspan)?;
        if header[0] >> 4 != ERSPAN_3 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Erspan, Some(be32(header, 0) & ERSPAN_SESSION));
        let flags = be16(header, 10);
        self.skip(if flags & ERSPAN_MORE != 0 { 8 } else { 0 });
        match flags & ERSPAN_FRAME {
            0 => Ok(Step::Ethernet),
            ERSPAN_IP => Ok(Step::Ip),
            _ => Err(End::UnknownPayload),
        }
    }

    /// WCCP contains an IPv4 packet. Version 2 of WCCP adds a header of four bytes before the IPv4
    /// packet, but has the same GRE protocol type as version 1. The first byte after the GRE header
    /// distinguishes the two versions of WCCP.
    pub(super) fn wccp(&mut self) -> Result<Step, End> {
        match self.peek::<1>() {
            None => return Err(End::Truncated),
            Some([byte]) if byte >> 4 == 4 => {}
            Some(_) => {
                self.take::<4>(HeaderKind::Wccp)?;
            }
        }
        self.enter(HeaderKind::Wccp, None);
        Ok(Step::Ip)
    }

    /// RFC 4380, 5.1.1: a Teredo packet has at most one authentication header and one origin
    /// header, followed by an IPv6 packet.
    pub(super) fn teredo(&mut self) -> Result<Step, End> {
        let start = self.offset();
        if self.peek() == Some(&TEREDO_AUTHENTICATION) {
            let [_, _, client, value] = *self.peek::<TEREDO_AUTHENTICATION_LEN>().ok_or(End::Truncated)?;
            self.skip(TEREDO_AUTHENTICATION_LEN + usize::from(client) + usize::from(value) + TEREDO_NONCE_LEN);
        }
        if self.peek() == Some(&TEREDO_ORIGIN) {
            self.skip(TEREDO_ORIGIN_LEN);
        }
        match self.peek::<1>() {
            None => Err(End::Truncated),
            Some([byte]) if byte >> 4 == 6 => {
                self.note(HeaderKind::Teredo, start)?;
                self.enter(HeaderKind::Teredo, None);
                Ok(Step::Ipv6)
            }
            Some(_) => Err(End::UnknownPayload),
        }
    }

    /// RFC 5415, 4.3: the CAPWAP header contains its length in units of four bytes, the payload's
    /// type, and the fragment flag. Only CAPWAP payloads that are Ethernet frames are read, not
    /// 802.11 frames. All CAPWAP fragments have the flow key of the tunnel's own flow, because only
    /// the first fragment contains the inner ports.
    pub(super) fn capwap(&mut self) -> Result<Step, End> {
        let start = self.offset();
        match self.peek::<1>() {
            None => return Err(End::Truncated),
            Some([CAPWAP_CLEAR]) => {}
            Some([CAPWAP_DTLS]) => return Err(End::Encrypted),
            Some(_) => return Err(End::Malformed),
        }
        let header = self.take::<8>(HeaderKind::Capwap)?;
        let word = be32(header, 0);
        let header_len = 4 * (word >> 19 & 0x1f) as usize;
        if header_len < 8 {
            return Err(End::Malformed);
        }
        self.skip(start + header_len - self.offset());
        if word & (CAPWAP_NATIVE | CAPWAP_FRAGMENT) != 0 {
            return Err(End::UnknownPayload);
        }
        self.enter(HeaderKind::Capwap, None);
        Ok(Step::Ethernet)
    }

    /// A TZSP header contains the version, the packet type, and the type of the encapsulated frame.
    /// In a TZSP header, tags up to an end tag follow the three fixed fields. The encapsulated
    /// frame follows the end tag.
    pub(super) fn tzsp(&mut self) -> Result<Step, End> {
        let header = self.take::<4>(HeaderKind::Tzsp)?;
        if header[0] != TZSP_VERSION {
            return Err(End::Malformed);
        }
        if !matches!(header[1], TZSP_RECEIVED | TZSP_TO_SEND) {
            return Err(End::Complete);
        }
        if be16(header, 2) != TZSP_ETHERNET {
            return Err(End::UnknownPayload);
        }
        for _ in 0..TZSP_TAGS_MAX {
            let [tag] = *self.peek::<1>().ok_or(End::Truncated)?;
            self.skip(1);
            match tag {
                TZSP_END => {
                    self.enter(HeaderKind::Tzsp, None);
                    return Ok(Step::Ethernet);
                }
                TZSP_PADDING => {}
                _ => {
                    let [len] = *self.peek::<1>().ok_or(End::Truncated)?;
                    self.skip(1 + usize::from(len));
                }
            }
        }
        Err(End::TooDeep)
    }
}
