//! The forwarding table, which packet CPUs read and the control program replaces.
//!
//! A [`Table`] never changes. To change routes, the control program builds a new table and
//! [shows](Shown::show) it. At the start of each batch, a CPU compares the version number of the
//! current table with the version of the table that the CPU uses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use steerage::TxId;

use crate::addresses::Mac;

/// A network interface of the router, named by its index in [`Table::interfaces`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The output device for packets that are sent through the interface.
    pub output: TxId,
    /// The link address. `None` if packets on the interface have no link header.
    pub mac: Option<Mac>,
    /// The MTU: the length of the longest IP packet that the interface sends, in bytes.
    pub mtu: usize,
    /// True if the interface is up and can send packets.
    pub up: bool,
    /// The source address of ICMP errors to hosts on this interface.
    pub ipv4: Option<Ipv4Addr>,
    /// The source address of ICMPv6 errors to hosts on this interface.
    pub ipv6: Option<Ipv6Addr>,
    /// The interface's broadcast addresses ([`broadcast_of`](super::broadcast_of)), which no packet
    /// may have as its source.
    pub broadcasts: Vec<Ipv4Addr>,
}

/// A next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The index of the outgoing interface.
    pub interface: u16,
    /// The address of the next router. `None` if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The weight, which is at least 1. The hop's share of the flows is its weight divided by the
    /// total weight of all hops.
    pub weight: u16,
}

/// The action of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Forward through one of these next hops (at least one). The flow's hash selects the hop.
    Via(Vec<Hop>),
    /// Leave the packet to the kernel: its destination is this machine, or a broadcast address.
    Local,
    /// Drop the packet, and send no ICMP error.
    Blackhole,
    /// Drop the packet, and report that the destination is unreachable.
    Unreachable,
    /// Drop the packet, and report that the route is prohibited.
    Prohibit,
}

/// The routes of both address families, IPv4 and IPv6.
///
/// ```
/// use steerage_router::{Hop, Routes, Target};
///
/// let mut routes = Routes::default();
/// let router = Hop { interface: 1, gateway: Some("192.0.2.1".parse()?), weight: 1 };
/// routes.insert("0.0.0.0/0".parse()?, Target::Via(vec![router]));
/// routes.insert("10.0.0.0/8".parse()?, Target::Unreachable);
/// assert_eq!(routes.v4("10.9.9.9".parse()?), Some(&Target::Unreachable));
/// assert!(matches!(routes.v4("198.51.100.1".parse()?), Some(Target::Via(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Routes {
    v4: PrefixMap<Ipv4Net, u32>,
    v6: PrefixMap<Ipv6Net, u32>,
    /// Most routes of a large table share a few targets.
    targets: Vec<Target>,
    known: HashMap<Target, u32>,
}

impl Routes {
    /// Adds a route, or replaces the route to this prefix.
    pub fn insert(&mut self, prefix: IpNet, target: Target) {
        let next = self.targets.len() as u32;
        let target = *self.known.entry(target).or_insert_with_key(|target| {
            self.targets.push(target.clone());
            next
        });
        match prefix {
            IpNet::V4(prefix) => drop(self.v4.insert(prefix.trunc(), target)),
            IpNet::V6(prefix) => drop(self.v6.insert(prefix.trunc(), target)),
        }
    }

    /// Removes a route.
    pub fn remove(&mut self, prefix: IpNet) {
        match prefix {
            IpNet::V4(prefix) => drop(self.v4.remove(&prefix.trunc())),
            IpNet::V6(prefix) => drop(self.v6.remove(&prefix.trunc())),
        }
    }

    /// Returns the target of the route with the longest prefix that contains this IPv4 address.
    #[inline]
    pub fn v4(&self, to: Ipv4Addr) -> Option<&Target> {
        let (_, at) = self.v4.get_lpm(&Ipv4Net::new_assert(to, 32))?;
        self.targets.get(*at as usize)
    }

    /// Returns the target of the route with the longest prefix that contains this IPv6 address.
    #[inline]
    pub fn v6(&self, to: Ipv6Addr) -> Option<&Target> {
        let (_, at) = self.v6.get_lpm(&Ipv6Net::new_assert(to, 128))?;
        self.targets.get(*at as usize)
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns true if the table has no routes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of distinct targets, including targets that no route uses any more.
    pub fn targets(&self) -> usize {
        self.targets.len()
    }
}

/// A neighbour, with the link address that the kernel has found.
#[derive(Debug)]
pub struct Neighbour {
    /// The link address. `None` if the neighbour did not answer the kernel's request.
    pub mac: Option<Mac>,
    /// True if a packet was sent to the neighbour since the flag was last cleared.
    pub used: AtomicBool,
}

impl Neighbour {
    /// Creates a neighbour with this link address.
    pub fn new(mac: Option<Mac>) -> Self {
        Self { mac, used: AtomicBool::new(false) }
    }

