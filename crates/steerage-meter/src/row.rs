//! The columns of a flow record, with the values that output files contain.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};
use steerage::WallTime;

use super::flow::FlowEnd;
use super::key::Kind;
use super::record::{Address, FlowRecord};
use super::tcp::ClosedBy;

#[derive(Serialize)]
pub(super) struct Row<'a> {
    #[serde(serialize_with = "rfc3339")]
    pub(super) first: WallTime,
    #[serde(serialize_with = "rfc3339")]
    pub(super) last: WallTime,
    pub(super) kind: Cow<'static, str>,
    pub(super) protocol: Option<u8>,
    pub(super) source: Address,
    pub(super) source_port: Option<u16>,
    pub(super) destination: Address,
    pub(super) destination_port: Option<u16>,
    pub(super) ethertype: Option<u16>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) ip_bytes: u64,
    pub(super) packets_back: u64,
    pub(super) bytes_back: u64,
    pub(super) ip_bytes_back: u64,
    pub(super) tcp_flags: Option<u16>,
    pub(super) tcp_flags_back: Option<u16>,
    pub(super) vlan: Option<u16>,
    pub(super) vlan_inner: Option<u16>,
    pub(super) tunnel: Option<String>,
    pub(super) tunnel_id: Option<u32>,
    #[serde(serialize_with = "shown")]
    pub(super) end: FlowEnd,
    pub(super) handshake_us: Option<u32>,
    pub(super) retransmitted: Option<u32>,
    pub(super) retransmitted_back: Option<u32>,
    pub(super) out_of_order: Option<u32>,
    pub(super) out_of_order_back: Option<u32>,
    pub(super) zero_windows: Option<u16>,
    pub(super) zero_windows_back: Option<u16>,
    pub(super) resets: Option<u8>,
    pub(super) resets_back: Option<u8>,
    pub(super) closed_by: Option<ClosedBy>,
    pub(super) icmp_type: Option<u8>,
    pub(super) icmp_code: Option<u8>,
    pub(super) dns_query: Option<&'a str>,
    pub(super) dns_type: Option<u16>,
    pub(super) dns_rcode: Option<u8>,
    pub(super) dns_answer: Option<&'a str>,
    pub(super) tls_sni: Option<&'a str>,
    pub(super) tls_alpn: Option<&'a str>,
    pub(super) http_host: Option<&'a str>,
}

impl<'a> Row<'a> {
    pub(super) fn of(record: &'a FlowRecord) -> Self {
        let key = &record.flow().key;
        let [(source, source_port), (destination, destination_port)] = record.endpoints();
        let (forth, back) = record.flow().traffic();
        let [vlan, vlan_inner] = record.vlans();
        let (health, names) = (record.tcp_health(), record.names());
        let (there, back_again) = (health.map(|tcp| tcp.forth), health.map(|tcp| tcp.back));
        Self {
            first: record.first(),
            last: record.last(),
            kind: record.kind(),
            protocol: record.protocol(),
            source,
            source_port,
            destination,
            destination_port,
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
            end: record.end(),
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
            dns_query: names.and_then(|names| names.dns_query.as_deref()),
            dns_type: names.and_then(|names| names.dns_type),
            dns_rcode: names.and_then(|names| names.dns_rcode),
            dns_answer: names.and_then(|names| names.dns_answer.as_deref()),
            tls_sni: names.and_then(|names| names.tls_sni.as_deref()),
            tls_alpn: names.and_then(|names| names.tls_alpn.as_deref()),
            http_host: names.and_then(|names| names.http_host.as_deref()),
        }
    }
}

impl Serialize for FlowRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Row::of(self).serialize(serializer)
    }
}

fn rfc3339<S: Serializer>(time: &WallTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_nanos((*time).into()))
}

fn shown<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
