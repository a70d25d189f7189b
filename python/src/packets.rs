//! A run that creates a row for each packet, and a function that parses the headers of one packet.

use std::fmt::Write as _;
use std::net::IpAddr;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyCapsule, PyDict};
use serde_json::Map;
use steerage::flow::{Dissection, FlowParts, Layers, dissect, protocol};
use steerage::{Batch, Cpu, Handler, LinkType, Packet};
use steerage_meter::{Column, ColumnBatch, Values};

use crate::error::Failure;
use crate::run::{Batcher, Run, Stop, Work};
use crate::{Given, PyRun, ffi, metadata};

#[derive(Clone, Copy)]
enum Field {
    Time,
    Length,
    Captured,
    Link,
    Interface,
    Protocol,
    Source,
    SourcePort,
    Destination,
    DestinationPort,
    TcpFlags,
    IcmpType,
    IcmpCode,
    Vlan,
    VlanInner,
    Tunnel,
    TunnelId,
    FragmentOffset,
    Bucket,
    Payload,
    Data,
}

/// Returns the columns of packets. The last element of a tuple is true if the column may have rows
/// without a value.
fn fields() -> [(Field, &'static str, Values, bool); 21] {
    let (u8s, u16s, u32s) = (|| Values::U8(Vec::new()), || Values::U16(Vec::new()), || Values::U32(Vec::new()));
    let text = || Values::Text(Vec::new(), Vec::new());
    let bytes = || Values::Bytes(Vec::new(), Vec::new());
    [
        (Field::Time, "time", Values::Time(Vec::new()), true),
        (Field::Length, "length", u32s(), false),
        (Field::Captured, "captured", u32s(), false),
        (Field::Link, "link", u16s(), false),
        (Field::Interface, "interface", u16s(), true),
        (Field::Protocol, "protocol", u8s(), true),
        (Field::Source, "source", text(), true),
        (Field::SourcePort, "source_port", u16s(), true),
        (Field::Destination, "destination", text(), true),
        (Field::DestinationPort, "destination_port", u16s(), true),
        (Field::TcpFlags, "tcp_flags", u16s(), true),
        (Field::IcmpType, "icmp_type", u8s(), true),
        (Field::IcmpCode, "icmp_code", u8s(), true),
        (Field::Vlan, "vlan", u16s(), true),
        (Field::VlanInner, "vlan_inner", u16s(), true),
        (Field::Tunnel, "tunnel", text(), true),
        (Field::TunnelId, "tunnel_id", u32s(), true),
        (Field::FragmentOffset, "fragment_offset", u32s(), true),
        (Field::Bucket, "bucket", u16s(), false),
        (Field::Payload, "payload", bytes(), true),
        (Field::Data, "data", bytes(), false),
    ]
}

/// Without names, returns all columns except those that contain packet bytes.
fn columns(names: Option<&[String]>) -> Result<(ColumnBatch, Vec<Field>), Failure> {
    let all = fields().map(|(field, name, values, optional)| (field, Column::new(name, &values, optional)));
    let batch = ColumnBatch::new(all.iter().map(|(_, column)| column.clone()).collect());
    let chosen = match names {
        Some(names) => batch.chosen(names)?,
        None => {
            let no_copies = all.iter().filter(|(field, _)| !matches!(field, Field::Payload | Field::Data));
            ColumnBatch::new(no_copies.map(|(_, column)| column.clone()).collect())
        }
    };
    let field_of =
        |column: &Column| all.iter().find(|(_, known)| known.name() == column.name()).map(|(field, _)| *field);
    let fields = chosen.columns().iter().filter_map(field_of).collect();
    Ok((chosen, fields))
}

/// Starts a run that makes a row for each packet, and waits for its first batches.
#[pyfunction]
pub(crate) fn packets(py: Python<'_>, given: Given, names: Option<Vec<String>>, strict: bool) -> PyResult<PyRun> {
    let (source, options) = given.split(py);
    let start = || {
        let (columns, fields) = columns(names.as_deref())?;
        Run::start(source, options, columns, |batching, stop| {
            let batching = batching.clone();
            let make = move || Rows { batcher: batching.own(), fields: fields.clone(), stop: stop.clone() };
            Ok(Work { make: Box::new(make), finish: Box::new(|_, _| (Map::new(), None)) })
        })
    };
    let run = py.detach(start).map_err(|failure| failure.exception(py))?;
    PyRun::started(py, run, strict)
}

/// Returns a capsule with the Arrow schema of packets. `report` is the ledger (packet counters) of
/// the last run as JSON.
#[pyfunction]
#[pyo3(signature = (names, report))]
pub(crate) fn packet_schema<'py>(
    py: Python<'py>,
    names: Option<Vec<String>>,
    report: Option<String>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (columns, _) = columns(names.as_deref()).map_err(|failure| failure.exception(py))?;
    ffi::schema(py, &columns, &metadata(report))
}

struct Rows {
    batcher: Batcher,
    fields: Vec<Field>,
    stop: Stop,
}

impl Handler for Rows {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let (count, fields) = (batch.len(), &self.fields);
        let added = self.batcher.add_rows(count, |columns| {
            for packet in batch.iter_mut() {
                let found = packet.dissection();
                for (field, column) in fields.iter().zip(columns.columns_mut()) {
                    add(*field, column, &packet, &found);
                }
            }
        });
        if added.is_err() {
            self.stop.stop();
        }
    }

    fn finish(mut self, _cpu: &mut Cpu) {
        // An error means that the consumer has dropped the stream.
        let _ = self.batcher.flush();
    }
}

