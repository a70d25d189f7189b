//! The columns of a flow record, for all formats except IPFIX.

use std::io::Write;

use serde::ser::{Serialize, SerializeStruct, Serializer};
use steerage::WallTime;

use super::cic::CicView;
use super::column::{Column, Values};
use super::flow::Traffic;
use super::names::FlowNames;
use super::record::{Address, FlowRecord};
use super::tcp::TcpHealth;

/// A record, and what several of its columns need.
pub(super) struct Row<'a> {
    pub(super) record: &'a FlowRecord,
    /// The source and the destination, each with its port.
    pub(super) ends: [(Address, Option<u16>); 2],
    forth: Traffic,
    back: Traffic,
    health: Option<TcpHealth>,
    cic: Option<Box<CicView<'a>>>,
}

impl<'a> Row<'a> {
    pub(super) fn of(record: &'a FlowRecord) -> Self {
        let flow = record.flow();
        let cic = record.cic().map(|cic| Box::new(cic.view(flow.is_turned(), flow.last - flow.first)));
        let (forth, back) = flow.traffic();
        Self { record, ends: record.endpoints(), forth, back, health: record.tcp_health(), cic }
    }

    pub(super) fn cic(&self) -> Option<&CicView<'a>> {
        self.cic.as_deref()
    }

    fn name(&self, of: fn(&FlowNames) -> &Option<Box<str>>) -> Option<&str> {
        of(self.record.names()?).as_deref()
    }
}

/// A column of records.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// True if rows may have no value.
    pub(super) is_optional: bool,
    pub(super) cell: Cell,
}

