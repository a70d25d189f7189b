//! A packet handler that forwards IPv4 and IPv6 packets like a router.
//!
//! docs/forward.md describes which packets are forwarded and which are dropped. This file contains
//! the functions that handle every packet. The other files of the crate are:
//!
//! | file | contents |
//! |---|---|
//! | `header` | reads a header, and refuses packets that must not be forwarded |
//! | `table` | the longest prefix, its next hop, the next hop's link address |
//! | `icmp`, `limit` | ICMP errors in place of packets, and their rate limit |
//! | `wanted` | neighbours whose link addresses must be found |
//! | `reason` | counts of what happened to packets |
//! | [`addresses`] | which addresses a packet may come from and go to |
//! | [`kernel`] | keeps the table equal to the kernel's routes and neighbours |
//!
//! The caller creates the [`Table`] and resolves neighbours, either with [`kernel`] or with its own
//! code. Only [`kernel`] communicates with the kernel.
#![forbid(unsafe_code)]

pub mod addresses;
mod header;
mod icmp;
pub mod kernel;
mod limit;
mod reason;
mod table;
#[cfg(test)]
mod tests;
mod wanted;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::flow::wire::checksum::adjusted;
use steerage::flow::wire::{be16, ethernet, ethertype, put};
use steerage::{Affinity, Batch, Cpu, Handler, LinkType, NoRoom, Packet, Timestamp, TxId};

use header::Ip;
use icmp::Problem;
use limit::Bucket;
use reason::Shared;

pub use crate::addresses::{Mac, broadcast_of};
pub use limit::{ICMP_ERRORS_BURST, ICMP_ERRORS_PER_SECOND};
pub use reason::{Fate, Forwarded};
pub use table::{Hop, Interface, Neighbour, Neighbours, Routes, Shown, Table, Target};
pub use wanted::{WANTED_MAX, Wanted, Wish};

/// A CPU without packets checks for a newer forwarding table at this interval, to free the old
/// table.
const IDLE_LOOK: Duration = Duration::from_millis(500);

/// The state that forwarding CPUs share with the program that controls them.
///
/// ```
/// use std::sync::Arc;
///
/// use steerage::testing;
/// use steerage_router::{Forwarding, Routes, Table};
///
/// // The packets of receive queue 0 come by interface 0.
/// let forwarding = Forwarding::new(vec![0])?;
/// // A program that follows the kernel's routes shows a new table when they change.
/// forwarding.show(Table { routes: Arc::new(Routes::default()), ..Table::default() });
///
/// let handlers = Arc::clone(&forwarding);
/// testing::run(move |_cpu| handlers.handler(), [[0; 60]]);
/// println!("{:?}", forwarding.so_far());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Forwarding {
    /// The index of the interface of each receive queue.
    queues: Vec<u16>,
    shown: Shown,
    wanted: Wanted,
    counts: Mutex<Vec<Arc<Shared>>>,
}

impl Forwarding {
    /// Creates the shared state with an empty table, which forwards no packets. `queues` contains
    /// the index in [`Table::interfaces`] of each receive queue's interface.
    ///
    /// # Errors
    /// Fails if the kernel cannot create the sockets that [`Wanted`] uses for wake-ups.
    pub fn new(queues: Vec<u16>) -> io::Result<Arc<Self>> {
        let (shown, wanted) = (Shown::default(), Wanted::new()?);
        Ok(Arc::new(Self { queues, shown, wanted, counts: Mutex::default() }))
    }

    /// Replaces the forwarding table. Each CPU uses the new table from its next batch on.
    pub fn show(&self, table: Table) {
        self.shown.show(table);
    }

    /// Returns the current forwarding table.
    pub fn table(&self) -> Arc<Table> {
        self.shown.table()
    }

    /// Returns the list of neighbours for which the router needs a link address.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Returns how many packets had each fate (forwarded, dropped, ...), summed over all CPUs.
    pub fn so_far(&self) -> Forwarded {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().fold(Forwarded::default(), |mut all, counts| {
            all.merge(&counts.read());
            all
        })
    }

    /// Creates the packet handler of one CPU.
    pub fn handler(self: &Arc<Self>) -> Forward {
        let counts = Arc::default();
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counts));
        Forward {
            shared: Arc::clone(self),
            counts,
            counted: Forwarded::default(),
            version: u64::MAX,
            table: None,
            errors: Bucket::new(),
            wishes: Vec::with_capacity(WANTED_MAX),
        }
    }
}

/// The handler that forwards packets. [`Forwarding::handler`] creates it.
#[derive(Debug)]
pub struct Forward {
    shared: Arc<Forwarding>,
    counts: Arc<Shared>,
    counted: Forwarded,
    version: u64,
    table: Option<Arc<Table>>,
    errors: Bucket,
    wishes: Vec<Wish>,
}

