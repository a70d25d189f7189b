//! The shape of a record: which IPFIX elements the record has.
//!
//! A shape has one bit for each property on which the elements depend. A template's id is computed
//! from these bits, so there is no table of templates.
//!
//! [`fields`] writes templates and records, so that both always agree.

use steerage::flow::{HeaderKind, protocol};

use super::super::flow::Traffic;
use super::super::key::{Kind, stations};
use super::super::record::FlowRecord;
use super::super::tcp::TcpDirection;
use super::elements::*;

/// The lowest id that an IPFIX template may have (RFC 7011, section 3.4.1).
const TEMPLATES_FROM: u16 = 256;

/// The seconds from 1900 (NTP) to 1970.
const NTP_BEFORE_UNIX: u64 = 2_208_988_800;

/// The segment type VXLAN in the upper byte of layer2SegmentId (IANA).
const SEGMENT_IS_VXLAN: u64 = 0x01 << 56;

/// The biflow direction: packets of the initiator have the forward direction (RFC 5103, section
/// 6.3).
const DIRECTION_INITIATOR: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape(u16);

impl Shape {
    // The lowest three bits are the `Kind` of the key.
    const TCP: u16 = 1 << 3;
    const ICMP: u16 = 1 << 4;
    const BACK: u16 = 1 << 5;
    const VLAN: u16 = 1 << 6;
    const VLAN_INNER: u16 = 1 << 7;
    const TUNNEL: u16 = 0b111 << 8;
    const VXLAN: u16 = 1 << 8;
    const MPLS: u16 = 2 << 8;
    const GTP_U: u16 = 3 << 8;
    const OTHER_TUNNEL: u16 = 4 << 8;
    const DNS_QUERY: u16 = 1 << 11;
    const DNS_RESPONSE: u16 = 1 << 12;
    const TLS: u16 = 1 << 13;
    const HTTP: u16 = 1 << 14;
    pub(super) const ALL: usize = 1 << 15;

    fn of(view: &View<'_>) -> Self {
        let mut bits = view.record.flow().key.kind() as u16;
        let mut set = |bit: u16, is_set: bool| bits |= if is_set { bit } else { 0 };
        let protocol = view.record.protocol();
        set(Self::TCP, protocol == Some(protocol::TCP));
        set(Self::ICMP, matches!(protocol, Some(protocol::ICMP | protocol::ICMP6)));
        set(Self::BACK, view.back.is_some_and(|(back, ..)| back.packets > 0));
        let [outer, inner] = view.record.vlans();
        set(Self::VLAN, outer.is_some());
        set(Self::VLAN_INNER, inner.is_some());
        if let Some(names) = view.record.names() {
            set(Self::DNS_QUERY, names.dns_query.is_some());
            set(Self::DNS_RESPONSE, names.dns_rcode.is_some());
            set(Self::TLS, names.tls_sni.is_some());
            set(Self::HTTP, names.http_host.is_some());
        }
        let tunnel = view.record.tunnel().filter(|tunnel| tunnel.id.is_some()).map(|tunnel| tunnel.kind);
        bits |= match tunnel {
            None => 0,
            Some(HeaderKind::Vxlan) => Self::VXLAN,
            Some(HeaderKind::Mpls) => Self::MPLS,
            Some(HeaderKind::GtpU) => Self::GTP_U,
            Some(_) => Self::OTHER_TUNNEL,
        };
        Self(bits)
    }

    pub(super) fn template(self) -> u16 {
        TEMPLATES_FROM + self.0
    }

    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }

    fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }
}

/// The ids of options templates follow the ids of the flows' templates.
pub(super) const OPTIONS_FROM: u16 = TEMPLATES_FROM + Shape::ALL as u16;

type Direction = (Traffic, u16, TcpDirection);

#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    record: &'a FlowRecord,
    turned: bool,
    forth: Direction,
    back: Option<Direction>,
}

impl<'a> View<'a> {
    pub(super) fn both(record: &'a FlowRecord) -> Self {
        let (flow, flags) = (record.flow(), record.flow().tcp_flags());
        let ((forth, back), health) = (flow.traffic(), flow.health());
        let (forth, back) = ((forth, flags.0, health.forth), (back, flags.1, health.back));
        Self { record, turned: flow.is_turned(), forth, back: Some(back) }
    }

