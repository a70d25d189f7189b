//! Reads the headers of mirrored packets, redirected packets and Teredo, and returns the step that
//! reads the payload.

use super::dissection::{End, HeaderKind};
use super::walk::{Step, Walk};
use crate::limits::TZSP_TAGS_MAX;
use crate::wire::{be16, be32};

const ERSPAN_2: u8 = 1;
const ERSPAN_3: u8 = 2;
const ERSPAN_SESSION: u32 = 0x03ff;
/// Bits of an ERSPAN type III header: the payload's type, and a flag for another 8 bytes of header.
const ERSPAN_FRAME: u16 = 0x7c00;
const ERSPAN_IP: u16 = 2 << 10;
const ERSPAN_MORE: u16 = 0x0001;

/// The first bytes of Teredo's two optional headers, which RFC 4380, 5.1.1 calls "indications".
const TEREDO_AUTHENTICATION: [u8; 2] = [0, 1];
const TEREDO_ORIGIN: [u8; 2] = [0, 0];
/// A Teredo authentication header has 4 bytes, two fields of variable length, a nonce and a
/// confirmation byte. A Teredo origin header has a port and an address.
const TEREDO_AUTHENTICATION_LEN: usize = 4;
const TEREDO_NONCE_LEN: usize = 8 + 1;
const TEREDO_ORIGIN_LEN: usize = 8;

/// The first byte of a CAPWAP header of version 0 (RFC 5415, 4.1).
const CAPWAP_CLEAR: u8 = 0;
const CAPWAP_DTLS: u8 = 1;
/// CAPWAP flags: the payload is an 802.11 frame; the payload is a fragment.
const CAPWAP_NATIVE: u32 = 0x0100;
const CAPWAP_FRAGMENT: u32 = 0x0080;

const TZSP_VERSION: u8 = 1;
const TZSP_RECEIVED: u8 = 0;
const TZSP_TO_SEND: u8 = 1;
const TZSP_ETHERNET: u16 = 1;
const TZSP_PADDING: u8 = 0;
const TZSP_END: u8 = 1;

impl Walk<'_> {
    /// Reads an ERSPAN type II header (draft-foschiano-erspan, 4.2): version, VLAN, class and
    /// flags, session, index.
    pub(super) fn erspan_2(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Erspan)?;
        if header[0] >> 4 != ERSPAN_2 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Erspan, Some(be32(header, 0) & ERSPAN_SESSION));
        Ok(Step::Ethernet)
    }

    /// Reads an ERSPAN type III header (draft-foschiano-erspan, 4.3): the fields of type II, a
    /// time, a group tag, and further fields.
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

    /// WCCP version 2 adds a header of four bytes before the IPv4 packet, but has the GRE protocol
    /// type of version 1. Only the first byte after the GRE header distinguishes WCCP version 1
    /// from version 2.
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

    /// Reads a Teredo packet (RFC 4380, 5.1.1): at most one authentication and one origin header,
    /// then an IPv6 packet.
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

    /// Reads a CAPWAP header (RFC 5415, 4.3). Frames of 802.11 are not read. All CAPWAP fragments
    /// have the key of the tunnel's own flow, because only the first fragment contains the inner
    /// ports.
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

    /// Reads a TZSP header: version, packet type, frame type, tags up to an end tag, and the frame.
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
