//! What is told of a flow.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};
use steerage::flow::Tunnel;
use steerage::{FlowKey, WallTime, flow::protocol};

use super::flow::{Flow, FlowEnd, Traffic};
use super::key::{Kind, stations};
use super::tcp::{ClosedBy, TcpHealth};

/// A flow that has ended, or the part of it between two timeouts: both directions in one record (RFC 5103).
///
/// Serialized, it is a flat row of the columns that `docs/meter.md` tells: for CSV and for JSON alike.
/// [`Metering::new`](super::Metering::new) has an example.
#[derive(Clone, Copy, Debug)]
pub struct FlowRecord {
    flow: Flow,
    end: FlowEnd,
}

impl FlowRecord {
    pub(super) fn new(flow: Flow, end: FlowEnd) -> Self {
        Self { flow, end }
    }

    pub(super) fn flow(&self) -> &Flow {
        &self.flow
    }

    /// What it is known by; the source is who sent first. ICMP queries have their identifier as both ports.
    pub fn key(&self) -> FlowKey {
        self.flow.key.flow_key(self.flow.is_turned())
    }

    /// What the source sent.
    pub fn forth(&self) -> Traffic {
        self.flow.traffic().0
    }

    /// What it was answered.
    pub fn back(&self) -> Traffic {
        self.flow.traffic().1
    }

    /// The time of its first packet.
    pub fn first(&self) -> WallTime {
        WallTime::from_nanos(self.flow.first)
    }

    /// The time of its last packet.
    pub fn last(&self) -> WallTime {
        WallTime::from_nanos(self.flow.last)
    }

    /// All TCP flags that the source sent, and those of the answers: the lower 8 bits as in RFC 9293, bit 8 as in RFC 9768.
    /// `None` if it is not TCP.
    pub fn tcp_flags(&self) -> Option<(u16, u16)> {
        (self.protocol() == Some(protocol::TCP)).then(|| self.flow.tcp_flags())
    }

    /// How well a TCP connection did. `None` if it is not TCP.
    pub fn tcp_health(&self) -> Option<TcpHealth> {
        (self.protocol() == Some(protocol::TCP)).then(|| self.flow.health())
    }

    /// The type and code of the first packet of ICMP. `None` if it is not ICMP.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let [kind, code] = self.flow.icmp().to_be_bytes();
        matches!(self.protocol(), Some(protocol::ICMP | protocol::ICMP6)).then_some((kind, code))
    }

    /// Ids of the first packet's VLAN tags, the outer one first.
    pub fn vlans(&self) -> [Option<u16>; 2] {
        self.flow.vlans()
    }

    /// The innermost tunnel of the first packet.
    pub fn tunnel(&self) -> Option<Tunnel> {
        self.flow.tunnel()
    }

    /// Why it ended.
    pub fn end(&self) -> FlowEnd {
        self.end
    }

    /// The protocol's number (IANA), if it is IP.
    pub fn protocol(&self) -> Option<u8> {
        matches!(self.flow.key.kind(), Kind::V4 | Kind::V6).then(|| self.flow.key.protocol())
    }

    /// What kind of flow it is: the protocol's name or `protocol-99`; of frames without IP `link` or `mpls`; `other` where
    /// nothing could be read.
    pub fn kind(&self) -> Cow<'static, str> {
        self.class().name()
    }

    pub(super) fn class(&self) -> Class {
        match self.flow.key.kind() {
            Kind::V4 | Kind::V6 => Class::Ip(self.flow.key.protocol()),
            Kind::Link => Class::Link,
            Kind::Mpls => Class::Mpls,
            Kind::Other => Class::Other,
        }
    }

    /// Bytes of both directions.
    pub fn bytes(&self) -> u64 {
        self.flow.bytes()
    }

    /// The most bytes first; then, so that the order is one, who began first, and the keys.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        let by = |record: &Self| (record.flow.first, record.flow.key, record.flow.last);
        other.bytes().cmp(&self.bytes()).then_with(|| by(self).cmp(&by(other)))
    }
}

/// What flows are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Ip(u8),
    Link,
    Mpls,
    Other,
}

impl Class {
    fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Ip(protocol::ICMP) => "icmp",
            Self::Ip(protocol::TCP) => "tcp",
            Self::Ip(protocol::UDP) => "udp",
            Self::Ip(protocol::GRE) => "gre",
            Self::Ip(protocol::ESP) => "esp",
            Self::Ip(protocol::ICMP6) => "icmp6",
            Self::Ip(protocol::SCTP) => "sctp",
            Self::Ip(other) => return Cow::Owned(format!("protocol-{other}")),
            Self::Link => "link",
            Self::Mpls => "mpls",
            Self::Other => "other",
        })
    }
}

