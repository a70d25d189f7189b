use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use steerage::flow::Tunnel;
use steerage::{FlowKey, WallTime, flow::protocol};

use super::cic::Cic;
use super::flow::{Flow, FlowEnd, Traffic};
use super::key::{Key, Kind, stations};
use super::names::FlowNames;
use super::tcp::TcpHealth;

/// A record describes both directions of a flow that has ended or was cut (RFC 5103).
///
/// Serialized as a flat row in CSV and JSON. `docs/meter.md` lists the columns.
#[derive(Clone, Debug)]
pub struct FlowRecord {
    flow: Flow,
    end: FlowEnd,
    names: Option<Arc<FlowNames>>,
    cic: Option<Box<Cic>>,
    joined: u32,
}

impl FlowRecord {
    pub(super) fn new(flow: Flow, end: FlowEnd) -> Self {
        Self { flow, end, names: None, cic: None, joined: 0 }
    }

    /// Creates a record of a flow that another program counted, to be
    /// [exported](super::Exporter::pass). The source of `key` sent the first packet and the traffic
    /// `forth`. The record has no TCP flags, VLAN ids or names.
    ///
    /// ```
    /// use steerage::WallTime;
    /// use steerage_meter::{FlowEnd, FlowRecord, Traffic};
    ///
    /// let (first, last) = (WallTime::from_nanos(1_000_000_000), WallTime::from_nanos(1_500_000_000));
    /// let query = Traffic { packets: 1, bytes: 74, ip_bytes: 60 };
    /// let answer = Traffic { packets: 1, bytes: 174, ip_bytes: 160 };
    /// let key = "udp 10.0.0.9:4000 > 10.0.0.2:53".parse()?;
    /// let record = FlowRecord::of_flow(&key, (first, last), query, answer, FlowEnd::Idle);
    /// assert_eq!((record.key(), record.back(), record.last()), (key, answer, last));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_flow(
        key: &FlowKey,
        (first, last): (WallTime, WallTime),
        forth: Traffic,
        back: Traffic,
        end: FlowEnd,
    ) -> Self {
        let flow = Flow::of(Key::of(key), (first.as_nanos(), last.as_nanos()), forth, back);
        Self::new(flow, end)
    }

    pub(super) fn with_cic(self, cic: Option<Box<Cic>>) -> Self {
        Self { cic, ..self }
    }

    pub(super) fn cic(&self) -> Option<&Cic> {
        self.cic.as_deref()
    }

    pub(super) fn with_names(self, names: Option<Arc<FlowNames>>) -> Self {
        Self { names, ..self }
    }

    pub(super) fn with_joined(self, joined: u32) -> Self {
        Self { joined, ..self }
    }

    pub(super) fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Returns the flow's key. The source sent the first packet. For ICMP queries, both ports are
    /// the identifier.
    pub fn key(&self) -> FlowKey {
        self.flow.key.flow_key(self.flow.is_turned())
    }

    /// Returns the traffic from the source to the destination.
    pub fn forth(&self) -> Traffic {
        self.flow.traffic().0
    }

    /// Returns the traffic from the destination to the source.
    pub fn back(&self) -> Traffic {
        self.flow.traffic().1
    }

    /// Returns the time of the flow's first packet.
    pub fn first(&self) -> WallTime {
        WallTime::from_nanos(self.flow.first)
    }

    /// Returns the time of the flow's last packet.
    pub fn last(&self) -> WallTime {
        WallTime::from_nanos(self.flow.last)
    }

    /// Returns all TCP flags of the source and of the destination (RFC 9293; bit 8: RFC 9768).
    pub fn tcp_flags(&self) -> Option<(u16, u16)> {
        (self.protocol() == Some(protocol::TCP)).then(|| self.flow.tcp_flags())
    }

    /// Returns the health of the connection. `None` if the flow is not TCP.
    pub fn tcp_health(&self) -> Option<TcpHealth> {
        (self.protocol() == Some(protocol::TCP)).then(|| self.flow.health())
    }

    /// Returns the type and code of the first packet. `None` if the flow is not ICMP.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let [kind, code] = self.flow.icmp();
        matches!(self.protocol(), Some(protocol::ICMP | protocol::ICMP6)).then_some((kind, code))
    }

    /// Returns the VLAN ids of the first packet, the outer one first.
    pub fn vlans(&self) -> [Option<u16>; 2] {
        self.flow.vlans()
    }

    /// Returns the innermost tunnel in which the first packet was.
    pub fn tunnel(&self) -> Option<Tunnel> {
        self.flow.tunnel()
    }

    /// Returns the names in the flow's packets, if [enabled](super::MeterOptions::names) and found.
    pub fn names(&self) -> Option<&FlowNames> {
        self.names.as_deref()
    }

    /// Returns how often [`Edges::join`](super::Edges::join) continued this record in a later part.
    pub fn joined(&self) -> u32 {
        self.joined
    }

    /// Returns why the record ended.
    pub fn end(&self) -> FlowEnd {
        self.end
    }

    /// Returns the flow's IP protocol number, if the flow is IP.
    pub fn protocol(&self) -> Option<u8> {
        matches!(self.flow.key.kind(), Kind::V4 | Kind::V6).then(|| self.flow.key.protocol())
    }

    pub(super) fn ethertype(&self) -> Option<u16> {
        (self.flow.key.kind() == Kind::Link).then(|| self.flow.key.ports().0)
    }

    /// Returns the flow's protocol: a name, or `protocol-99`, `link`, `mpls` or `other`.
    pub fn kind(&self) -> Cow<'static, str> {
        Class::of(&self.flow.key).name()
    }

    /// Returns the source as text: `10.0.0.1:80`, `[fd00::1]:80`, an address, a MAC address, or
    /// `-`.
    pub fn source(&self) -> String {
        let [(address, port), _] = self.endpoints();
        self.end_of(&address, port)
    }

    /// Returns the destination as text, like [`source`](Self::source).
    pub fn destination(&self) -> String {
        let [_, (address, port)] = self.endpoints();
        self.end_of(&address, port)
    }

    pub(super) fn endpoints(&self) -> [(Address, Option<u16>); 2] {
        let (low, high) = self.flow.key.addresses();
        let (from, to) = if self.flow.is_turned() { (high, low) } else { (low, high) };
        let end = |end: Option<SocketAddr>, number: u128| match (end, self.flow.key.kind()) {
            (Some(end), _) => (Address::Ip(end.ip()), Some(end.port())),
            (None, Kind::Link | Kind::Mpls) => (Address::Station(stations(number)), None),
            (None, _) => (Address::None, None),
        };
        let key = self.key();
        [end(key.source(), from), end(key.destination(), to)]
    }

    fn end_of(&self, address: &Address, port: Option<u16>) -> String {
        let has_ports = matches!(self.protocol(), Some(protocol::TCP | protocol::UDP | protocol::SCTP));
        match (address, port.filter(|_| has_ports)) {
            (Address::Ip(address), Some(port)) => SocketAddr::new(*address, port).to_string(),
            _ => address.to_string(),
        }
    }

    /// Returns the bytes of both directions.
    pub fn bytes(&self) -> u64 {
        self.flow.bytes()
    }

    /// Sorts records by bytes, the most first, and then by start time and key, so that the order is
    /// unambiguous.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        let by = |record: &Self| (record.flow.first, record.flow.key, record.flow.last);
        other.bytes().cmp(&self.bytes()).then_with(|| by(self).cmp(&by(other)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Ip(u8),
    Link,
    Mpls,
    Other,
}

impl Class {
    pub(super) fn of(key: &Key) -> Self {
        match key.kind() {
            Kind::V4 | Kind::V6 => Self::Ip(key.protocol()),
            Kind::Link => Self::Link,
            Kind::Mpls => Self::Mpls,
            Kind::Other => Self::Other,
        }
    }

    fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Ip(protocol) => match protocol::name(protocol) {
                Some(name) => name,
                None => return Cow::Owned(format!("protocol-{protocol}")),
            },
            Self::Link => "link",
            Self::Mpls => "mpls",
            Self::Other => "other",
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Classes {
    ip: [u64; 256],
    others: [u64; 3],
}

impl Classes {
    pub(super) const NONE: Self = Self { ip: [0; 256], others: [0; 3] };

    pub(super) fn add(&mut self, class: Class) {
        *match class {
            Class::Ip(protocol) => &mut self.ip[usize::from(protocol)],
            Class::Link => &mut self.others[0],
            Class::Mpls => &mut self.others[1],
            Class::Other => &mut self.others[2],
        } += 1;
    }

    pub(super) fn add_all(&mut self, more: &Self) {
        self.ip.iter_mut().zip(more.ip).for_each(|(count, more)| *count += more);
        self.others.iter_mut().zip(more.others).for_each(|(count, more)| *count += more);
    }

    pub(super) fn by_frequency(&self) -> Vec<(Cow<'static, str>, u64)> {
        let ip = (0..=u8::MAX).map(|protocol| (Class::Ip(protocol), self.ip[usize::from(protocol)]));
        let others = [Class::Link, Class::Mpls, Class::Other].into_iter().zip(self.others);
        let mut all: Vec<_> = ip.chain(others).filter(|(_, count)| *count > 0).collect();
        all.sort_by_key(|(class, count)| (std::cmp::Reverse(*count), *class));
        all.into_iter().map(|(class, count)| (class.name(), count)).collect()
    }
}

impl FlowEnd {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::Finished => "finished",
            Self::Forced => "forced",
            Self::Resources => "resources",
        }
    }
}

impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pub(super) enum Address {
    Ip(IpAddr),
    Station([u8; 6]),
    None,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Station([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Self::None => f.write_str("-"),
        }
    }
}
