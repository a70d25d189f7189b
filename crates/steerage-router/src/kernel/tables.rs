use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Hop, Interface, Mac, Neighbour, Neighbours, Routes, Table, Target, broadcast_of};
use ipnet::IpNet;
use steerage::TxId;
use steerage_netlink::{self as netlink, Change, Entry, Link, NeighbourState, RouteType};

/// `RT_TABLE_` of linux/rtnetlink.h, in the order in which the kernel searches the tables.
const TABLES: [u32; 3] = [255, 254, 253];

/// The number of targets above which the routes and the list of targets are rebuilt, because no
/// route uses most of the targets any more.
const TARGETS_MAX: usize = 1 << 16;

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) index: u32,
    pub(super) output: TxId,
    pub(super) ethernet: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LinkState {
    mac: Option<Mac>,
    mtu: usize,
    up: bool,
    veth: bool,
}

/// After the kernel has failed to resolve a neighbour, the neighbour counts as silent for this
/// number of checks (one per second). After this number of checks, the neighbour counts as unknown.
/// As in the kernel, the first packet to an unknown neighbour starts a new resolution and causes no
/// ICMP error.
const SILENT_CHECKS: u8 = 5;

#[derive(Debug)]
struct KnownNeighbour {
    neighbour: Arc<Neighbour>,
    stale: bool,
    checks: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changed {
    pub(super) any: bool,
    routes: bool,
    /// True if the kernel may not have reported all changes, so that its tables must be read again.
    pub(super) all: bool,
}

#[derive(Debug, Default)]
pub(super) struct KernelTables {
    members: Vec<Member>,
    static_routes: Option<Vec<(IpNet, Target)>>,
    links: HashMap<u32, LinkState>,
    addresses: Vec<(u32, IpNet)>,
    /// The targets of the kernel's routes, sorted by table and metric: the preferred target is
    /// first.
    prefixes: HashMap<IpNet, Vec<(u64, Target)>>,
    neighbours: HashMap<(u16, IpAddr), KnownNeighbour>,
    past: HashMap<(u16, IpAddr), KnownNeighbour>,
    asking: bool,
    routes: Routes,
    shown: Arc<Routes>,
    changed: Changed,
}

impl KernelTables {
    pub(super) fn new(members: Vec<Member>) -> Self {
        Self { members, ..Self::default() }
    }

    pub(super) fn set_static_routes(&mut self, routes: Vec<(IpNet, Target)>) {
        self.static_routes = Some(routes);
        self.remake_routes();
    }

    /// After this call, the messages until [`end_dump`](Self::end_dump) contain all entries of the
    /// kernel's tables.
    pub(super) fn begin_dump(&mut self) {
        self.asking = true;
        self.past = std::mem::take(&mut self.neighbours);
        self.links.clear();
        self.addresses.clear();
        self.prefixes.clear();
        self.changed = Changed { any: true, routes: true, all: false };
    }

    pub(super) fn is_veth(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|link| link.veth)
    }

    pub(super) fn member_of(&self, address: IpAddr) -> Option<u16> {
        let (index, _) =
            self.addresses.iter().find(|(index, net)| net.contains(&address) && self.member(*index).is_some())?;
        self.member(*index)
    }

    fn member(&self, index: u32) -> Option<u16> {
        self.members.iter().position(|member| member.index == index).map(|at| at as u16)
    }

    pub(super) fn apply(&mut self, change: Change) {
        let is_there = change.is_there;
        match change.entry {
            Entry::Link(link) => self.link(link, is_there),
            Entry::Address(address) => self.address(address, is_there),
            Entry::Route(route) => self.route(&route, is_there),
            Entry::Neighbour(neighbour) => self.neighbour(neighbour, is_there),
            _ => {}
        }
    }

    fn link(&mut self, link: Link, is_there: bool) {
        let index = link.index;
        let before = self.links.get(&index).cloned();
        if is_there {
            let mut state = before.clone().unwrap_or_default();
            state.up = link.up && link.running;
            // The kernel's report about a link may omit fields that have not changed.
            if let Some(address) = link.address {
                state.mac = address.try_into().ok();
            }
            state.mtu = link.mtu.unwrap_or(state.mtu);
            state.veth = link.kind.map_or(state.veth, |kind| kind == "veth");
            self.links.insert(index, state);
        } else {
            self.links.remove(&index);
            self.neighbours.retain(|(member, _), _| self.members[usize::from(*member)].index != index);
        }
        // When a link goes down, the kernel removes the link's IPv4 routes without a message.
        let after = self.links.get(&index);
        let went = before.as_ref().is_some_and(|before| before.up) && !after.is_some_and(|link| link.up);
        self.changed.all |= went;
        self.changed.any |= before.as_ref() != after && self.member(index).is_some();
    }

    fn address(&mut self, address: netlink::Address, is_there: bool) {
        let Ok(net) = IpNet::new(address.address, address.prefix_bits) else { return };
        let entry = (address.link, net);
        let at = self.addresses.iter().position(|other| *other == entry);
        match (at, is_there) {
            (None, true) => self.addresses.push(entry),
            (Some(at), false) => {
                self.addresses.remove(at);
                // When an address is removed, the kernel may also remove routes without a message.
                self.changed.all = true;
            }
            _ => return,
        }
        self.changed.any = true;
    }

