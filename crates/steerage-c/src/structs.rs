//! The structs of `steerage.h` that the library fills in.

use std::ptr;

use steerage::FlowKey;
use steerage::flow::FlowParts;
use steerage::packet::Received;
use steerage::stats::{CpuSnapshot, DropReason, Drops, Verdicts};

/// `steerage_packet` of the C header.
#[repr(C)]
pub(crate) struct PacketView {
    data: *const u8,
    len: u32,
    total_len: u32,
    wire_len: u32,
    link: u32,
    time_ns: u64,
}

impl PacketView {
    pub(crate) const NONE: Self = Self { data: ptr::null(), len: 0, total_len: 0, wire_len: 0, link: 0, time_ns: 0 };

    pub(crate) fn of(received: &Received<'_>) -> Self {
        Self {
            data: received.data.as_ptr(),
            len: received.data.len() as u32,
            total_len: received.total_len as u32,
            wire_len: received.wire_len as u32,
            link: received.link.0.into(),
            time_ns: received.time.map_or(0, |time| time.as_nanos()),
        }
    }
}

/// `steerage_flow` of the C header.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct FlowView {
    version: u8,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
    source: [u8; 16],
    destination: [u8; 16],
}

impl FlowView {
    pub(crate) fn of(key: &FlowKey) -> Option<Self> {
        let mut flow = Self::default();
        match key.parts() {
            FlowParts::V4 { source, destination, protocol } => {
                (flow.version, flow.protocol) = (4, protocol);
                (flow.source_port, flow.destination_port) = (source.port(), destination.port());
                flow.source[..4].copy_from_slice(&source.ip().octets());
                flow.destination[..4].copy_from_slice(&destination.ip().octets());
            }
            FlowParts::V6 { source, destination, protocol } => {
                (flow.version, flow.protocol) = (6, protocol);
                (flow.source_port, flow.destination_port) = (source.port(), destination.port());
                (flow.source, flow.destination) = (source.ip().octets(), destination.ip().octets());
            }
            _ => return None,
        }
        Some(flow)
    }
}

/// `steerage_ledger` of the C header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ledger {
    received: u64,
    received_bytes: u64,
    delivered: u64,
    discarded: u64,
    in_flight: u64,
    dropped: u64,
    dropped_by: [u64; DropReason::ALL.len()],
    buckets_moved: u64,
}

// A new drop reason goes to the end of the header's struct, after `buckets_moved`.
const _: () = assert!(DropReason::ALL.len() == 13);

impl Ledger {
    pub(crate) fn new(received: [u64; 4], verdicts: &Verdicts, dropped: &Drops, buckets_moved: u64) -> Self {
        let [received, received_bytes, delivered, in_flight] = received;
        let dropped_by = DropReason::ALL.map(|reason| dropped.get(reason));
        let (discarded, dropped) = (verdicts.discarded, dropped.total());
        Self { received, received_bytes, delivered, discarded, in_flight, dropped, dropped_by, buckets_moved }
    }
}

/// `steerage_cpu_ledger` of the C header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CpuLedger {
    cpu: u64,
    polled: u64,
    handed_in: u64,
    processed: u64,
    dropped: u64,
    backlog: u64,
    busy_ns: u64,
}

impl CpuLedger {
    pub(crate) fn of(cpu: &CpuSnapshot) -> Self {
        Self {
            cpu: u64::from(cpu.cpu.0),
            polled: cpu.polled,
            handed_in: cpu.handed_in,
            processed: cpu.processed,
            dropped: cpu.dropped.total(),
            backlog: cpu.backlog,
            busy_ns: cpu.busy.as_nanos() as u64,
        }
    }
}
