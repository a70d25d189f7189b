//! A run that creates a row for each packet, and a function that parses the headers of one packet.

use std::fmt::Display;
use std::io::Write;
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

/// Adds the row of a packet to a column.
type Add = fn(&mut Column, &Packet<'_>, &Dissection);

/// A column of packets.
struct Field {
    name: &'static str,
    values: Values,
    /// True if rows may have no value.
    is_optional: bool,
    add: Add,
}

const U8: Values = Values::U8(Vec::new());
const U16: Values = Values::U16(Vec::new());
const U32: Values = Values::U32(Vec::new());
const TIME: Values = Values::Time(Vec::new());
const TEXT: Values = Values::Text(Vec::new(), Vec::new());
const BYTES: Values = Values::Bytes(Vec::new(), Vec::new());

#[rustfmt::skip]
static FIELDS: [Field; 21] = [
    maybe("time", TIME, |to, packet, _| to.push_number(packet.time().map(|time| time.as_nanos()))),
    always("length", U32, |to, packet, _| to.push_number(Some(packet.wire_len() as u64))),
    always("captured", U32, |to, packet, _| to.push_number(Some(packet.data().len() as u64))),
    always("link", U16, |to, packet, _| to.push_number(Some(packet.link().0.into()))),
    maybe("interface", U16, |to, packet, _| to.push_number(packet.interface().map(u64::from))),
    maybe("protocol", U8, |to, _, found| to.push_number(found.ip.map(|ip| ip.protocol.into()))),
    maybe("source", TEXT, |to, packet, found| push_text(to, addresses(packet.data(), found).map(|ends| ends[0]))),
    maybe("source_port", U16, |to, _, found| to.push_number(ports(found).map(|ports| ports[0].into()))),
    maybe("destination", TEXT, |to, packet, found| push_text(to, addresses(packet.data(), found).map(|ends| ends[1]))),
    maybe("destination_port", U16, |to, _, found| to.push_number(ports(found).map(|ports| ports[1].into()))),
    maybe("tcp_flags", U16, |to, _, found| to.push_number(found.tcp_flags.map(u64::from))),
    maybe("icmp_type", U8, |to, _, found| to.push_number(found.icmp.map(|(kind, _)| kind.into()))),
    maybe("icmp_code", U8, |to, _, found| to.push_number(found.icmp.map(|(_, code)| code.into()))),
    maybe("vlan", U16, |to, _, found| to.push_number(found.vlans[0].map(u64::from))),
    maybe("vlan_inner", U16, |to, _, found| to.push_number(found.vlans[1].map(u64::from))),
    maybe("tunnel", TEXT, |to, _, found| push_text(to, found.tunnel.map(|tunnel| tunnel.kind))),
    maybe("tunnel_id", U32, |to, _, found| to.push_number(found.tunnel.and_then(|tunnel| tunnel.id).map(u64::from))),
    maybe("fragment_offset", U32, |to, _, found| to.push_number(found.fragment().map(|part| part.offset.into()))),
    always("bucket", U16, |to, packet, _| to.push_number(Some(packet.bucket().bucket.into()))),
    maybe("payload", BYTES, |to, packet, found| push_bytes(to, payload(packet.data(), found))),
    always("data", BYTES, |to, packet, _| push_bytes(to, Some(packet.data()))),
];

const fn always(name: &'static str, values: Values, add: Add) -> Field {
    Field { name, values, is_optional: false, add }
}

const fn maybe(name: &'static str, values: Values, add: Add) -> Field {
    Field { name, values, is_optional: true, add }
}

/// Without names, returns all columns except those that contain packet bytes.
fn columns(names: Option<&[String]>) -> Result<(ColumnBatch, Vec<Add>), Failure> {
    let column = |field: &Field| Column::new(field.name, &field.values, field.is_optional);
    let chosen = match names {
        Some(names) => ColumnBatch::new(FIELDS.iter().map(column).collect()).chosen(names)?,
        None => {
            let no_copies = FIELDS.iter().filter(|field| !matches!(field.values, Values::Bytes(..)));
            ColumnBatch::new(no_copies.map(column).collect())
        }
    };
    let add = |column: &Column| FIELDS.iter().find(|field| field.name == column.name()).map(|field| field.add);
    let adds = chosen.columns().iter().filter_map(add).collect();
    Ok((chosen, adds))
}

/// Starts a run that makes a row for each packet, and waits for its first batches.
#[pyfunction]
pub(crate) fn packets(py: Python<'_>, given: Given, names: Option<Vec<String>>, strict: bool) -> PyResult<PyRun> {
    let (source, options) = given.split(py);
    let start = || {
        let (columns, adds) = columns(names.as_deref())?;
        Run::start(source, options, columns, |batching, stop| {
            let batching = batching.clone();
            let make = move || Rows { batcher: batching.own(), adds: adds.clone(), stop: stop.clone() };
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
    adds: Vec<Add>,
    stop: Stop,
}

impl Handler for Rows {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let Self { batcher, adds, .. } = self;
        // Each packet is added on its own, because 64 packets can have 16 MiB.
        let added = batch.iter_mut().try_for_each(|packet| {
            let found = packet.dissection();
            batcher.add_rows(|columns| {
                for (add, column) in adds.iter().zip(columns.columns_mut()) {
                    add(column, &packet, &found);
                }
            })
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

fn push_bytes(column: &mut Column, value: Option<&[u8]>) {
    column.push_bytes(|bytes| {
        bytes.extend_from_slice(value.unwrap_or_default());
        value.is_some()
    });
}

fn push_text(column: &mut Column, value: Option<impl Display>) {
    column.push_bytes(|text| value.is_some_and(|value| write!(text, "{value}").is_ok()));
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
