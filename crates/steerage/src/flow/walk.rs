//! The walk along a frame's headers: one header a step, so many steps at most.
//!
//! Architecture invariant: every step but a dispatch reads one header and notes it in a list of fixed length; when the
//! list is full the walk ends. So the work a frame can cause is bounded whatever is nested in it. And every read is a
//! checked read of the slice given: a length that a frame states about itself can lead to its end, not beyond.

use steerage_mem::hash::{FlowKey, protocol};

use super::dissection::{Dissection, End, HeaderKind, Headers, Layers, Tunnel};
use super::numbers::number;
use crate::limits::VLAN_TAGS_MAX;
use crate::rx::LinkType;

/// What the next header is taken for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Ethernet,
    EtherType(u16),
    Ppp,
    Mpls,
    /// IPv4 or IPv6, as the first four bits say.
    Ip,
    Ipv4,
    Ipv6,
    Protocol(u8),
}

/// What is known of a flow so far; becomes the key at the end, so that an inner header that cannot be read leaves the
/// outer flow as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) version: u8,
    /// Addresses; IPv4's in the lower 32 bits.
    pub(super) source: u128,
    pub(super) destination: u128,
    pub(super) protocol: u8,
    pub(super) ports: (u16, u16),
}

impl Flow {
    fn key(&self) -> FlowKey {
        let (from, to) = self.ports;
        if self.version == 4 {
            return FlowKey::v4((self.source as u32, from), (self.destination as u32, to), self.protocol);
        }
        FlowKey::v6((self.source, from), (self.destination, to), self.protocol)
    }

    /// As its receiver would answer.
    fn turned(self) -> Self {
        let ports = (self.ports.1, self.ports.0);
        Self { source: self.destination, destination: self.source, ports, ..self }
    }
}

/// A frame without IP is known by these.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stations {
    pub(super) source: [u8; 6],
    pub(super) destination: [u8; 6],
    pub(super) holds: u16,
    /// MPLS: the first label and the last.
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
    /// IP headers entered, the quoted one not counted.
    pub(super) depth: usize,
    /// Extension headers behind the present IP header.
    pub(super) extensions: usize,
    /// VLAN tags behind the present Ethernet header.
    pub(super) tags: usize,
    /// In what an ICMP error quotes.
    pub(super) quoting: bool,
    pub(super) flow: Option<Flow>,
    pub(super) stations: Option<Stations>,
    pub(super) out: Dissection,
}

impl<'a> Walk<'a> {
    pub(super) fn new(frame: &'a [u8], layers: Layers) -> Self {
        let out = Dissection {
            key: FlowKey::from_bytes(&[]),
            is_flow: false,
            end: End::Complete,
            ip: None,
            transport_offset: None,
            payload_offset: None,
            tcp_flags: None,
            icmp: None,
            is_quoted: false,
            fragments: [None, None],
            vlans: [None; VLAN_TAGS_MAX],
            tunnel: None,
            headers: Headers::EMPTY,
        };
        let (at, depth, extensions, tags) = (0, 0, 0, 0);
        Self { frame, at, layers, depth, extensions, tags, quoting: false, flow: None, stations: None, out }
    }

    /// The whole walk.
    pub(super) fn run(mut self, link: LinkType) -> Dissection {
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
        self.finish(end)
    }

    fn finish(mut self, end: End) -> Dissection {
        self.out.end = end;
        match (self.flow, self.stations) {
            (Some(flow), _) => {
                self.out.is_flow = true;
                self.out.key = if self.out.is_quoted { flow.turned().key() } else { flow.key() };
            }
            (None, Some(stations)) => self.out.key = stations.key(),
            // Not even a link header: all that there is.
            (None, None) => self.out.key = FlowKey::from_bytes(self.frame),
        }
        self.out
    }

    /// What stands behind an IP header and its extensions.
    fn protocol(&mut self, protocol: u8) -> Result<Step, End> {
        let version = self.flow.map_or(0, |flow| flow.version);
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
            number::NOTHING if version == 6 => Err(End::Complete),
            _ if self.stays_outside() => Err(End::Complete),
            number::IPV4 => Ok(Step::Ipv4),
            number::IPV6 => Ok(Step::Ipv6),
            number::MPLS => Ok(Step::Mpls),
            number::ETHERNET => Ok(Step::Ethernet),
            number::ETHERIP => self.ether_ip(),
            protocol::GRE => self.gre(),
            other => Err(End::UnknownProtocol(other)),
        }
    }

    /// Whether tunnels are not entered here: by the caller's wish; and in a quote, since an error about a tunnel belongs
    /// to the tunnel.
    pub(super) fn stays_outside(&self) -> bool {
        self.quoting || self.layers == Layers::Outer
    }

    /// Where reading has come to.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn is_outermost(&self) -> bool {
        self.depth == 0
    }

    /// To be written until there is IP.
    pub(super) fn outer_stations(&mut self) -> Option<&mut Stations> {
        let is_outermost = self.is_outermost();
        self.stations.as_mut().filter(|_| is_outermost)
    }

    /// The next `N` bytes, as they are.
    pub(super) fn peek<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.frame.get(self.at..)?.first_chunk()
    }

    /// Reads a header that begins with `N` bytes that must be there: notes it, and goes on behind them.
    pub(super) fn take<const N: usize>(&mut self, kind: HeaderKind) -> Result<&'a [u8; N], End> {
        let header = self.peek().ok_or(End::Truncated)?;
        self.out.headers.push(kind, self.at)?;
        self.at += N;
        Ok(header)
    }

    /// Passes over what belongs to a header and tells nothing. It may lie behind the frame's end: the next read sees.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    pub(super) fn enter(&mut self, kind: HeaderKind, id: Option<u32>) {
        self.out.tunnel = Some(Tunnel { kind, id });
    }
}