    pub(super) fn each(record: &'a FlowRecord) -> impl Iterator<Item = Self> {
        let both = Self::both(record);
        let forth = Self { back: None, ..both };
        let back = both.back.map(|back| Self { turned: !both.turned, forth: back, back: None, ..both });
        [Some(forth), back].into_iter().flatten().filter(|view| view.forth.0.packets > 0)
    }

    pub(super) fn shape(&self) -> Shape {
        Shape::of(self)
    }
}

pub(super) trait Fields {
    fn put<const N: usize>(&mut self, element: Element, value: [u8; N]);
    fn put_text(&mut self, element: Element, value: &str);
}

#[inline]
pub(super) fn fields(shape: Shape, view: &View<'_>, to: &mut impl Fields) {
    let View { record, forth, .. } = view;
    let (first, last) = (record.flow().first, record.flow().last);
    to.put(FLOW_START_MILLISECONDS, millis(first));
    to.put(FLOW_END_MILLISECONDS, millis(last));
    to.put(FLOW_START_NANOSECONDS, ntp(first));
    to.put(FLOW_END_NANOSECONDS, ntp(last));
    key(shape, view, to);
    to.put(FLOW_END_REASON, [record.end() as u8]);
    to.put(PACKET_DELTA_COUNT, forth.0.packets.to_be_bytes());
    to.put(OCTET_DELTA_COUNT, forth.0.ip_bytes.to_be_bytes());
    to.put(LAYER2_OCTET_DELTA_COUNT, forth.0.bytes.to_be_bytes());
    if shape.has(Shape::TCP) {
        to.put(TCP_CONTROL_BITS, forth.1.to_be_bytes());
        to.put(TCP_RST_TOTAL_COUNT, u64::from(forth.2.resets).to_be_bytes());
        to.put(RETRANSMITTED_IN_PKTS, forth.2.retransmitted.to_be_bytes());
        to.put(OOORDER_IN_PKTS, forth.2.out_of_order.to_be_bytes());
    }
    if let Some(back) = view.back.filter(|_| shape.has(Shape::BACK)) {
        to.put(BIFLOW_DIRECTION, [DIRECTION_INITIATOR]);
        to.put(PACKET_DELTA_COUNT.reverse(), back.0.packets.to_be_bytes());
        to.put(OCTET_DELTA_COUNT.reverse(), back.0.ip_bytes.to_be_bytes());
        to.put(LAYER2_OCTET_DELTA_COUNT.reverse(), back.0.bytes.to_be_bytes());
        if shape.has(Shape::TCP) {
            to.put(TCP_CONTROL_BITS.reverse(), back.1.to_be_bytes());
            to.put(TCP_RST_TOTAL_COUNT.reverse(), u64::from(back.2.resets).to_be_bytes());
            to.put(RETRANSMITTED_OUT_PKTS, back.2.retransmitted.to_be_bytes());
            to.put(OOORDER_OUT_PKTS, back.2.out_of_order.to_be_bytes());
        }
    }
    tags(shape, view, to);
    if shape.has(Shape::DNS_QUERY | Shape::DNS_RESPONSE | Shape::TLS | Shape::HTTP) {
        names(shape, view, to);
    }
}

#[inline]
fn key(shape: Shape, view: &View<'_>, to: &mut impl Fields) {
    let key = &view.record.flow().key;
    let (addresses, ports) = (key.addresses(), key.ports());
    let turn = |ends: (u128, u128)| if view.turned { (ends.1, ends.0) } else { ends };
    let (source, destination) = turn(addresses);
    let (source_port, destination_port) = if view.turned { (ports.1, ports.0) } else { ports };
    match key.kind() {
        Kind::V4 => {
            to.put(SOURCE_IPV4_ADDRESS, (source as u32).to_be_bytes());
            to.put(DESTINATION_IPV4_ADDRESS, (destination as u32).to_be_bytes());
        }
        Kind::V6 => {
            to.put(SOURCE_IPV6_ADDRESS, source.to_be_bytes());
            to.put(DESTINATION_IPV6_ADDRESS, destination.to_be_bytes());
        }
        Kind::Link | Kind::Mpls => {
            to.put(SOURCE_MAC_ADDRESS, stations(source));
            to.put(DESTINATION_MAC_ADDRESS, stations(destination));
        }
        Kind::Other => {}
    }
    match key.kind() {
        Kind::V4 | Kind::V6 => {
            to.put(PROTOCOL_IDENTIFIER, [key.protocol()]);
            if !shape.has(Shape::ICMP) {
                to.put(SOURCE_TRANSPORT_PORT, source_port.to_be_bytes());
                to.put(DESTINATION_TRANSPORT_PORT, destination_port.to_be_bytes());
            } else if key.kind() == Kind::V4 {
                to.put(ICMP_TYPE_CODE_IPV4, view.record.flow().icmp());
            } else {
                to.put(ICMP_TYPE_CODE_IPV6, view.record.flow().icmp());
            }
        }
        Kind::Link => to.put(ETHERNET_TYPE, ports.0.to_be_bytes()),
        Kind::Mpls => {
            // MPLS endpoints are never swapped: `source` has the first MPLS label of the frame, and
            // `destination` the last.
            let [first, last] = [source, destination].map(|end| (end >> 64) as u32);
            to.put(MPLS_TOP_LABEL_STACK_SECTION, label(first, first == last));
            to.put(MPLS_LABEL_STACK_SECTION_2, label(last, true));
        }
        Kind::Other => {}
    }
}

