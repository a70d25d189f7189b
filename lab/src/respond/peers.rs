//! Counts connections, in total and for each peer, and limits both numbers.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::config::Config;
use super::counts::{ENDS, End, Responded};
use super::packet::Key;

/// The number of counters, which take 256 KiB. Peers whose addresses have the same hash share a
/// limit. A shared limit is rare, because there are several times as many counters as peers that
/// can be near their limit.
const PEER_COUNTS: usize = 65_536;

const _: () = assert!(PEER_COUNTS.is_power_of_two());

/// The length of an IPv6 prefix that counts as one peer, because a peer can use each address of its
/// prefix (RFC 4291, 2.5.4).
const IPV6_PEER_PREFIX_BYTES: usize = 8;

/// Only the beginning and the end of a connection change these shared counters.
#[derive(Debug)]
pub(super) struct Connections {
    open: AtomicU64,
    opened: AtomicU64,
    ends: [AtomicU64; ENDS],
    /// The number of open connections of each peer, at the index that [`Connections::peer`]
    /// returns.
    of_peers: Box<[AtomicU32]>,
    /// The hasher has a secret key, so that a peer cannot choose the index of its counter.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(usize);

impl Default for Connections {
    fn default() -> Self {
        Self {
            open: AtomicU64::default(),
            opened: AtomicU64::default(),
            ends: Default::default(),
            of_peers: (0..PEER_COUNTS).map(|_| AtomicU32::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Connections {
    pub(super) fn peer(&self, key: &Key) -> Peer {
        let address = match key.peer() {
            IpAddr::V4(_) => &key.remote[..],
            IpAddr::V6(_) => &key.remote[..IPV6_PEER_PREFIX_BYTES],
        };
        Peer(self.hasher.hash_one(address) as usize & (PEER_COUNTS - 1))
    }

    pub(super) fn open(&self, config: &Config, peer: Peer) -> bool {
        // `Relaxed` suffices in this function: no other memory depends on these counters.
        let of_peer = &self.of_peers[peer.0];
        let most = u32::try_from(config.per_peer_most()).unwrap_or(u32::MAX);
        let more = |open: u32| (open < most).then_some(open + 1);
        if of_peer.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return false;
        }
        let most = config.connections_most() as u64;
        let more = |open: u64| (open < most).then_some(open + 1);
        let has_room = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if has_room {
            self.opened.fetch_add(1, Ordering::Relaxed);
        } else {
            of_peer.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    pub(super) fn are_full(&self, config: &Config, peer: Peer) -> bool {
        self.open.load(Ordering::Relaxed) >= config.connections_most() as u64
            || self.of_peers[peer.0].load(Ordering::Relaxed) as usize >= config.per_peer_most()
    }

    pub(super) fn end(&self, peer: Peer, end: End) {
        self.of_peers[peer.0].fetch_sub(1, Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, all: &mut Responded) {
        // The numbers of ended connections are read before `opened`, so that their sum never
        // exceeds `opened`.
        all.ends.iter_mut().zip(&self.ends).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        all.open = self.open.load(Ordering::Relaxed);
        all.opened = self.opened.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn key(remote: &str) -> Key {
        let remote: IpAddr = remote.parse().unwrap();
        let remote = match remote {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Key { remote: Ipv6Addr::octets(&remote), remote_port: 1, local: 0, local_port: 7 }
    }

    fn two(connections: &Connections) -> (Peer, Peer) {
        let peer = |nth: u8| connections.peer(&key(&format!("10.0.0.{nth}")));
        let one = peer(1);
        (one, (2..).map(peer).find(|other| other.0 != one.0).unwrap())
    }

    fn config() -> Config {
        Config::new(vec!["10.0.0.2".parse().unwrap()], [2, 0, 0, 0, 0, 1], 1500).unwrap().connections_max(8)
    }

    #[test]
    fn a_peer_has_a_quarter_and_leaves_the_rest_to_others() {
        let (connections, config) = (Connections::default(), config());
        let (one, other) = two(&connections);
        let opens = |peer| (0..8).filter(|_| connections.open(&config, peer)).count();
        assert_eq!((opens(one), opens(one), opens(other)), (2, 0, 2));
        assert!(connections.are_full(&config, one));
        connections.end(one, End::Closed);
        assert!(!connections.are_full(&config, one) && connections.are_full(&config, other));
        assert_eq!(opens(one), 1);
        let mut counts = Responded::default();
        connections.add_to(&mut counts);
        assert_eq!((counts.open, counts.opened, counts.ended(End::Closed)), (4, 5, 1));
    }

    /// A connection beyond the total limit does not count for its peer.
    #[test]
    fn all_peers_together_have_a_limit_too() {
        let (connections, config) = (Connections::default(), config().connections_max(2).per_peer_max(2));
        let (one, other) = two(&connections);
        assert!(connections.open(&config, one) && connections.open(&config, one));
        assert!(!connections.open(&config, other) && !connections.open(&config, other));
        connections.end(one, End::Closed);
        connections.end(one, End::Closed);
        assert!(connections.open(&config, other) && connections.open(&config, other));
    }

    #[test]
    fn a_peer_is_an_address_or_a_prefix() {
        let connections = Connections::default();
        let place = |remote: &str| connections.peer(&key(remote)).0;
        assert_eq!(place("2001:db8:0:1::1"), place("2001:db8:0:1:ffff:ffff:ffff:ffff"));
        // A few peers may share a counter.
        let places: std::collections::BTreeSet<usize> = (0..100).map(|nth| place(&format!("10.0.0.{nth}"))).collect();
        assert!(places.len() > 90, "{}", places.len());
        let places: std::collections::BTreeSet<usize> =
            (0..100).map(|nth| place(&format!("2001:db8:0:{nth}::1"))).collect();
        assert!(places.len() > 90, "{}", places.len());
    }
}
