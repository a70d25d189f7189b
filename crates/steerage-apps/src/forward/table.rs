//! Where packets go: what the data path reads, and what the control side puts in its place.
//!
//! A [`Table`] never changes once it is shown. Whoever keeps it up to date makes another and [shows](Shown::show) that; each
//! CPU looks at the start of a batch whether there is a newer one, by one load of a version.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use steerage::TxId;

use crate::addresses::Mac;

/// An interface that packets come and go by, known by its place in [`Table::interfaces`].
/// [`Routes`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Where to send what leaves by it.
    pub output: TxId,
    /// Its link address; `None` where packets have no link header.
    pub mac: Option<Mac>,
    /// The longest IP packet that it sends, in bytes.
    pub mtu: usize,
    /// Whether it can send.
    pub up: bool,
    /// What ICMP errors come from.
    pub ipv4: Option<Ipv4Addr>,
    /// What ICMPv6 errors come from.
    pub ipv6: Option<Ipv6Addr>,
    /// The broadcast addresses of its networks ([`broadcast_of`](super::broadcast_of)): no packet comes from these.
    pub broadcasts: Vec<Ipv4Addr>,
}

/// A way to go.
/// [`Routes`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// By which interface.
    pub interface: u16,
    /// By which router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Its share of flows, beside those of the route's other ways. 1 at least.
    pub weight: u16,
}

/// What a route says.
/// [`Routes`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// By one of these, which the flow's hash says. There is one at least.
    Via(Vec<Hop>),
    /// The address is this machine's, or a broadcast of its links: the kernel's.
    Local,
    /// Drop, and say nothing.
    Blackhole,
    /// Drop, and say that there is no way.
    Unreachable,
    /// Drop, and say that it is forbidden.
    Prohibit,
}

/// Routes of both families.
///
/// ```
/// use steerage_apps::forward::{Hop, Routes, Target};
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
    /// Each of them once: most routes of a large table go the same few ways.
    targets: Vec<Target>,
    /// Where each is in `targets`.
    known: HashMap<Target, u32>,
}

impl Routes {
    /// Adds a route, in the place of one for the same prefix if there is one.
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

    /// Takes a route away.
    pub fn remove(&mut self, prefix: IpNet) {
        match prefix {
            IpNet::V4(prefix) => drop(self.v4.remove(&prefix.trunc())),
            IpNet::V6(prefix) => drop(self.v6.remove(&prefix.trunc())),
        }
    }

    /// The route with the longest prefix of the address.
    #[inline]
    pub fn v4(&self, to: Ipv4Addr) -> Option<&Target> {
        let (_, at) = self.v4.get_lpm(&Ipv4Net::new_assert(to, 32))?;
        self.targets.get(*at as usize)
    }

    /// As [`v4`](Self::v4).
    #[inline]
    pub fn v6(&self, to: Ipv6Addr) -> Option<&Target> {
        let (_, at) = self.v6.get_lpm(&Ipv6Net::new_assert(to, 128))?;
        self.targets.get(*at as usize)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many different targets were ever named: those no route has any more count until the routes are made anew.
    pub fn targets(&self) -> usize {
        self.targets.len()
    }
}

/// A neighbour, as the kernel knows it.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Debug)]
pub struct Neighbour {
    /// Its link address. `None`: it was looked for, and does not answer.
    pub mac: Option<Mac>,
    /// It was sent to since this was last unset: whoever keeps neighbours fresh wants to know.
    pub used: AtomicBool,
}

impl Neighbour {
    /// A neighbour of that link address.
    pub fn new(mac: Option<Mac>) -> Self {
        Self { mac, used: AtomicBool::new(false) }
    }

    /// Notes that it is in use. Read first, so that CPUs that all send there share the line.
    pub(super) fn note_use(&self) {
        // Relaxed both, as `take_use` that pairs with them: it says only that somebody sent, at some time.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was in use since this was last asked.
    pub fn take_use(&self) -> bool {
        // Relaxed: as above.
        self.used.swap(false, Ordering::Relaxed)
    }
}

/// Neighbours by interface and address.
pub type Neighbours = HashMap<(u16, IpAddr), Arc<Neighbour>>;

/// All that forwarding goes by.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The interfaces that take part.
    pub interfaces: Vec<Interface>,
    /// The routes.
    pub routes: Arc<Routes>,
    /// The neighbours.
    pub neighbours: Arc<Neighbours>,
}

/// The table that counts, for all CPUs.
/// [`Forwarding`](super::Forwarding) has an example.
#[derive(Debug, Default)]
pub struct Shown {
    /// Goes up with each table.
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
    /// Those that were shown before and that a CPU may still be reading: freed by who made them, since to free a million
    /// routes takes a while. One a CPU at most, and one more.
    past: Mutex<Vec<Arc<Table>>>,
}

impl Shown {
    /// Puts another table in the place of the one that counts.
    pub fn show(&self, table: Table) {
        let before = {
            let mut shown = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *shown, Arc::new(table))
        };
        // Release: pairs with the acquire in `newer`; who sees this version finds this table behind the lock.
        self.version.fetch_add(1, Ordering::Release);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.push(before);
        past.retain(|table| Arc::strong_count(table) > 1);
    }

    /// The table that counts.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The table and its version, if it is newer than `than`.
    #[inline]
    pub(super) fn newer(&self, than: u64) -> Option<(u64, Arc<Table>)> {
        // Acquire: pairs with the release in `show`.
        let version = self.version.load(Ordering::Acquire);
        (version != than).then(|| (version, self.table()))
    }
}

/// The way that a flow of that hash goes, of several.
#[inline]
pub(super) fn pick(hops: &[Hop], hash: impl FnOnce() -> u32) -> Option<&Hop> {
    if let [only] = hops {
        return Some(only);
    }
    let all: u64 = hops.iter().map(|hop| u64::from(hop.weight)).sum();
    // Evenly, as flows are dealt out to CPUs; from other bits than those, or a CPU's flows would all go one way.
    let mut at = (u64::from(hash().reverse_bits()) * all) >> 32;
    hops.iter().find(|hop| {
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
            counts[usize::from(pick(&hops, || hash).unwrap().interface)] += 1;
        }
        assert!((900..1100).contains(&counts[0]) && counts.iter().sum::<i32>() == 4000, "{counts:?}");
        assert_eq!(pick(&[], || 0), None);
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
        /// Against looking at all of them.
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
            // The last one of the same prefix counts.
            let naive = |to: IpAddr| {
                let within = all.iter().filter(|(prefix, _)| prefix.contains(&to));
                within.max_by_key(|(prefix, nth)| (prefix.prefix_len(), *nth)).map(|(_, nth)| *nth)
            };
            let found = |target: Option<&Target>| match target {
                Some(Target::Via(hops)) => Some(hops[0].interface),
                _ => None,
            };
            // Within the prefixes, and anywhere.
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
