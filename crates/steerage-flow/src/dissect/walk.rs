//! Architecture invariant: every step reads one header and appends it to a list of fixed length, or
//! only chooses the next step. The walk ends when the list of headers is full, so the work for a
//! frame is bounded. Every read is checked, so a wrong length in a header cannot lead beyond the
//! end of the frame.

use crate::flow_key::FlowKey;

use super::dissection::{Dissection, End, HeaderKind, Layers, Tunnel};
use crate::link_type::LinkType;
use crate::wire::{be32, be128, ipv4, ipv6, protocol};

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Ethernet,
    EtherType(u16),
    Ppp,
    Mpls,
    Ip,
    Ipv4,
    Ipv6,
    Protocol(u8),
}

/// The flow of the innermost IP header that was read so far. If an inner header cannot be read, the
/// outer flow remains. The addresses are copied from the frame only at the end of the walk.
/// Addresses copied earlier would be stored with one width and loaded with another, which the CPU
/// cannot forward, so each load would stall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) version: u8,
    pub(super) at: usize,
    pub(super) protocol: u8,
    pub(super) ports: (u16, u16),
}

impl Flow {
    fn key(&self, frame: &[u8], turned: bool) -> Option<FlowKey> {
        let header = frame.get(self.at..)?;
        let (from, to) = self.ports;
        let key = match self.version {
            4 => {
                let header: &[u8; ipv4::BYTES] = header.first_chunk()?;
                let (source, destination) = ((be32(header, 12), from), (be32(header, 16), to));
                let (source, destination) = if turned { (destination, source) } else { (source, destination) };
                FlowKey::v4_bits(source, destination, self.protocol)
            }
            6 => {
                let header: &[u8; ipv6::BYTES] = header.first_chunk()?;
                let (source, destination) = ((be128(header, 8), from), (be128(header, 24), to));
                let (source, destination) = if turned { (destination, source) } else { (source, destination) };
                FlowKey::v6_bits(source, destination, self.protocol)
            }
            _ => return None,
        };
        Some(key)
    }
}

/// Link addresses and MPLS labels: the key of a frame without an IP header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stations {
    pub(super) source: [u8; 6],
    pub(super) destination: [u8; 6],
    pub(super) holds: u16,
    pub(super) labels: Option<(u32, u32)>,
}

impl Stations {
    fn key(&self) -> FlowKey {
        let Some((first, last)) = self.labels else {
            return FlowKey::link(self.source, self.destination, self.holds);
        };
        let mut bytes = [0; 20];
        bytes[..6].copy_from_slice(&self.source);
        bytes[6..12].copy_from_slice(&self.destination);
        bytes[12..16].copy_from_slice(&first.to_be_bytes());
        bytes[16..].copy_from_slice(&last.to_be_bytes());
        FlowKey::from_bytes(&bytes)
    }
}

pub(super) struct Walk<'a> {
    frame: &'a [u8],
    at: usize,
    pub(super) layers: Layers,
    /// The number of IP headers so far, without the header that an ICMP error quotes.
    pub(super) depth: usize,
    pub(super) extensions: usize,
    pub(super) tags: usize,
    pub(super) quoting: bool,
    pub(super) flow: Flow,
    pub(super) stations: Option<Stations>,
    pub(super) out: &'a mut Dissection,
}

impl<'a> Walk<'a> {
    pub(super) fn new(frame: &'a [u8], layers: Layers, out: &'a mut Dissection) -> Self {
        let (at, depth, extensions, tags) = (0, 0, 0, 0);
        let flow = Flow { version: 0, at, protocol: 0, ports: (0, 0) };
        Self { frame, at, layers, depth, extensions, tags, quoting: false, flow, stations: None, out }
    }