impl Handler for Forward {
    const AFFINITY: Affinity = Affinity::OneDirection;

    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.refresh();
        // The table is not cloned, because all CPUs would then write to the cache line of the
        // table's reference count.
        let Some(table) = self.table.take() else { return };
        self.handle_by(&table, batch, cpu.now());
        self.table = Some(table);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.refresh();
        Some(cpu.now() + IDLE_LOOK)
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

struct Came<'t> {
    interface: &'t Interface,
    now: Timestamp,
}

struct Way {
    output: TxId,
    /// Destination and source link addresses. `None` if the packet has no link header.
    link: Option<(Mac, Mac)>,
}

struct Refused {
    fate: Fate,
    problem: Option<Problem>,
}

impl From<Fate> for Refused {
    fn from(fate: Fate) -> Self {
        Self { fate, problem: None }
    }
}

fn refused(fate: Fate, problem: Problem) -> Refused {
    Refused { fate, problem: Some(problem) }
}

impl Forward {
    fn refresh(&mut self) {
        if let Some((version, table)) = self.shared.shown.newer(self.version) {
            (self.version, self.table) = (version, Some(table));
        }
    }

    fn handle_by(&mut self, table: &Table, batch: &mut Batch<'_>, now: Timestamp) {
        let came = self.shared.queues.get(batch.queue()).copied();
        let Some(interface) = came.and_then(|number| table.interfaces.get(usize::from(number))) else { return };
        let came = Came { interface, now };
        for packet in batch.iter_mut() {
            let fate = self.forward(packet, table, &came);
            self.counted.count(fate);
        }
        if !self.wishes.is_empty() {
            self.shared.wanted.ask(&mut self.wishes);
        }
        self.counts.show(&self.counted);
    }

    fn forward(&mut self, mut packet: Packet<'_>, table: &Table, came: &Came<'_>) -> Fate {
        let ip = match ip_within(&packet, came.interface) {
            Ok(ip) => ip,
            Err(fate) => return drop_as(packet, fate),
        };
        let hops = route(&ip, table);
        match hops.and_then(|hops| self.way(&packet, &ip, hops, table, came)) {
            Ok(way) => match rewrite(&mut packet, &ip, &way) {
                Ok(()) => {
                    packet.transmit(way.output);
                    Fate::Forwarded
                }
                Err(_) => drop_as(packet, Fate::NoRoom),
            },
            Err(refused) => self.refuse(packet, &ip, came, refused),
        }
    }

    fn way(
        &mut self,
        packet: &Packet<'_>,
        ip: &Ip,
        hops: &[Hop],
        table: &Table,
        came: &Came<'_>,
    ) -> Result<Way, Refused> {
        let is_up = |hop: &Hop| table.interfaces.get(usize::from(hop.interface)).is_some_and(|leaves| leaves.up);
        let hop = table::pick(hops, is_up, || packet.flow_hash().0).ok_or(Fate::NoRoute)?;
        let leaves = table.interfaces.get(usize::from(hop.interface)).ok_or(Fate::NoRoute)?;
        if !leaves.up {
            return Err(refused(Fate::Down, Problem::HostUnreachable));
        }
        // The output splits a super-frame, so the length of its longest packet is compared with the
        // MTU.
        let longest = packet.offload().map_or(ip.len, |offload| match offload.is_super_frame() {
            true => offload.packet_bytes_max(packet.total_len()),
            false => ip.len,
        });
        if longest > leaves.mtu {
            return Err(match longest > came.interface.mtu {
                true => Fate::Merged.into(),
                false => refused(Fate::TooBig, Problem::TooBig(leaves.mtu)),
            });
        }
        let Some(from) = leaves.mac else { return Ok(Way { output: leaves.output, link: None }) };
        let wish = (hop.interface, hop.gateway.unwrap_or(ip.destination));
        let neighbour = table.neighbours.get(&wish);
        if let Some((neighbour, to)) = neighbour.and_then(|neighbour| Some((neighbour, neighbour.mac?))) {
            neighbour.note_use();
            return Ok(Way { output: leaves.output, link: Some((to, from)) });
        }
        if self.wishes.len() < WANTED_MAX && !self.wishes.contains(&wish) {
            self.wishes.push(wish);
        }
        Err(match neighbour {
            Some(_) => refused(Fate::HostUnreachable, Problem::HostUnreachable),
            None => Fate::Unresolved.into(),
        })
    }

