//! Finds names in the packets of a flow: those of its DNS query and response, and the host name in
//! TLS or HTTP.
//!
//! Only the beginning of each direction of a flow is read: at most [`LOOKS_MAX`] segments with
//! data, of which at most [`STREAM_MAX`] bytes are kept. `docs/meter.md` lists the names that are
//! found.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | names as text: bounded, printable, without spaces |
//! | `dns`, `tls`, `http` | read a message |
//! | `proxy` | skips what a load balancer sends before the first message |
//! | `watch` | finds messages in one flow |
//! | `log` | what was found in a piece of a flow, if a part of a recording is metered |

mod dns;
mod http;
mod log;
mod outcome;
mod proxy;
mod text;
mod tls;
mod watch;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use steerage::flow::wire::tcp::SYN;
use steerage::flow::{Layers, protocol};
use steerage::{LinkType, packet::Received};

use super::flow::{Flow, FlowEnd, Seen};
use super::key::{Key, SPREAD};
use super::read;
use watch::Watch;

pub(super) use log::Log;
pub(super) use watch::{Payload, names_of, read_stream};

pub(super) const LOOKS_MAX: u8 = 8;

/// A TLS ClientHello with a post-quantum key has 1,800 bytes.
pub(super) const STREAM_MAX: usize = 4096;

/// The buffers of flows that wait for the rest of a message take at most 8 MiB per CPU.
const WAITING_MAX: usize = 1024;

/// A DNS name without unprintable bytes is never longer than 255 bytes.
pub(super) const TEXT_MAX: usize = 255;

const DNS_PORT: u16 = 53;

/// The names in a flow's packets. Unprintable bytes, spaces, commas and backslashes are written as
/// `\DDD`. Each text has at most 255 bytes: a longer name is cut, and `dns_answer` ends before the
/// first value that does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowNames {
    /// The name in the first DNS query.
    pub dns_query: Option<Box<str>>,
    /// The type of the first DNS query, such as 1 for an IPv4 address.
    pub dns_type: Option<u16>,
    /// The DNS response code, such as 0 (no error) or 3 (no such name).
    pub dns_rcode: Option<u8>,
    /// The addresses and names in the DNS response, separated by spaces.
    pub dns_answer: Option<Box<str>>,
    /// The server name in the TLS ClientHello.
    pub tls_sni: Option<Box<str>>,
    /// The protocols that the client offered in TLS (ALPN), separated by commas.
    pub tls_alpn: Option<Box<str>>,
    /// The host of the first HTTP request.
    pub http_host: Option<Box<str>>,
}

impl FlowNames {
    /// Adds names of a later packet, but replaces no name that is known already.
    fn complete(&mut self, later: &Self) {
        if self.dns_query.is_none() {
            (self.dns_query, self.dns_type) = (later.dns_query.clone(), later.dns_type);
        }
        if self.dns_rcode.is_none() {
            (self.dns_rcode, self.dns_answer) = (later.dns_rcode, later.dns_answer.clone());
        }
        if self.tls_sni.is_none() && self.tls_alpn.is_none() {
            (self.tls_sni, self.tls_alpn) = (later.tls_sni.clone(), later.tls_alpn.clone());
        }
        if self.http_host.is_none() {
            self.http_host.clone_from(&later.http_host);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed {
    hash: u32,
    key: Key,
}

impl Hashed {
    pub(super) fn new(key: &Key, hash: u32) -> Self {
        Self { hash, key: *key }
    }
}

impl PartialEq for Hashed {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Hashed {}

impl Hash for Hashed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.hash);
    }
}

/// Spreads a 32-bit hash, which attackers cannot predict, over 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(SPREAD);
    }
}

#[derive(Debug, Default)]
pub(super) struct Names {
    is_on: bool,
    has_logs: bool,
    flows: HashMap<Hashed, Watch, BuildHasherDefault<Spread>>,
    waiting: usize,
}

#[derive(Debug)]
pub(super) struct DepartedNames(Vec<(Hashed, Watch)>);