    fn route(&mut self, route: &netlink::Route, is_there: bool) {
        let Some((prefix, order, target)) = self.read_route(route) else { return };
        let entries = self.prefixes.entry(prefix).or_default();
        let at = entries.iter().position(|(other, _)| *other == order);
        match (at, is_there) {
            // If a route is appended, or another target is removed, the kernel's message concerns
            // only one of the next hops of the route.
            (Some(at), _) if route.is_appended || !is_there && entries[at].1 != target => self.changed.all = true,
            (Some(at), true) => entries[at].1 = target,
            (None, true) => {
                let at = entries.partition_point(|(other, _)| *other < order);
                entries.insert(at, (order, target));
            }
            (Some(at), false) => drop(entries.remove(at)),
            (None, false) => {}
        }
        if entries.is_empty() {
            self.prefixes.remove(&prefix);
        }
        if !self.asking {
            self.update(prefix);
        }
        (self.changed.any, self.changed.routes) = (true, true);
    }

    /// Returns prefix, order and target of a route. `None` if the route is not used for forwarding.
    fn read_route(&self, route: &netlink::Route) -> Option<(IpNet, u64, Target)> {
        let nth = TABLES.iter().position(|known| *known == route.table)? as u64;
        if route.is_special {
            return None;
        }
        let prefix = IpNet::new(route.prefix.0, route.prefix.1).ok()?.trunc();
        let target = match route.kind {
            RouteType::Local | RouteType::Broadcast | RouteType::Anycast => Target::Local,
            RouteType::BlackHole => Target::Blackhole,
            RouteType::Unreachable => Target::Unreachable,
            RouteType::Prohibit => Target::Prohibit,
            RouteType::Unicast => {
                let hops: Vec<Hop> = route.hops.iter().filter_map(|hop| self.hop(hop)).collect();
                // The router cannot use an encapsulation, or an interface that is not its own.
                if hops.is_empty() || route.encapsulates { Target::Unreachable } else { Target::Via(hops) }
            }
            _ => return None,
        };
        Some((prefix, nth << 32 | u64::from(route.metric), target))
    }

    fn hop(&self, hop: &netlink::NextHop) -> Option<Hop> {
        Some(Hop { interface: self.member(hop.link)?, gateway: hop.gateway, weight: hop.weight })
    }

    /// With routes of the user, only the kernel's local routes are used.
    fn update(&mut self, prefix: IpNet) {
        let first = self.prefixes.get(&prefix).and_then(|entries| entries.first()).map(|(_, target)| target);
        let is_local = first == Some(&Target::Local);
        match (first, &self.static_routes) {
            (Some(target), None) => self.routes.insert(prefix, target.clone()),
            (Some(target), Some(_)) if is_local => self.routes.insert(prefix, target.clone()),
            (None, None) => self.routes.remove(prefix),
            (_, Some(static_routes)) => match static_routes.iter().rev().find(|(other, _)| *other == prefix) {
                Some((_, target)) => self.routes.insert(prefix, target.clone()),
                None => self.routes.remove(prefix),
            },
        }
    }

    fn remake_routes(&mut self) {
        self.routes = Routes::default();
        for (prefix, target) in self.static_routes.iter().flatten() {
            self.routes.insert(*prefix, target.clone());
        }
        let prefixes: Vec<IpNet> = self.prefixes.keys().copied().collect();
        prefixes.into_iter().for_each(|prefix| self.update(prefix));
        (self.changed.any, self.changed.routes) = (true, true);
    }

    fn neighbour(&mut self, neighbour: netlink::Neighbour, is_there: bool) {
        let netlink::Neighbour { link, address, link_address, state, is_proxy } = neighbour;
        // Proxy entries, for which the kernel replies, and multicast groups are no neighbours.
        let Some(member) = self.member(link).filter(|_| !is_proxy && !address.is_multicast()) else { return };
        let key = (member, address);
        let mac: Option<Mac> = link_address.and_then(|address| address.try_into().ok());
        let mac: Option<Option<Mac>> = match state {
            // A failed neighbour that a dump shows for the first time has probably failed long
            // before.
            NeighbourState::Failed if is_there && (!self.asking || self.past.contains_key(&key)) => Some(None),
            NeighbourState::Incomplete | NeighbourState::None | NeighbourState::Failed => None,
            _ if is_there => mac.map(Some),
            _ => None,
        };
        let before = self.neighbours.get_mut(&key);
        match (mac, before) {
            (None, before) => {
                self.changed.any |= before.is_some();
                self.neighbours.remove(&key);
            }
            (Some(mac), Some(known)) if known.neighbour.mac == mac => known.stale = state == NeighbourState::Stale,
            (Some(mac), _) => {
                let past = self.past.remove(&key).filter(|known| known.neighbour.mac == mac);
                let new = || KnownNeighbour { neighbour: Arc::new(Neighbour::new(mac)), stale: false, checks: 0 };
                let stale = state == NeighbourState::Stale;
                self.neighbours.insert(key, KnownNeighbour { stale, ..past.unwrap_or_else(new) });
                self.changed.any = true;
            }
        }
    }