/// How many records of each class there are.
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

    /// Those that there are, the most frequent first.
    pub(super) fn by_frequency(&self) -> Vec<(Cow<'static, str>, u64)> {
        let ip = (0..=u8::MAX).map(|protocol| (Class::Ip(protocol), self.ip[usize::from(protocol)]));
        let others = [Class::Link, Class::Mpls, Class::Other].into_iter().zip(self.others);
        let mut all: Vec<_> = ip.chain(others).filter(|(_, count)| *count > 0).collect();
        all.sort_by_key(|(class, count)| (std::cmp::Reverse(*count), *class));
        all.into_iter().map(|(class, count)| (class.name(), count)).collect()
    }
}

/// A word each, in files.
impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::Active => "active",
            Self::Finished => "finished",
            Self::Forced => "forced",
            Self::Resources => "resources",
        })
    }
}

/// The columns.
#[derive(Serialize)]
struct Row {
    #[serde(serialize_with = "rfc3339")]
    first: WallTime,
    #[serde(serialize_with = "rfc3339")]
    last: WallTime,
    kind: Cow<'static, str>,
    protocol: Option<u8>,
    source: Address,
    source_port: Option<u16>,
    destination: Address,
    destination_port: Option<u16>,
    ethertype: Option<u16>,
    packets: u64,
    bytes: u64,
    ip_bytes: u64,
    packets_back: u64,
    bytes_back: u64,
    ip_bytes_back: u64,
    tcp_flags: Option<u16>,
    tcp_flags_back: Option<u16>,
    vlan: Option<u16>,
    vlan_inner: Option<u16>,
    tunnel: Option<String>,
    tunnel_id: Option<u32>,
    #[serde(serialize_with = "shown")]
    end: FlowEnd,
    handshake_us: Option<u32>,
    retransmitted: Option<u32>,
    retransmitted_back: Option<u32>,
    out_of_order: Option<u32>,
    out_of_order_back: Option<u32>,
    zero_windows: Option<u16>,
    zero_windows_back: Option<u16>,
    resets: Option<u8>,
    resets_back: Option<u8>,
    closed_by: Option<ClosedBy>,
    icmp_type: Option<u8>,
    icmp_code: Option<u8>,
}

impl Row {
    fn of(record: &FlowRecord) -> Self {
        let key = &record.flow.key;
        let (low, high) = key.addresses();
        let (from, to) = if record.flow.is_turned() { (high, low) } else { (low, high) };
        let (source, destination) = (record.key().source(), record.key().destination());
        let address = |end: Option<SocketAddr>, number: u128| match (end, key.kind()) {
            (Some(end), _) => Address::Ip(end.ip()),
            (None, Kind::Link | Kind::Mpls) => Address::Station(stations(number)),
            (None, _) => Address::None,
        };
        let (forth, back) = record.flow.traffic();
        let [vlan, vlan_inner] = record.vlans();
        let health = record.tcp_health();
        let (there, back_again) = (health.map(|tcp| tcp.forth), health.map(|tcp| tcp.back));
        Self {
            first: record.first(),
            last: record.last(),
            kind: record.kind(),
            protocol: record.protocol(),
            source: address(source, from),
            source_port: source.map(|end| end.port()),
            destination: address(destination, to),
            destination_port: destination.map(|end| end.port()),
            ethertype: (key.kind() == Kind::Link).then_some(key.ports().0),
            packets: forth.packets,
            bytes: forth.bytes,
            ip_bytes: forth.ip_bytes,
            packets_back: back.packets,
            bytes_back: back.bytes,
            ip_bytes_back: back.ip_bytes,
            tcp_flags: record.tcp_flags().map(|flags| flags.0),
            tcp_flags_back: record.tcp_flags().map(|flags| flags.1),
            vlan,
            vlan_inner,
            tunnel: record.tunnel().map(|tunnel| tunnel.kind.to_string()),
            tunnel_id: record.tunnel().and_then(|tunnel| tunnel.id),
            end: record.end,
            handshake_us: health.and_then(|tcp| tcp.handshake_us),
            retransmitted: there.map(|tcp| tcp.retransmitted),
            retransmitted_back: back_again.map(|tcp| tcp.retransmitted),
            out_of_order: there.map(|tcp| tcp.out_of_order),
            out_of_order_back: back_again.map(|tcp| tcp.out_of_order),
            zero_windows: there.map(|tcp| tcp.zero_windows),
            zero_windows_back: back_again.map(|tcp| tcp.zero_windows),
            resets: there.map(|tcp| tcp.resets),
            resets_back: back_again.map(|tcp| tcp.resets),
            closed_by: health.and_then(|tcp| tcp.closed_by),
            icmp_type: record.icmp().map(|(kind, _)| kind),
            icmp_code: record.icmp().map(|(_, code)| code),
        }
    }
}

impl Serialize for FlowRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Row::of(self).serialize(serializer)
    }
}

/// An endpoint, as text.
enum Address {
    Ip(IpAddr),
    Station([u8; 6]),
    None,
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Ip(address) => serializer.collect_str(address),
            Self::Station([a, b, c, d, e, f]) => {
                serializer.collect_str(&format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"))
            }
            Self::None => serializer.serialize_none(),
        }
    }
}

fn rfc3339<S: Serializer>(time: &WallTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_nanos((*time).into()))
}

fn shown<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