fn add(field: Field, column: &mut Column, packet: &Packet<'_>, found: &Dissection) {
    let data = packet.data();
    match field {
        Field::Time => column.push_number(packet.time().map(|time| time.as_nanos())),
        Field::Length => column.push_number(Some(packet.wire_len() as u64)),
        Field::Captured => column.push_number(Some(data.len() as u64)),
        Field::Link => column.push_number(Some(packet.link().0.into())),
        Field::Interface => column.push_number(packet.interface().map(u64::from)),
        Field::Protocol => column.push_number(found.ip.map(|ip| ip.protocol.into())),
        Field::Source => push_address(column, addresses(data, found).map(|ends| ends[0])),
        Field::Destination => push_address(column, addresses(data, found).map(|ends| ends[1])),
        Field::SourcePort => column.push_number(ports(found).map(|ports| ports[0].into())),
        Field::DestinationPort => column.push_number(ports(found).map(|ports| ports[1].into())),
        Field::TcpFlags => column.push_number(found.tcp_flags.map(u64::from)),
        Field::IcmpType => column.push_number(found.icmp.map(|(kind, _)| kind.into())),
        Field::IcmpCode => column.push_number(found.icmp.map(|(_, code)| code.into())),
        Field::Vlan => column.push_number(found.vlans[0].map(u64::from)),
        Field::VlanInner => column.push_number(found.vlans[1].map(u64::from)),
        Field::Tunnel => column.push_bytes(|text| {
            found.tunnel.map(|tunnel| text.extend_from_slice(tunnel.kind.to_string().as_bytes())).is_some()
        }),
        Field::TunnelId => column.push_number(found.tunnel.and_then(|tunnel| tunnel.id).map(u64::from)),
        Field::FragmentOffset => column.push_number(found.fragment().map(|fragment| fragment.offset.into())),
        Field::Bucket => column.push_number(Some(packet.bucket().bucket.into())),
        Field::Payload => {
            column.push_bytes(|bytes| payload(data, found).map(|data| bytes.extend_from_slice(data)).is_some())
        }
        Field::Data => column.push_bytes(|bytes| {
            bytes.extend_from_slice(data);
            true
        }),
    }
}

fn push_address(column: &mut Column, address: Option<IpAddr>) {
    column.push_bytes(|text| {
        let mut shown = String::new();
        let _ = address.map(|address| write!(shown, "{address}"));
        text.extend_from_slice(shown.as_bytes());
        address.is_some()
    });
}

/// Returns the addresses in the packet's own IP header, not those that an ICMP error quotes.
fn addresses(data: &[u8], found: &Dissection) -> Option<[IpAddr; 2]> {
    let ip = found.ip?;
    let header = data.get(ip.offset as usize..)?;
    let v4 = |at: usize| Some(IpAddr::from(*header.get(at..)?.first_chunk::<4>()?));
    let v6 = |at: usize| Some(IpAddr::from(*header.get(at..)?.first_chunk::<16>()?));
    if ip.version == 4 { Some([v4(12)?, v4(16)?]) } else { Some([v6(8)?, v6(24)?]) }
}

fn ports(found: &Dissection) -> Option<[u16; 2]> {
    let ip = found.ip.filter(|_| found.transport_offset.is_some() && !found.is_quoted)?;
    if !matches!(ip.protocol, protocol::TCP | protocol::UDP | protocol::SCTP) {
        return None;
    }
    match found.key.parts() {
        FlowParts::V4 { source, destination, .. } => Some([source.port(), destination.port()]),
        FlowParts::V6 { source, destination, .. } => Some([source.port(), destination.port()]),
        _ => None,
    }
}

/// Returns the payload of a TCP, UDP or SCTP packet, without the padding of the frame.
fn payload<'p>(data: &'p [u8], found: &Dissection) -> Option<&'p [u8]> {
    let begin = found.payload_offset? as usize;
    let stated = found.ip.and_then(|ip| Some((ip.offset + ip.stated_bytes?) as usize));
    data.get(begin..stated.unwrap_or(data.len()).min(data.len()))
}

/// Returns the headers of one packet, its flow, and the reason why the parser stopped.
#[pyfunction]
pub(crate) fn explain<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    link: u16,
    outer: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let layers = if outer { Layers::Outer } else { Layers::Inner };
    let found = dissect(&data, LinkType(link), layers);
    let explained = PyDict::new(py);
    let headers: Vec<(String, u32)> = found.headers().map(|header| (header.kind.to_string(), header.offset)).collect();
    explained.set_item("headers", headers)?;
    explained.set_item("flow", found.key.to_string())?;
    explained.set_item("is_quoted", found.is_quoted)?;
    explained.set_item("end", found.end.to_string())?;
    explained.set_item("protocol", found.ip.map(|ip| ip.protocol))?;
    let ends = addresses(&data, &found).map(|ends| ends.map(|end| end.to_string()));
    let [source, destination] = ends.map_or([None, None], |ends| ends.map(Some));
    explained.set_item("source", source)?;
    explained.set_item("destination", destination)?;
    let [source, destination] = ports(&found).map_or([None, None], |ports| ports.map(Some));
    explained.set_item("source_port", source)?;
    explained.set_item("destination_port", destination)?;
    explained.set_item("tcp_flags", found.tcp_flags)?;
    explained.set_item("vlans", found.vlans.into_iter().flatten().collect::<Vec<u16>>())?;
    explained.set_item("tunnel", found.tunnel.map(|tunnel| tunnel.kind.to_string()))?;
    explained.set_item("tunnel_id", found.tunnel.and_then(|tunnel| tunnel.id))?;
    explained.set_item("payload_offset", found.payload_offset)?;
    let fragments = found.fragments.iter().flatten();
    let fragments: Vec<(u32, u32, bool)> = fragments.map(|part| (part.id, part.offset, part.more)).collect();
    explained.set_item("fragments", fragments)?;
    Ok(explained)
}