    /// Writes the flag only if it is false, so that CPUs can share the flag's cache line.
    pub(super) fn note_use(&self) {
        // `Relaxed`, like the swap in `take_use`, because the flag publishes no other memory.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Clears the flag `used`. Returns true if the flag was set before.
    pub fn take_use(&self) -> bool {
        // `Relaxed`, as in `note_use`.
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// The neighbours of all interfaces, by index of the interface and address.
pub type Neighbours = HashMap<(u16, IpAddr), Arc<Neighbour>>;

/// The forwarding table: all data with which the router decides to which next hop a packet is sent.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The network interfaces of the router.
    pub interfaces: Vec<Interface>,
    /// The routes for IPv4 and IPv6.
    pub routes: Arc<Routes>,
    /// The neighbours that have a link address, and the neighbours that do not answer.
    pub neighbours: Arc<Neighbours>,
}

/// The current forwarding table, shared by all CPUs.
#[derive(Debug, Default)]
pub struct Shown {
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
    /// Earlier tables that a CPU may still be reading: at most one for each CPU, plus one. The
    /// control thread frees earlier tables, because freeing a million routes would delay a CPU.
    past: Mutex<Vec<Arc<Table>>>,
}

impl Shown {
    /// Replaces the current forwarding table.
    pub fn show(&self, table: Table) {
        let before = {
            let mut shown = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, Arc::new(table))
        };
        // This `Release` pairs with the `Acquire` in `newer`: a CPU that reads the new version
        // number and then takes the lock gets the new table.
        self.version.fetch_add(1, Ordering::Release);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.push(before);
        past.retain(|table| Arc::strong_count(table) > 1);
    }

    /// Returns the current table.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the current table and its version number, if the number differs from `than`.
    #[inline]
    pub(super) fn newer(&self, than: u64) -> Option<(u64, Arc<Table>)> {
        // This `Acquire` pairs with the `Release` in `show`.
        let version = self.version.load(Ordering::Acquire);
        (version != than).then(|| (version, self.table()))
    }
}

/// Chooses a next hop by the flow hash. As in Linux, the flows of a next hop that is down go to the
/// other next hops.
#[inline]
pub(super) fn pick(hops: &[Hop], is_up: impl Fn(&Hop) -> bool, hash: impl FnOnce() -> u32) -> Option<&Hop> {
    if let [only] = hops {
        return Some(only);
    }
    let none_is_up = !hops.iter().any(&is_up);
    let mut usable = hops.iter().filter(|hop| none_is_up || is_up(hop));
    let all: u64 = usable.clone().map(|hop| u64::from(hop.weight)).sum();
    // Hops get shares of the flow hashes by their weights. The upper bits of the hash already
    // select the CPU. The bits of the hash are reversed, because otherwise all flows of a CPU would
    // use the same hop.
    let mut at = (u64::from(hash().reverse_bits()) * all) >> 32;
    usable.find(|hop| {
        let is_here = at < u64::from(hop.weight);
        at = at.saturating_sub(hop.weight.into());
        is_here
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hop(interface: u16, weight: u16) -> Hop {
        Hop { interface, gateway: None, weight }
    }

    #[test]
    fn ways_get_flows_by_their_weights() {
        let hops = [hop(0, 1), hop(1, 3)];
        let mut counts = [0; 2];
        for nth in 0..4000_u32 {
            let hash = nth.wrapping_mul(0x9e37_79b9);
            counts[usize::from(pick(&hops, |_| true, || hash).unwrap().interface)] += 1;
            // The flows of a next hop that is down go to the other one.
            assert_eq!(pick(&hops, |hop| hop.interface == 0, || hash), Some(&hops[0]));
            assert!(pick(&hops, |_| false, || hash).is_some());
        }
        assert!((900..1100).contains(&counts[0]) && counts.iter().sum::<i32>() == 4000, "{counts:?}");
        assert_eq!(pick(&[], |_| true, || 0), None);
    }

    #[test]
    fn a_table_that_nobody_reads_any_more_is_freed() {
        let shown = Shown::default();
        let (version, read) = shown.newer(u64::MAX).unwrap();
        shown.show(Table::default());
        assert!(shown.newer(version).is_some() && Arc::strong_count(&read) == 2);
        shown.show(Table::default());
        assert_eq!(shown.past.lock().unwrap().len(), 1);
        drop(read);
        shown.show(Table::default());
        assert!(shown.past.lock().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn the_longest_prefix_counts(
            routes in prop::collection::vec((any::<u32>(), 0_u8..=32), 1..40),
            wide in prop::collection::vec((any::<u128>(), 0_u8..=128), 1..40),
            host in any::<u128>(),
        ) {
            let mut table = Routes::default();
            let v4 = routes.iter().map(|(bits, len)| IpNet::from(Ipv4Net::new_assert((*bits).into(), *len).trunc()));
            let v6 = wide.iter().map(|(bits, len)| IpNet::from(Ipv6Net::new_assert((*bits).into(), *len).trunc()));
            let all: Vec<(IpNet, u16)> = v4.chain(v6).zip(0..).collect();
            all.iter().for_each(|(prefix, nth)| table.insert(*prefix, Target::Via(vec![hop(*nth, 1)])));
            let naive = |to: IpAddr| {
                let within = all.iter().filter(|(prefix, _)| prefix.contains(&to));
                within.max_by_key(|(prefix, nth)| (prefix.prefix_len(), *nth)).map(|(_, nth)| *nth)
            };
            let found = |target: Option<&Target>| match target {
                Some(Target::Via(hops)) => Some(hops[0].interface),
                _ => None,
            };
            for (prefix, _) in &all {
                let to = match prefix {
                    IpNet::V4(net) => IpAddr::V4((u32::from(net.network()) | u32::from(net.hostmask()) & host as u32).into()),
                    IpNet::V6(net) => IpAddr::V6((u128::from(net.network()) | u128::from(net.hostmask()) & host).into()),
                };
                let got = match to { IpAddr::V4(to) => table.v4(to), IpAddr::V6(to) => table.v6(to) };
                prop_assert_eq!(found(got), naive(to));
            }
            let to = Ipv4Addr::from(host as u32);
            prop_assert_eq!(found(table.v4(to)), naive(to.into()));
            for (prefix, _) in &all {
                table.remove(*prefix);
            }
            prop_assert!(table.is_empty() && table.v4(to).is_none());
        }
    }
}