    fn refuse(&mut self, mut packet: Packet<'_>, ip: &Ip, came: &Came<'_>, refused: Refused) -> Fate {
        let Refused { fate, problem: Some(problem) } = refused else { return drop_as(packet, refused.fate) };
        let headers = packet.data().get(ip.at..).unwrap_or_default();
        let headers = &headers[..headers.len().min(ip.len)];
        let (may, source) = match ip.destination {
            IpAddr::V4(_) => (header::may_answer_v4(headers), came.interface.ipv4.map(IpAddr::V4)),
            IpAddr::V6(_) => (header::may_answer_v6(headers), came.interface.ipv6.map(IpAddr::V6)),
        };
        let Some(source) = source.filter(|_| may) else { return drop_as(packet, fate) };
        if !self.errors.take(came.now) {
            self.counted.icmp_suppressed += 1;
            return drop_as(packet, fate);
        }
        if icmp::answer(&mut packet, ip.at, ip.len, source, problem).is_err() {
            return drop_as(packet, fate);
        }
        self.counted.icmp_sent += 1;
        packet.transmit(came.interface.output);
        fate
    }
}

/// A packet for the kernel or for another host is left unchanged.
fn drop_as(packet: Packet<'_>, fate: Fate) -> Fate {
    if !fate.is_not_ours() {
        packet.discard();
    }
    fate
}

#[inline]
fn ip_within(packet: &Packet<'_>, interface: &Interface) -> Result<Ip, Fate> {
    let received = packet.received();
    let data = received.data;
    let (at, is_v4) = match received.link {
        LinkType::ETHERNET => (ethernet::BYTES, is_v4_in_ethernet(data, interface)?),
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => match data.first().map(|byte| byte >> 4) {
            Some(version @ (4 | 6)) => (0, version == 4),
            _ => return Err(Fate::BadHeader),
        },
        _ => return Err(Fate::NotIp),
    };
    // The received frame was truncated, so the router could forward only a part of the packet.
    if received.wire_len > received.total_len {
        return Err(Fate::BadHeader);
    }
    match is_v4 {
        true => header::v4(data, at, received.total_len, &interface.broadcasts),
        false => header::v6(data, at, received.total_len),
    }
}

#[inline]
fn is_v4_in_ethernet(frame: &[u8], interface: &Interface) -> Result<bool, Fate> {
    let header: &[u8; ethernet::BYTES] = frame.first_chunk().ok_or(Fate::BadHeader)?;
    // A router never forwards a frame that was sent as a link-level broadcast or multicast.
    if header[0] & 1 != 0 {
        return Err(Fate::Local);
    }
    if interface.mac.is_some_and(|mac| header[..6] != mac) {
        return Err(Fate::OtherHost);
    }
    match be16(header, 12) {
        ethertype::IPV4 => Ok(true),
        ethertype::IPV6 => Ok(false),
        _ => Err(Fate::NotIp),
    }
}

#[inline]
fn route<'t>(ip: &Ip, table: &'t Table) -> Result<&'t [Hop], Refused> {
    let target = match ip.destination {
        IpAddr::V4(to) => table.routes.v4(to),
        IpAddr::V6(to) => table.routes.v6(to),
    };
    match target {
        Some(Target::Local) => Err(Fate::Local.into()),
        _ if ip.link_local => Err(Fate::LinkLocal.into()),
        _ if ip.ttl <= 1 => Err(refused(Fate::TtlExpired, Problem::TimeExceeded)),
        Some(Target::Via(hops)) => Ok(hops),
        Some(Target::Blackhole) => Err(Fate::Prohibited.into()),
        Some(Target::Prohibit) => Err(refused(Fate::Prohibited, Problem::Prohibited)),
        Some(Target::Unreachable) => Err(refused(Fate::NoRoute, Problem::HostUnreachable)),
        None => Err(refused(Fate::NoRoute, Problem::NoRoute)),
    }
}

#[inline]
fn rewrite(packet: &mut Packet<'_>, ip: &Ip, way: &Way) -> Result<(), NoRoom> {
    if packet.total_len() > ip.at + ip.len {
        packet.truncate(ip.at + ip.len)?;
    }
    match (ip.at, way.link) {
        (0, Some(_)) => {
            packet.prepend(ethernet::BYTES)?;
            packet.set_link(LinkType::ETHERNET);
        }
        (ethernet::BYTES, None) => {
            packet.trim_front(ethernet::BYTES)?;
            packet.set_link(LinkType::RAW);
        }
        _ => {}
    }
    let data = packet.data_mut()?;
    let header = match way.link {
        Some((to, from)) => {
            let (link, header) = data.split_at_mut(ethernet::BYTES);
            link[..6].copy_from_slice(&to);
            link[6..12].copy_from_slice(&from);
            let ethertype = if ip.destination.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
            link[ethernet::TYPE_AT..].copy_from_slice(&ethertype.to_be_bytes());
            header
        }
        None => data,
    };
    if ip.destination.is_ipv4() {
        let word = be16(header, 8);
        let checksum = adjusted(be16(header, 10), word, word - 0x100);
        header[8] -= 1;
        put(header, 10, checksum.to_be_bytes());
    } else {
        header[7] -= 1;
    }
    Ok(())
}
