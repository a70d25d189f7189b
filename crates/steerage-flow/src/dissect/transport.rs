//! The headers above IP: ports and ICMP.

use super::bytes::be16;
use super::dissection::{End, HeaderKind};
use super::numbers::port;
use super::walk::{Step, Walk};

/// The length without options.
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;
const SCTP_LEN: usize = 12;
/// The length of the ICMP header before the packet that an error quotes (RFC 792, RFC 4443).
const ICMP_LEN: usize = 8;
/// The length of the source and destination ports, with which TCP, UDP and SCTP begin.
pub(super) const PORTS_LEN: usize = 4;

/// ICMP types that quote a packet: unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// ICMP types that have an identifier, requests and replies: echo, timestamp, information (RFC 792), address mask
/// (RFC 950), extended echo (RFC 8335).
const ICMP_QUERIES: [u8; 10] = [0, 8, 13, 14, 15, 16, 17, 18, 42, 43];
/// ICMPv6 types that quote a packet: unreachable, packet too big, time exceeded, parameter problem (RFC 4443).
const ICMP6_ERRORS: [u8; 4] = [1, 2, 3, 4];
/// ICMPv6 types that have an identifier: echo (RFC 4443), extended echo (RFC 8335).
const ICMP6_QUERIES: [u8; 4] = [128, 129, 160, 161];

impl Walk<'_> {
    pub(super) fn tcp(&mut self) -> Result<Step, End> {
        self.ports(HeaderKind::Tcp)?;
        if self.quoting {
            return Err(End::Complete);
        }
        let header = self.peek::<{ TCP_LEN - PORTS_LEN }>().ok_or(End::Truncated)?;
        self.out.tcp_flags = Some(be16(header, 8) & 0x1ff);
        let header_len = usize::from(header[8] >> 4) * 4;
        if header_len < TCP_LEN {
            return Err(End::Malformed);
        }
        self.payload_at(header_len)
    }

    pub(super) fn udp(&mut self) -> Result<Step, End> {
        let (source, destination) = self.ports(HeaderKind::Udp)?;
        if self.quoting {
            return Err(End::Complete);
        }
        if self.peek::<{ UDP_LEN - PORTS_LEN }>().is_none() {
            return Err(End::Truncated);
        }
        let Some(tunnel) = port::of_tunnel(source, destination).filter(|_| !self.stays_outside()) else {
            return self.payload_at(UDP_LEN);
        };
        self.out.payload_offset = Some((self.offset() - PORTS_LEN + UDP_LEN) as u32);
        self.skip(UDP_LEN - PORTS_LEN);
        match tunnel {
            port::VXLAN => self.vxlan(),
            port::GENEVE => self.geneve(),
            port::GTP_U => self.gtp_u(),
            port::GRE => self.gre(),
            port::TEREDO => self.teredo(),
            port::CAPWAP => self.capwap(),
            port::TZSP => self.tzsp(),
            _ => Ok(Step::Mpls),
        }
    }

    pub(super) fn sctp(&mut self) -> Result<Step, End> {
        self.ports(HeaderKind::Sctp)?;
        self.payload_at(SCTP_LEN)
    }

    /// Reads the ports: source and destination.
    fn ports(&mut self, kind: HeaderKind) -> Result<(u16, u16), End> {
        let bytes = self.take::<PORTS_LEN>(kind)?;
        self.flow.ports = (be16(bytes, 0), be16(bytes, 2));
        Ok(self.flow.ports)
    }

    /// Called after the ports were read: records that the payload begins `header_len` bytes after the start of the
    /// header.
    fn payload_at(&mut self, header_len: usize) -> Result<Step, End> {
        if !self.quoting {
            self.out.payload_offset = Some((self.offset() - PORTS_LEN + header_len) as u32);
        }
        Err(End::Complete)
    }

    pub(super) fn icmp(&mut self) -> Result<Step, End> {
        self.any_icmp(HeaderKind::Icmp, &ICMP_QUERIES, &ICMP_ERRORS)
    }

    pub(super) fn icmp6(&mut self) -> Result<Step, End> {
        self.any_icmp(HeaderKind::Icmp6, &ICMP6_QUERIES, &ICMP6_ERRORS)
    }

    fn any_icmp(&mut self, kind: HeaderKind, queries: &[u8], errors: &[u8]) -> Result<Step, End> {
        let header = self.take::<ICMP_LEN>(kind)?;
        if !self.quoting {
            self.out.icmp = Some((header[0], header[1]));
        }
        if queries.contains(&header[0]) {
            self.flow.ports = (be16(header, 4), be16(header, 4));
            return Err(End::Complete);
        }
        // No error is sent about an error (RFC 1122, 3.2.2).
        if self.quoting || !errors.contains(&header[0]) {
            return Err(End::Complete);
        }
        self.quoting = true;
        if kind == HeaderKind::Icmp { Ok(Step::Ipv4) } else { Ok(Step::Ipv6) }
    }
}
