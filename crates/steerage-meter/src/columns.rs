//! The columns of flow records in Parquet files and in batches.

use std::io::Write;

use steerage::WallTime;

use super::record::Address;
use super::row::Row;

pub(super) fn columns(to: &mut impl Columns) {
    to.time("first", |row| row.first);
    to.time("last", |row| row.last);
    to.word("kind", |row, text| text.extend_from_slice(row.kind.as_bytes()));
    to.number("protocol", |row| row.protocol);
    to.text("source", |row, text| address(&row.source, text));
    to.number("source_port", |row| row.source_port);
    to.text("destination", |row, text| address(&row.destination, text));
    to.number("destination_port", |row| row.destination_port);
    to.number("ethertype", |row| row.ethertype);
    to.count("packets", |row| row.packets);
    to.count("bytes", |row| row.bytes);
    to.count("ip_bytes", |row| row.ip_bytes);
    to.count("packets_back", |row| row.packets_back);
    to.count("bytes_back", |row| row.bytes_back);
    to.count("ip_bytes_back", |row| row.ip_bytes_back);
    to.number("tcp_flags", |row| row.tcp_flags);
    to.number("tcp_flags_back", |row| row.tcp_flags_back);
    to.number("vlan", |row| row.vlan);
    to.number("vlan_inner", |row| row.vlan_inner);
    to.text("tunnel", |row, text| some(row.tunnel.as_deref(), text));
    to.number("tunnel_id", |row| row.tunnel_id);
    to.word("end", |row, text| text.extend_from_slice(row.end.name().as_bytes()));
    to.number("handshake_us", |row| row.handshake_us);
    to.number("retransmitted", |row| row.retransmitted);
    to.number("retransmitted_back", |row| row.retransmitted_back);
    to.number("out_of_order", |row| row.out_of_order);
    to.number("out_of_order_back", |row| row.out_of_order_back);
    to.number("zero_windows", |row| row.zero_windows);
    to.number("zero_windows_back", |row| row.zero_windows_back);
    to.number("resets", |row| row.resets);
    to.number("resets_back", |row| row.resets_back);
    to.text("closed_by", |row, text| some(row.closed_by.map(|side| side.name()), text));
    to.number("icmp_type", |row| row.icmp_type);
    to.number("icmp_code", |row| row.icmp_code);
    to.text("dns_query", |row, text| some(row.dns_query, text));
    to.number("dns_type", |row| row.dns_type);
    to.number("dns_rcode", |row| row.dns_rcode);
    to.text("dns_answer", |row, text| some(row.dns_answer, text));
    to.text("tls_sni", |row, text| some(row.tls_sni, text));
    to.text("tls_alpn", |row, text| some(row.tls_alpn, text));
    to.text("http_host", |row, text| some(row.http_host, text));
}

pub(super) trait Columns {
    fn time(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> WallTime);
    fn count(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> u64);
    fn number<N: Number>(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> Option<N>);
    /// Adds a column in which each row has a text, which `of` appends to the vector.
    fn word(&mut self, name: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>));
    /// `of` appends a text to the vector, or returns false if the row has no text.
    fn text(&mut self, name: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool);
}

pub(super) trait Number: Copy {
    const BITS: u32;
    fn to_u32(self) -> u32;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            const BITS: u32 = <$number>::BITS;
            #[inline(always)]
            fn to_u32(self) -> u32 {
                self.into()
            }
        }
    )*};
}

numbers!(u8, u16, u32);

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
        Address::Ip(address) => drop(write!(text, "{address}")),
        Address::Station(station) => station.iter().enumerate().for_each(|(nth, byte)| {
            drop(write!(text, "{}{byte:02x}", if nth == 0 { "" } else { ":" }));
        }),
        Address::None => return false,
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