    /// Returns the stale neighbours to which the router sent packets. The kernel does not see
    /// packets that the router sends, and might delete the neighbours. Call once per second.
    pub(super) fn check_neighbours(&mut self) -> Vec<(u16, IpAddr)> {
        let before = self.neighbours.len();
        self.neighbours.retain(|_, known| {
            known.checks = known.checks.saturating_add(1);
            known.neighbour.mac.is_some() || known.checks <= SILENT_CHECKS
        });
        self.changed.any |= self.neighbours.len() < before;
        let used = self.neighbours.iter().filter(|(_, known)| known.stale && known.neighbour.take_use());
        used.map(|(key, _)| *key).collect()
    }

    /// Returns true if a new forwarding table must be built. Returns false during a dump, because
    /// the copy of the kernel's tables is then incomplete.
    pub(super) fn is_changed(&self) -> bool {
        !self.asking && (self.changed.any || self.changed.all)
    }

    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn table(&mut self, changed: Changed) -> Table {
        if self.routes.targets() > TARGETS_MAX {
            self.remake_routes();
        }
        if changed.routes {
            self.shown = Arc::new(self.routes.clone());
        }
        let neighbours: Neighbours =
            self.neighbours.iter().map(|(key, known)| (*key, Arc::clone(&known.neighbour))).collect();
        let interfaces = self.members.iter().map(|member| self.interface(member)).collect();
        Table { interfaces, routes: Arc::clone(&self.shown), neighbours: Arc::new(neighbours) }
    }

    fn interface(&self, member: &Member) -> Interface {
        let link = self.links.get(&member.index).cloned().unwrap_or_default();
        let nets = || self.addresses.iter().filter(|(index, _)| *index == member.index).map(|(_, net)| net);
        let v4 = || nets().filter_map(|net| if let IpNet::V4(v4) = net { Some(*v4) } else { None });
        let v6 = || nets().filter_map(|net| if let IpNet::V6(v6) = net { Some(v6.addr()) } else { None });
        Interface {
            output: member.output,
            mac: if member.ethernet { Some(link.mac.unwrap_or_default()) } else { None },
            mtu: link.mtu,
            up: link.up,
            ipv4: v4().next().map(|net| net.addr()),
            ipv6: v6().find(|address| !address.is_unicast_link_local()).or_else(|| v6().next()),
            broadcasts: v4().filter_map(broadcast_of).collect(),
        }
    }

    pub(super) fn end_dump(&mut self) {
        self.asking = false;
        self.past.clear();
        self.remake_routes();
        self.changed.all = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(state: NeighbourState) -> Change {
        let link_address = (state == NeighbourState::Reachable).then(|| vec![2, 0, 0, 0, 0, 2]);
        let address = [10, 0, 0, 2].into();
        let neighbour = netlink::Neighbour { link: 7, address, link_address, state, is_proxy: false };
        Change { entry: Entry::Neighbour(neighbour), is_there: true }
    }

    /// Returns the link address of 10.0.0.2: `None` if unknown, `Some(None)` if 10.0.0.2 does not
    /// answer.
    fn shown(kernel: &mut KernelTables) -> Option<Option<Mac>> {
        let changed = kernel.take_changed();
        let table = kernel.table(changed);
        table.neighbours.get(&(0, [10, 0, 0, 2].into())).map(|neighbour| neighbour.mac)
    }

    #[test]
    fn a_neighbour_is_silent_for_seconds_and_then_unknown() {
        let mut kernel = KernelTables::new(vec![Member { index: 7, output: TxId(0), ethernet: true }]);
        // A failed neighbour in the first dump is an old entry, and counts as unknown.
        kernel.begin_dump();
        kernel.apply(neighbour(NeighbourState::Failed));
        kernel.end_dump();
        assert_eq!(shown(&mut kernel), None);
        kernel.apply(neighbour(NeighbourState::Incomplete));
        assert_eq!(shown(&mut kernel), None);
        for _ in 0..2 {
            kernel.apply(neighbour(NeighbourState::Failed));
            for _ in 0..SILENT_CHECKS {
                kernel.check_neighbours();
                assert_eq!(shown(&mut kernel), Some(None));
            }
            kernel.begin_dump();
            kernel.apply(neighbour(NeighbourState::Failed));
            kernel.end_dump();
            assert_eq!(shown(&mut kernel), Some(None));
            assert!(kernel.check_neighbours().is_empty() && kernel.is_changed());
            assert_eq!(shown(&mut kernel), None);
        }
        kernel.apply(neighbour(NeighbourState::Reachable));
        (0..100).for_each(|_| drop(kernel.check_neighbours()));
        assert_eq!(shown(&mut kernel), Some(Some([2, 0, 0, 0, 0, 2])));
    }
}
