//! Reads the headers after IP: TCP, UDP and SCTP ports, and ICMP.

use super::dissection::{End, HeaderKind};
use super::ports;
use super::walk::{Step, Walk};
use crate::wire::{be16, icmp, icmp6, port, sctp, tcp, udp};

pub(super) const PORTS_LEN: usize = 4;

impl Walk<'_> {
    pub(super) fn tcp(&mut self) -> Result<Step, End> {
        self.ports(HeaderKind::Tcp)?;
        if self.quoting {
            return Err(End::Complete);
        }
        // The capture may end directly after the TCP flags.
        let flags = be16(self.peek::<{ tcp::FLAGS_AT + 2 - PORTS_LEN }>().ok_or(End::Truncated)?, 8);
        self.out.tcp_flags = Some(flags & tcp::FLAGS);
        let header_len = usize::from(flags >> 12) * 4;
        if header_len < tcp::BYTES {
            return Err(End::Malformed);
        }
        let is_whole = self.peek::<{ tcp::BYTES - PORTS_LEN }>().is_some();
        if is_whole { self.payload_at(header_len) } else { Err(End::Truncated) }
    }

    pub(super) fn udp(&mut self) -> Result<Step, End> {
        let (source, destination) = self.ports(HeaderKind::Udp)?;
        if self.quoting {
            return Err(End::Complete);
        }
        if self.peek::<{ udp::BYTES - PORTS_LEN }>().is_none() {
            return Err(End::Truncated);
        }
        let Some(tunnel) = ports::of_tunnel(source, destination).filter(|_| !self.stays_outside()) else {
            return self.payload_at(udp::BYTES);
        };
        self.out.payload_offset = Some((self.offset() - PORTS_LEN + udp::BYTES) as u32);
        self.skip(udp::BYTES - PORTS_LEN);
        match tunnel {
            port::VXLAN => self.vxlan(),
            port::VXLAN_GPE => self.vxlan_gpe(),
            port::LISP => self.lisp(),
            port::GUE => self.gue(),
            port::L2TP => self.l2tp_in_udp(),
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
        self.payload_at(sctp::BYTES)
    }

    fn ports(&mut self, kind: HeaderKind) -> Result<(u16, u16), End> {
        let bytes = self.take::<PORTS_LEN>(kind)?;
        self.flow.ports = (be16(bytes, 0), be16(bytes, 2));
        Ok(self.flow.ports)
    }

    fn payload_at(&mut self, header_len: usize) -> Result<Step, End> {
        if !self.quoting {
            self.out.payload_offset = Some((self.offset() - PORTS_LEN + header_len) as u32);
        }
        Err(End::Complete)
    }

    pub(super) fn icmp(&mut self) -> Result<Step, End> {
        self.any_icmp(HeaderKind::Icmp, &icmp::QUERIES, &icmp::ERRORS)
    }

    pub(super) fn icmp6(&mut self) -> Result<Step, End> {
        self.any_icmp(HeaderKind::Icmp6, &icmp6::QUERIES, &icmp6::ERRORS)
    }

    fn any_icmp(&mut self, kind: HeaderKind, queries: &[u8], errors: &[u8]) -> Result<Step, End> {
        let [icmp_type, code] = *self.peek().ok_or(End::Truncated)?;
        self.note(kind, self.offset())?;
        if !self.quoting {
            self.out.icmp = Some((icmp_type, code));
        }
        if queries.contains(&icmp_type) {
            let header = self.peek::<{ icmp::IDENTIFIER_AT + 2 }>().ok_or(End::Truncated)?;
            self.flow.ports = (be16(header, icmp::IDENTIFIER_AT), be16(header, icmp::IDENTIFIER_AT));
            return Err(End::Complete);
        }
        // No host sends an ICMP error about an ICMP error (RFC 1122, 3.2.2).
        if self.quoting || !errors.contains(&icmp_type) {
            return Err(End::Complete);
        }
        self.skip(icmp::BYTES);
        self.quoting = true;
        if kind == HeaderKind::Icmp { Ok(Step::Ipv4) } else { Ok(Step::Ipv6) }
    }
}