/// Computes the value of a column in one row.
#[derive(Debug)]
pub(super) enum Cell {
    /// Nanoseconds since 1970.
    Time(fn(&Row<'_>) -> Option<u64>),
    U8(fn(&Row<'_>) -> Option<u8>),
    U16(fn(&Row<'_>) -> Option<u16>),
    U32(fn(&Row<'_>) -> Option<u32>),
    U64(fn(&Row<'_>) -> Option<u64>),
    F64(fn(&Row<'_>) -> Option<f64>),
    /// Appends a text to the vector, or returns false if the row has no text.
    Text(fn(&Row<'_>, &mut Vec<u8>) -> bool),
}

use Cell::{F64, Text, Time, U8, U16, U32, U64};

/// The columns of every flow record.
#[rustfmt::skip]
pub(super) static FLOW: [Field; 41] = [
    always("first", Time(|row| Some(row.record.flow().first))),
    always("last", Time(|row| Some(row.record.flow().last))),
    always("kind", Text(|row, text| some(Some(&row.record.kind()), text))),
    maybe("protocol", U8(|row| row.record.protocol())),
    maybe("source", Text(|row, text| address(&row.ends[0].0, text))),
    maybe("source_port", U16(|row| row.ends[0].1)),
    maybe("destination", Text(|row, text| address(&row.ends[1].0, text))),
    maybe("destination_port", U16(|row| row.ends[1].1)),
    maybe("ethertype", U16(|row| row.record.ethertype())),
    always("packets", U64(|row| Some(row.forth.packets))),
    always("bytes", U64(|row| Some(row.forth.bytes))),
    always("ip_bytes", U64(|row| Some(row.forth.ip_bytes))),
    always("packets_back", U64(|row| Some(row.back.packets))),
    always("bytes_back", U64(|row| Some(row.back.bytes))),
    always("ip_bytes_back", U64(|row| Some(row.back.ip_bytes))),
    maybe("tcp_flags", U16(|row| Some(row.record.tcp_flags()?.0))),
    maybe("tcp_flags_back", U16(|row| Some(row.record.tcp_flags()?.1))),
    maybe("vlan", U16(|row| row.record.vlans()[0])),
    maybe("vlan_inner", U16(|row| row.record.vlans()[1])),
    maybe("tunnel", Text(|row, text| row.record.tunnel().is_some_and(|tunnel| write!(text, "{}", tunnel.kind).is_ok()))),
    maybe("tunnel_id", U32(|row| row.record.tunnel()?.id)),
    always("end", Text(|row, text| some(Some(row.record.end().name()), text))),
    maybe("handshake_us", U32(|row| row.health?.handshake_us)),
    maybe("retransmitted", U32(|row| Some(row.health?.forth.retransmitted))),
    maybe("retransmitted_back", U32(|row| Some(row.health?.back.retransmitted))),
    maybe("out_of_order", U32(|row| Some(row.health?.forth.out_of_order))),
    maybe("out_of_order_back", U32(|row| Some(row.health?.back.out_of_order))),
    maybe("zero_windows", U16(|row| Some(row.health?.forth.zero_windows))),
    maybe("zero_windows_back", U16(|row| Some(row.health?.back.zero_windows))),
    maybe("resets", U8(|row| Some(row.health?.forth.resets))),
    maybe("resets_back", U8(|row| Some(row.health?.back.resets))),
    maybe("closed_by", Text(|row, text| some(row.health.and_then(|tcp| tcp.closed_by).map(|side| side.name()), text))),
    maybe("icmp_type", U8(|row| Some(row.record.icmp()?.0))),
    maybe("icmp_code", U8(|row| Some(row.record.icmp()?.1))),
    maybe("dns_query", Text(|row, text| some(row.name(|names| &names.dns_query), text))),
    maybe("dns_type", U16(|row| row.record.names()?.dns_type)),
    maybe("dns_rcode", U8(|row| row.record.names()?.dns_rcode)),
    maybe("dns_answer", Text(|row, text| some(row.name(|names| &names.dns_answer), text))),
    maybe("tls_sni", Text(|row, text| some(row.name(|names| &names.tls_sni), text))),
    maybe("tls_alpn", Text(|row, text| some(row.name(|names| &names.tls_alpn), text))),
    maybe("http_host", Text(|row, text| some(row.name(|names| &names.http_host), text))),
];

pub(super) static JOINED: Field = always("joined", U32(|row| Some(row.record.joined())));

const fn always(name: &'static str, cell: Cell) -> Field {
    Field { name, is_optional: false, cell }
}

pub(super) const fn maybe(name: &'static str, cell: Cell) -> Field {
    Field { name, is_optional: true, cell }
}

/// Returns the header line of CSV.
pub(super) fn header() -> String {
    FLOW.each_ref().map(|field| field.name).join(",") + "\n"
}

impl Field {
    /// Makes an empty column.
    pub(super) fn column(&self) -> Column {
        let values = match self.cell {
            Time(_) => Values::Time(Vec::new()),
            U8(_) => Values::U8(Vec::new()),
            U16(_) => Values::U16(Vec::new()),
            U32(_) => Values::U32(Vec::new()),
            U64(_) => Values::U64(Vec::new()),
            F64(_) => Values::F64(Vec::new()),
            Text(_) => Values::Text(Vec::new(), Vec::new()),
        };
        Column::new(self.name, &values, self.is_optional)
    }

    pub(super) fn add(&self, rows: &[Row<'_>], column: &mut Column) {
        match self.cell {
            Time(of) | U64(of) => rows.iter().for_each(|row| column.push_number(of(row))),
            U8(of) => rows.iter().for_each(|row| column.push_number(of(row).map(u64::from))),
            U16(of) => rows.iter().for_each(|row| column.push_number(of(row).map(u64::from))),
            U32(of) => rows.iter().for_each(|row| column.push_number(of(row).map(u64::from))),
            F64(of) => rows.iter().for_each(|row| column.push_float(of(row))),
            Text(of) => rows.iter().for_each(|row| column.push_bytes(|text| of(row, text))),
        }
    }
}

/// Nearly all texts of records are shorter, such as addresses.
const TEXT_BYTES: usize = 64;

impl Serialize for FlowRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (row, mut text) = (Row::of(self), Vec::with_capacity(TEXT_BYTES));
        let mut to = serializer.serialize_struct("FlowRecord", FLOW.len())?;
        for Field { name, cell, .. } in &FLOW {
            match cell {
                Time(of) => to.serialize_field(name, &of(&row).map(Rfc3339)),
                U8(of) => to.serialize_field(name, &of(&row)),
                U16(of) => to.serialize_field(name, &of(&row)),
                U32(of) => to.serialize_field(name, &of(&row)),
                U64(of) => to.serialize_field(name, &of(&row)),
                F64(of) => to.serialize_field(name, &of(&row)),
                Text(of) => {
                    text.clear();
                    let is_there = of(&row, &mut text);
                    to.serialize_field(name, &is_there.then(|| std::str::from_utf8(&text).unwrap_or_default()))
                }
            }?;
        }
        to.end()
    }
}

struct Rfc3339(u64);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_nanos(WallTime::from_nanos(self.0).into()))
    }
}

fn some(value: Option<&str>, text: &mut Vec<u8>) -> bool {
    text.extend_from_slice(value.unwrap_or_default().as_bytes());
    value.is_some()
}

pub(super) fn address(address: &Address, text: &mut Vec<u8>) -> bool {
    match address {
        Address::Ip(std::net::IpAddr::V4(address)) => {
            let [a, b, c, d] = address.octets();
            decimal(a, text);
            for octet in [b, c, d] {
                text.push(b'.');
                decimal(octet, text);
            }
        }
        Address::None => return false,
        address => drop(write!(text, "{address}")),
    }
    true
}

/// Appends a decimal number. (Four times as fast as `write!`, which would be called for both
/// addresses of each row.)
fn decimal(octet: u8, text: &mut Vec<u8>) {
    if octet >= 100 {
        text.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        text.push(b'0' + octet / 10 % 10);
    }
    text.push(b'0' + octet % 10);
}