impl Names {
    pub(super) fn new(is_on: bool, of_part: bool) -> Self {
        Self { is_on, has_logs: of_part, ..Self::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn look(&mut self, seen: &Seen, packet: &Received<'_>, layers: Layers) {
        let (protocol, ports) = (seen.flow.key.protocol(), seen.flow.key.ports());
        let is_dns = ports.0 == DNS_PORT || ports.1 == DNS_PORT;
        let is_stream = seen.segment.is_there && seen.segment.bytes > 0;
        if !(is_stream || is_dns && protocol == protocol::UDP) {
            return;
        }
        let flow = Hashed::new(&seen.flow.key, seen.hash);
        let begin = if self.has_logs { Watch::with_log } else { Watch::default };
        let watch = self.flows.entry(flow).or_insert_with(begin);
        let side = usize::from(seen.flow.turned);
        if !watch.wants(side, is_stream) {
            return;
        }
        let waited = watch.waits();
        if let Some(payload) = payload(seen, packet, layers) {
            watch.look(side, &payload, is_dns, self.waiting < WAITING_MAX || waited);
        }
        self.waiting = self.waiting + usize::from(watch.waits()) - usize::from(waited);
    }

    /// If another record continues the flow, the names are also kept for that record.
    pub(super) fn end(&mut self, key: &Key, hash: u32, why: FlowEnd) -> Option<Arc<FlowNames>> {
        let flow = Hashed::new(key, hash);
        if why == FlowEnd::Active {
            return self.flows.get(&flow)?.names();
        }
        let watch = self.flows.remove(&flow)?;
        self.waiting -= usize::from(watch.waits());
        watch.names()
    }

    pub(super) fn take_log(&mut self, flow: &Flow) -> Option<Box<Log>> {
        let watch = self.flows.remove(&Hashed::new(&flow.key, flow.hash))?;
        self.waiting -= usize::from(watch.waits());
        watch.into_log()
    }

    pub(super) fn get(&self, key: &Key, hash: u32) -> Option<Arc<FlowNames>> {
        self.flows.get(&Hashed::new(key, hash))?.names()
    }

    pub(super) fn depart<'a>(&mut self, flows: impl Iterator<Item = (&'a Key, u32)>) -> DepartedNames {
        if !self.is_on {
            return DepartedNames(Vec::new());
        }
        let found = flows.filter_map(|(key, hash)| self.flows.remove_entry(&Hashed::new(key, hash)));
        let departed: Vec<_> = found.collect();
        self.waiting -= departed.iter().filter(|(_, watch)| watch.waits()).count();
        DepartedNames(departed)
    }

    pub(super) fn arrive(&mut self, departed: DepartedNames) {
        for (flow, watch) in departed.0 {
            self.waiting += usize::from(watch.waits());
            if let Some(here) = self.flows.insert(flow, watch) {
                self.waiting -= usize::from(here.waits());
            }
        }
    }
}

/// Returns the payload in which names are searched, or `None` if there is no payload or an ICMP
/// error quotes the packet.
fn payload<'p>(seen: &Seen, packet: &Received<'p>, layers: Layers) -> Option<Payload<'p>> {
    let data: &'p [u8] = packet.data;
    let link: LinkType = packet.link;
    let found = read::dissect(data, link, layers);
    let transport = data.get(found.transport_offset.filter(|_| !found.is_quoted)? as usize..)?;
    if seen.segment.is_there {
        let header = usize::from(transport.get(12)? >> 4) * 4;
        let data = transport.get(header..)?;
        let bytes = seen.segment.bytes as usize;
        let data = &data[..data.len().min(bytes)];
        // If a SYN carries data, the SYN takes the sequence number before the data (RFC 7413).
        let sequence = seen.segment.sequence.wrapping_add(u32::from(seen.tcp_flags & SYN != 0));
        Some(Payload { data, sequence: Some(sequence), is_whole: data.len() == bytes })
    } else {
        let length = usize::from(u16::from_be_bytes(*transport.get(4..)?.first_chunk()?));
        let data = transport.get(8..)?;
        let data = &data[..data.len().min(length.saturating_sub(8))];
        Some(Payload { data, sequence: None, is_whole: true })
    }
}