#[inline]
fn tags(shape: Shape, view: &View<'_>, to: &mut impl Fields) {
    let [outer, inner] = view.record.vlans();
    if shape.has(Shape::VLAN) {
        to.put(VLAN_ID, outer.unwrap_or(0).to_be_bytes());
    }
    if shape.has(Shape::VLAN_INNER) {
        to.put(DOT1Q_CUSTOMER_VLAN_ID, inner.unwrap_or(0).to_be_bytes());
    }
    let id = view.record.tunnel().and_then(|tunnel| tunnel.id).unwrap_or(0);
    match shape.0 & Shape::TUNNEL {
        0 => return,
        Shape::VXLAN => to.put(LAYER2_SEGMENT_ID, (SEGMENT_IS_VXLAN | u64::from(id)).to_be_bytes()),
        Shape::MPLS if view.record.flow().key.kind() != Kind::Mpls => {
            to.put(MPLS_TOP_LABEL_STACK_SECTION, label(id, true));
        }
        Shape::GTP_U => to.put(GTPU_TEID, id.to_be_bytes()),
        _ => {}
    }
    to.put(TUNNEL_ID, id.to_be_bytes());
}

/// Writes the names of a flow, except ALPN, for which neither IPFIX nor ntop has an element.
fn names(shape: Shape, view: &View<'_>, to: &mut impl Fields) {
    let Some(names) = view.record.names() else { return };
    let text = |name: &Option<Box<str>>| name.clone().unwrap_or_default();
    if shape.has(Shape::DNS_QUERY) {
        to.put_text(DNS_QUERY, &text(&names.dns_query));
        to.put(DNS_QUERY_TYPE, names.dns_type.unwrap_or(0).to_be_bytes());
    }
    if shape.has(Shape::DNS_RESPONSE) {
        to.put(DNS_RET_CODE, [names.dns_rcode.unwrap_or(0)]);
        to.put_text(DNS_RESPONSE, &text(&names.dns_answer));
    }
    if shape.has(Shape::TLS) {
        to.put_text(TLS_SERVER_NAME, &text(&names.tls_sni));
    }
    if shape.has(Shape::HTTP) {
        to.put_text(HTTP_HOST, &text(&names.http_host));
    }
}

fn label(label: u32, is_last: bool) -> [u8; 3] {
    let [_, a, b, c] = (label << 4 | u32::from(is_last)).to_be_bytes();
    [a, b, c]
}

fn millis(nanos: u64) -> [u8; 8] {
    (nanos / 1_000_000).to_be_bytes()
}

/// Returns an NTP time: the seconds since 1900, and a fraction of 32 bits, rounded to the nearest
/// value.
fn ntp(nanos: u64) -> [u8; 8] {
    let (seconds, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let fraction = ((part << 32) + 500_000_000) / 1_000_000_000;
    (((seconds + NTP_BEFORE_UNIX) << 32) + fraction).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_ntp() {
        // RFC 5905, figure 4: 2,208,988,800 is 1 January 1970.
        assert_eq!(ntp(0), [0x83, 0xaa, 0x7e, 0x80, 0, 0, 0, 0]);
        assert_eq!(ntp(500_000_000)[4..], [0x80, 0, 0, 0]);
        for nanos in [1, 2, 999_999_998, 999_999_999] {
            let fraction = u64::from(u32::from_be_bytes(ntp(nanos)[4..].try_into().unwrap()));
            assert_eq!((fraction * 1_000_000_000 + (1 << 31)) >> 32, nanos);
        }
    }
}
