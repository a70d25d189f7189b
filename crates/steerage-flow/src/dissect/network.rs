//! Reads the IP headers, their extension headers, and fragments.

use crate::flow_key::FlowKey;

use super::dissection::{End, Fragment, HeaderKind, IpLayer};
use super::walk::{Flow, Step, Walk};
use crate::limits::{IP_LAYERS_MAX, IPV6_EXTENSIONS_MAX};
use crate::wire::{be16, be32, ipv4, ipv6, protocol};

impl<'a> Walk<'a> {
    pub(super) fn ipv4(&mut self) -> Result<Step, End> {
        let start = self.offset();
        let header = self.begin_ip::<{ ipv4::BYTES }>(4)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        if header_len < ipv4::BYTES {
            return Err(End::Malformed);
        }
        self.take::<{ ipv4::BYTES }>(HeaderKind::Ipv4)?;
        self.skip(header_len - ipv4::BYTES);
        let protocol = header[9];
        let stated = u32::from(be16(header, 2));
        self.enter_ip(Flow { version: 4, at: start, protocol, ports: (0, 0) }, stated);

        let fragment = be16(header, 6);
        if fragment & ipv4::FRAGMENT == 0 {
            return Ok(Step::Protocol(protocol));
        }
        let [id_high, id_low] = be16(header, 4).to_be_bytes();
        let mut datagram = [0; 11];
        datagram[..8].copy_from_slice(&header[12..20]);
        datagram[8..].copy_from_slice(&[protocol, id_high, id_low]);
        let offset = u32::from(fragment & ipv4::OFFSET) * 8;
        self.fragment(Fragment {
            ip_offset: start as u32,
            id: be16(header, 4).into(),
            offset,
            bytes: stated.saturating_sub(header_len as u32),
            more: fragment & ipv4::MORE_FRAGMENTS != 0,
            datagram: FlowKey::from_bytes(&datagram),
        });
        if offset == 0 { Ok(Step::Protocol(protocol)) } else { Err(End::LaterFragment) }
    }

    pub(super) fn ipv6(&mut self) -> Result<Step, End> {
        let start = self.offset();
        let header = self.begin_ip::<{ ipv6::BYTES }>(6)?;
        self.take::<{ ipv6::BYTES }>(HeaderKind::Ipv6)?;
        let protocol = header[6];
        // The length 0 states no length, unless nothing follows the header: in a jumbogram (RFC
        // 2675), hop-by-hop options state the length, and packets that the kernel merged (BIG TCP)
        // have the length 0 even without these options.
        let stated = match be16(header, 4) {
            0 if protocol != protocol::NOTHING => 0,
            payload => ipv6::BYTES as u32 + u32::from(payload),
        };
        self.enter_ip(Flow { version: 6, at: start, protocol, ports: (0, 0) }, stated);
        Ok(Step::Protocol(protocol))
    }

    fn begin_ip<const N: usize>(&mut self, version: u8) -> Result<&'a [u8; N], End> {
        if self.depth == IP_LAYERS_MAX {
            return Err(End::TooDeep);
        }
        let header = self.peek::<N>().ok_or(End::Truncated)?;
        if header[0] >> 4 == version { Ok(header) } else { Err(End::Malformed) }
    }

    fn enter_ip(&mut self, flow: Flow, stated: u32) {
        self.extensions = 0;
        self.flow = flow;
        if self.quoting {
            self.out.is_quoted = true;
            return;
        }
        self.depth += 1;
        self.out.ip = Some(IpLayer {
            offset: flow.at as u32,
            version: flow.version,
            protocol: flow.protocol,
            stated_bytes: (stated > 0).then_some(stated),
        });
        (self.out.transport_offset, self.out.payload_offset) = (None, None);
        (self.out.tcp_flags, self.out.icmp) = (None, None);
    }

    fn addresses(&self) -> Option<&'a [u8]> {
        self.peek_at::<{ ipv6::BYTES }>(self.flow.at).map(|header| &header[8..])
    }

    fn fragment(&mut self, fragment: Fragment) {
        if self.quoting {
            return;
        }
        let [outermost, innermost] = &mut self.out.fragments;
        let place = if outermost.is_none() { outermost } else { innermost };
        *place = Some(fragment);
    }

    pub(super) fn is_extension(&self, version: u8, protocol: u8) -> bool {
        match protocol {
            protocol::AUTHENTICATION => true,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::DESTINATION | protocol::SHIM6 => {
                version == 6
            }
            _ => false,
        }
    }

    /// Reads an IPv6 extension header (RFC 8200, 4): the next header's type, and the length in
    /// units of 8 bytes, without the first 8 bytes.
    pub(super) fn extension(&mut self, protocol: u8) -> Result<Step, End> {
        // If the dissection ends at this header, the protocol in the flow key is the type of this
        // header.
        self.set_protocol(protocol);
        if self.extensions == IPV6_EXTENSIONS_MAX {
            return Err(End::TooDeep);
        }
        self.extensions += 1;
        let kind = match protocol {
            protocol::AUTHENTICATION => HeaderKind::Authentication,
            _ => HeaderKind::Ipv6Extension,
        };
        let start = self.offset();
        let header = self.take::<8>(kind)?;
        match protocol {
            protocol::FRAGMENT => return self.ipv6_fragment(header, start),
            // RFC 4302: the length of an authentication header is in units of four bytes, minus
            // two.
            protocol::AUTHENTICATION => self.skip((4 * (usize::from(header[1]) + 2)).saturating_sub(8)),
            _ => self.skip(8 * usize::from(header[1])),
        }
        Ok(Step::Protocol(header[0]))
    }

    fn ipv6_fragment(&mut self, header: &[u8; 8], start: usize) -> Result<Step, End> {
        let field = be16(header, 2);
        if field & (ipv6::OFFSET | ipv6::MORE_FRAGMENTS) == 0 {
            return Ok(Step::Protocol(header[0])); // An atomic fragment: the datagram has no other (RFC 6946).
        }
        let Some(ip) = self.out.ip else { return Err(End::Malformed) };
        let mut datagram = [0; 36];
        datagram[..32].copy_from_slice(self.addresses().ok_or(End::Truncated)?);
        datagram[32..].copy_from_slice(&header[4..]);
        let offset = u32::from(field & ipv6::OFFSET);
        self.fragment(Fragment {
            ip_offset: ip.offset,
            id: be32(header, 4),
            offset,
            bytes: ip.stated_bytes.unwrap_or(0).saturating_sub(start as u32 + 8 - ip.offset),
            more: field & ipv6::MORE_FRAGMENTS != 0,
            datagram: FlowKey::from_bytes(&datagram),
        });
        if offset == 0 {
            return Ok(Step::Protocol(header[0]));
        }
        self.set_protocol(header[0]);
        Err(End::LaterFragment)
    }

    pub(super) fn set_protocol(&mut self, protocol: u8) {
        self.flow.protocol = protocol;
        if let (Some(ip), false) = (&mut self.out.ip, self.quoting) {
            ip.protocol = protocol;
        }
    }
}
