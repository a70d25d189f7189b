//! Reads tunnel headers after IP and UDP, and returns the step that reads the payload.

use super::dissection::{End, HeaderKind};
use super::walk::{Step, Walk};
use crate::limits::GTP_EXTENSIONS_MAX;
use crate::wire::{be16, be32, ethertype, gre as protocol_type};

/// Flags and version of GRE (RFC 2784, RFC 2890, RFC 1701, RFC 2637).
pub(super) mod gre {
    pub(in crate::dissect) const CHECKSUM: u16 = 0x8000;
    pub(in crate::dissect) const ROUTING: u16 = 0x4000;
    pub(in crate::dissect) const KEY: u16 = 0x2000;
    pub(in crate::dissect) const SEQUENCE: u16 = 0x1000;
    pub(in crate::dissect) const ACKNOWLEDGEMENT: u16 = 0x0080;
    pub(in crate::dissect) const VERSION: u16 = 0x0007;
}

/// Version 1 of GTP, and the bit that distinguishes GTP from GTP' (3GPP TS 29.281, 5.1).
const GTP_VERSION: u8 = 0x30;
const GTP_VERSION_MASK: u8 = 0xf0;
/// If one of the fields for extension header, sequence number and N-PDU number is present, all
/// three are present.
const GTP_OPTIONS: u8 = 0x07;
const GTP_EXTENSION: u8 = 0x04;
const GTP_PDU: u8 = 255;
/// EtherIP, version 3 (RFC 3378).
const ETHERIP_VERSION: u16 = 0x3000;

impl Walk<'_> {
    pub(super) fn gre(&mut self) -> Result<Step, End> {
        let header = self.take::<4>(HeaderKind::Gre)?;
        let (flags, ethertype) = (be16(header, 0), be16(header, 2));
        match flags & gre::VERSION {
            // Routing entries (RFC 1701, removed by RFC 2784) are not read: their list may have any
            // length.
            0 if flags & gre::ROUTING == 0 => {}
            1 if flags & gre::KEY != 0 && ethertype == ethertype::PPP => return self.pptp(flags),
            1 if flags & gre::KEY != 0 && ethertype == protocol_type::EOIP => return self.eoip(),
            _ => return Err(End::Malformed),
        }
        let words = |flag| usize::from(flags & flag != 0) * 4;
        self.skip(words(gre::CHECKSUM));
        let mut key = None;
        if flags & gre::KEY != 0 {
            key = Some(be32(self.peek::<4>().ok_or(End::Truncated)?, 0));
        }
        self.skip(words(gre::KEY) + words(gre::SEQUENCE));
        self.enter(HeaderKind::Gre, key);
        match ethertype {
            // ERSPAN type I has no header of its own, and no GRE sequence number.
            protocol_type::ERSPAN if flags & gre::SEQUENCE == 0 => Ok(Step::Ethernet),
            protocol_type::ERSPAN => self.erspan_2(),
            protocol_type::ERSPAN_3 => self.erspan_3(),
            protocol_type::WCCP => self.wccp(),
            other => Ok(Step::EtherType(other)),
        }
    }

    /// Reads PPP in GRE version 1 (RFC 2637, 4.1): a length and a call identifier, and a sequence
    /// number if there is a payload.
    fn pptp(&mut self, flags: u16) -> Result<Step, End> {
        let call = be16(self.peek::<4>().ok_or(End::Truncated)?, 2);
        self.skip(4);
        self.enter(HeaderKind::Gre, Some(call.into()));
        if flags & gre::SEQUENCE == 0 {
            return Err(End::Complete);
        }
        self.skip(if flags & gre::ACKNOWLEDGEMENT != 0 { 8 } else { 4 });
        Ok(Step::Ppp)
    }

    pub(super) fn ether_ip(&mut self) -> Result<Step, End> {
        let header = self.take::<2>(HeaderKind::EtherIp)?;
        if be16(header, 0) != ETHERIP_VERSION {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::EtherIp, None);
        Ok(Step::Ethernet)
    }

    /// Reads a Geneve header (RFC 8926, 3.4): version, length of the options in units of four
    /// bytes, flags, EtherType, identifier.
    pub(super) fn geneve(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::Geneve)?;
        if header[0] >> 6 != 0 {
            return Err(End::Malformed);
        }
        self.enter(HeaderKind::Geneve, Some(be32(header, 4) >> 8));
        self.skip(usize::from(header[0] & 0x3f) * 4);
        Ok(Step::EtherType(be16(header, 2)))
    }

    /// Reads a GTP-U header (3GPP TS 29.281, 5): flags, type, length, endpoint identifier, options,
    /// extension headers. Each extension header begins with its length in units of four bytes, and
    /// ends with the type of the next extension header.
    pub(super) fn gtp_u(&mut self) -> Result<Step, End> {
        let header = self.take::<8>(HeaderKind::GtpU)?;
        if header[0] & GTP_VERSION_MASK != GTP_VERSION {
            return Err(End::Malformed);
        }
        if header[1] != GTP_PDU {
            return Err(End::Complete);
        }
        self.enter(HeaderKind::GtpU, Some(be32(header, 4)));
        if header[0] & GTP_OPTIONS == 0 {
            return Ok(Step::Ip);
        }
        let options = self.peek::<4>().ok_or(End::Truncated)?;
        self.skip(4);
        let mut next = if header[0] & GTP_EXTENSION != 0 { options[3] } else { 0 };
        for _ in 0..GTP_EXTENSIONS_MAX {
            if next == 0 {
                break;
            }
            let [words] = *self.peek::<1>().ok_or(End::Truncated)?;
            if words == 0 {
                return Err(End::Malformed);
            }
            self.skip(usize::from(words) * 4 - 1);
            [next] = *self.peek::<1>().ok_or(End::Truncated)?;
            self.skip(1);
        }
        if next == 0 { Ok(Step::Ip) } else { Err(End::TooDeep) }
    }
}