    pub(super) fn run(mut self, link: LinkType) {
        let mut step = self.link(link);
        let end = loop {
            step = match step {
                Ok(Step::Ethernet) => self.ethernet(),
                Ok(Step::EtherType(ethertype)) => self.ethertype(ethertype),
                Ok(Step::Ppp) => self.ppp(),
                Ok(Step::Mpls) => self.mpls(),
                Ok(Step::Ip) => self.ip(),
                Ok(Step::Ipv4) => self.ipv4(),
                Ok(Step::Ipv6) => self.ipv6(),
                Ok(Step::Protocol(protocol)) => self.protocol(protocol),
                Err(end) => break end,
            }
        };
        self.finish(end);
    }

    fn finish(self, end: End) {
        self.out.end = end;
        if let Some(key) = self.flow.key(self.frame, self.out.is_quoted) {
            self.out.key = key;
            self.out.is_flow = true;
            return;
        }
        self.out.key = match &self.stations {
            Some(stations) => stations.key(),
            // Without a complete link header, the flow key consists of the frame's bytes.
            None => FlowKey::from_bytes(self.frame),
        };
    }

    fn protocol(&mut self, protocol: u8) -> Result<Step, End> {
        let version = self.flow.version;
        if self.is_extension(version, protocol) {
            return self.extension(protocol);
        }
        self.set_protocol(protocol);
        if !self.quoting {
            self.out.transport_offset = (self.at < self.frame.len()).then_some(self.at as u32);
        }
        match protocol {
            protocol::TCP => self.tcp(),
            protocol::UDP => self.udp(),
            protocol::SCTP => self.sctp(),
            protocol::ICMP if version == 4 => self.icmp(),
            protocol::ICMP6 if version == 6 => self.icmp6(),
            protocol::NOTHING if version == 6 => Err(End::Complete),
            _ if self.stays_outside() => Err(End::Complete),
            protocol::L2TP => self.l2tp_in_ip(),
            other => self.inner(other, End::UnknownProtocol(other)),
        }
    }

    /// Returns the step that reads an inner packet or frame, or the error `unknown` if `protocol`
    /// is of another kind.
    pub(super) fn inner(&mut self, protocol: u8, unknown: End) -> Result<Step, End> {
        match protocol {
            protocol::IPV4 => Ok(Step::Ipv4),
            protocol::IPV6 => Ok(Step::Ipv6),
            protocol::MPLS => Ok(Step::Mpls),
            protocol::ETHERNET => Ok(Step::Ethernet),
            protocol::ETHERIP => self.ether_ip(),
            protocol::GRE => self.gre(),
            _ => Err(unknown),
        }
    }

    /// An ICMP error that quotes a packet of a tunnel belongs to the tunnel's own flow.
    pub(super) fn stays_outside(&self) -> bool {
        self.quoting || self.layers == Layers::Outer
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn is_outermost(&self) -> bool {
        self.depth == 0
    }

    /// Returns the link addresses and MPLS labels of the key, but only before the first IP header.
    pub(super) fn outer_stations(&mut self) -> Option<&mut Stations> {
        let is_outermost = self.is_outermost();
        self.stations.as_mut().filter(|_| is_outermost)
    }

    pub(super) fn peek<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.peek_at(self.at)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.frame.get(self.at..).unwrap_or_default()
    }

    pub(super) fn peek_at<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.frame.get(at..)?.first_chunk()
    }

    pub(super) fn take<const N: usize>(&mut self, kind: HeaderKind) -> Result<&'a [u8; N], End> {
        let header = self.peek().ok_or(End::Truncated)?;
        self.out.headers.push(kind, self.at)?;
        self.at += N;
        Ok(header)
    }

    pub(super) fn note(&mut self, kind: HeaderKind, offset: usize) -> Result<(), End> {
        self.out.headers.push(kind, offset)
    }

    /// Skips header bytes. If skipping goes beyond the frame's end, the next read fails.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    pub(super) fn enter(&mut self, kind: HeaderKind, id: Option<u32>) {
        self.out.tunnel = Some(Tunnel { kind, id });
    }
}
