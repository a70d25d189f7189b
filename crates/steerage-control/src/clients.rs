//! Decides whether a new client of a server gets a connection, and which older client the server
//! disconnects to make room.
//!
//! The control socket and the metrics server share this code. Clients belong to a *party*: a user
//! for the control socket, and a host for the metrics server.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::quota::{Party, Quota, QuotaFull};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    pub(crate) quota: Quota,
    /// A client that has sent nothing for this time may be disconnected to make room for a new
    /// client.
    pub(crate) silent: Duration,
    pub(crate) otherwise: Otherwise,
}

/// What happens to a new client if all connections are in use and no client is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Refuse,
    /// The server disconnects the oldest client of the party (user or host) with the most clients,
    /// which is often the party that floods.
    Replace,
}

#[derive(Debug)]
pub(crate) struct Clients<C> {
    sharing: Sharing,
    taken: BTreeMap<u64, ConnectedClient<C>>,
    next: u64,
}

#[derive(Debug)]
struct ConnectedClient<C> {
    party: Party,
    /// The time at which the client connected or got its last reply. `idle_since` is `None` while
    /// the server answers a request of the client.
    idle_since: Option<Instant>,
    connection: C,
}

impl<C> Clients<C> {
    pub(crate) fn new(sharing: Sharing) -> Self {
        Self { sharing, taken: BTreeMap::new(), next: 0 }
    }

    /// Returns the new client's number, and the connection of a client that must leave to make
    /// room.
    pub(crate) fn admit(&mut self, party: Party, now: Instant, connection: C) -> Result<(u64, Option<C>), QuotaFull> {
        let quota = self.sharing.quota;
        let others = |but: Option<u64>| {
            self.taken.iter().filter(move |(id, _)| Some(**id) != but).map(|(_, client)| client.party)
        };
        let leaves = match quota.admit(party, others(None)) {
            Ok(()) => None,
            Err(full) => {
                let leaves = self.makes_way(party, full, now).ok_or(full)?;
                quota.admit(party, others(Some(leaves)))?;
                Some(leaves)
            }
        };
        let gone = leaves.and_then(|id| self.taken.remove(&id)).map(|client| client.connection);
        let id = self.next;
        self.next += 1;
        self.taken.insert(id, ConnectedClient { party, idle_since: Some(now), connection });
        Ok((id, gone))
    }

    fn makes_way(&self, party: Party, full: QuotaFull, now: Instant) -> Option<u64> {
        let quota = self.sharing.quota;
        let may_go = |client: &ConnectedClient<C>| match full {
            QuotaFull::Party => client.party == party,
            QuotaFull::All => quota.rank(client.party) <= quota.rank(party),
        };
        let mut of_party: HashMap<Party, usize> = HashMap::new();
        self.taken.values().for_each(|client| *of_party.entry(client.party).or_default() += 1);
        let clients = || self.taken.iter().filter(|(_, client)| may_go(client));
        let is_silent = |client: &ConnectedClient<C>| {
            client.idle_since.is_some_and(|since| now.saturating_duration_since(since) >= self.sharing.silent)
        };
        // The party with the most clients comes first, and of its clients, the one that has been
        // idle for the longest time.
        let most = |client: &ConnectedClient<C>| Reverse(of_party.get(&client.party).copied());
        let silent = clients().filter(|(_, client)| is_silent(client));
        let first = silent.min_by_key(|(id, client)| (most(client), client.idle_since, **id));
        let first = first.or_else(|| match self.sharing.otherwise {
            Otherwise::Refuse => None,
            Otherwise::Replace => clients().min_by_key(|(id, client)| (most(client), **id)),
        });
        first.map(|(id, _)| *id)
    }

    /// Records a request. Returns `false` if the client is already disconnected.
    pub(crate) fn asks(&mut self, id: u64) -> bool {
        self.taken.get_mut(&id).map(|client| client.idle_since = None).is_some()
    }

    pub(crate) fn answered(&mut self, id: u64, now: Instant) {
        if let Some(client) = self.taken.get_mut(&id) {
            client.idle_since.get_or_insert(now);
        }
    }

    pub(crate) fn leaves(&mut self, id: u64) {
        self.taken.remove(&id);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &C)> {
        self.taken.iter().map(|(id, client)| (*id, &client.connection))
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut C> {
        self.taken.get_mut(&id).map(|client| &mut client.connection)
    }

    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&C) -> bool) {
        self.taken.retain(|_, client| stays(&client.connection));
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = C> {
        std::mem::take(&mut self.taken).into_values().map(|client| client.connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CLIENT_IDLE_SCARCE;

    const OWNER: Party = Party::User(1000);
    const MALLORY: Party = Party::User(1001);
    const OTHER: Party = Party::User(1002);
    const ROOT: Party = Party::User(0);

    fn clients() -> Clients<&'static str> {
        let quota = Quota { all: 6, reserved: 1, per_party: 2, owner: Some(1000) };
        Clients::new(Sharing { quota, silent: CLIENT_IDLE_SCARCE, otherwise: Otherwise::Refuse })
    }

    #[test]
    fn a_silent_client_makes_way_for_the_next_one_of_its_user() {
        let start = Instant::now();
        let mut clients = clients();
        let (first, _) = clients.admit(MALLORY, start, "first").unwrap();
        let later = start + Duration::from_secs(1);
        clients.admit(MALLORY, later, "second").unwrap();
        // The client `other` of another user stays connected, although it has been silent for as
        // long as `first`.
        clients.admit(OTHER, start, "other").unwrap();
        assert_eq!(clients.admit(MALLORY, later, "third"), Err(QuotaFull::Party));
        let scarce = start + CLIENT_IDLE_SCARCE;
        let (_, gone) = clients.admit(MALLORY, scarce, "third").unwrap();
        assert_eq!(gone, Some("first"));
        assert!(!clients.asks(first));
        assert_eq!(clients.admit(MALLORY, scarce, "fourth"), Err(QuotaFull::Party));
    }

    #[test]
    fn a_client_that_is_answered_keeps_its_place() {
        let start = Instant::now();
        let mut clients = clients();
        let ids = ["first", "second"].map(|name| clients.admit(MALLORY, start, name).unwrap().0);
        assert!(ids.iter().all(|id| clients.asks(*id)));
        let late = start + CLIENT_IDLE_SCARCE * 10;
        assert_eq!(clients.admit(MALLORY, late, "third"), Err(QuotaFull::Party));
        clients.answered(ids[1], late);
        assert_eq!(clients.admit(MALLORY, late, "third"), Err(QuotaFull::Party));
        let (_, gone) = clients.admit(MALLORY, late + CLIENT_IDLE_SCARCE, "third").unwrap();
        assert_eq!(gone, Some("second"));
    }

    #[test]
    fn a_client_makes_way_for_a_user_of_its_rank_or_higher() {
        let start = Instant::now();
        let mut clients = clients();
        for name in ["root's", "root's too", "and another", "the last of others'"] {
            clients.admit(ROOT, start, name).unwrap();
        }
        let late = start + CLIENT_IDLE_SCARCE;
        assert_eq!(clients.admit(MALLORY, late, "mallory's"), Err(QuotaFull::All));
        clients.admit(OWNER, late, "the owner's").unwrap();
        clients.admit(ROOT, late, "root's sixth").unwrap();
        assert_eq!(clients.admit(OWNER, late, "the owner's second"), Err(QuotaFull::All));
        let (_, gone) = clients.admit(ROOT, late + CLIENT_IDLE_SCARCE, "root's seventh").unwrap();
        assert!(gone.is_some_and(|name| name != "root's sixth"), "{gone:?}");
    }

    #[test]
    fn a_place_is_free_again_when_its_client_leaves() {
        let start = Instant::now();
        let mut clients = clients();
        let (first, _) = clients.admit(MALLORY, start, "first").unwrap();
        clients.admit(MALLORY, start, "second").unwrap();
        clients.leaves(first);
        assert_eq!(clients.admit(MALLORY, start, "third").map(|(_, gone)| gone), Ok(None));
    }

    fn hosts() -> Clients<&'static str> {
        let quota = Quota { all: 4, reserved: 0, per_party: 4, owner: None };
        Clients::new(Sharing { quota, silent: Duration::from_secs(1), otherwise: Otherwise::Replace })
    }

    fn host(last: u8) -> Party {
        Party::host([192, 0, 2, last].into())
    }

    /// One host connects 440 times per second and sends nothing. A client of another host keeps its
    /// connection for a second, and must send its request within this time.
    #[test]
    fn a_host_that_floods_replaces_its_own_clients() {
        let start = Instant::now();
        let at = |connection: u32| start + Duration::from_secs(1) * connection / 440;
        let mut clients = hosts();
        let (mut quiet, mut gone) = (0, Vec::new());
        for nth in 0..440 {
            gone.extend(clients.admit(host(1), at(nth), "flood").unwrap().1);
            if nth == 10 {
                let (id, first) = clients.admit(host(2), at(nth), "quiet").unwrap();
                quiet = id;
                gone.extend(first);
            }
        }
        assert!(clients.get_mut(quiet).is_some());
        assert_eq!(gone, ["flood"; 437]);
    }

    #[test]
    fn a_silent_client_makes_way_before_a_young_one() {
        let start = Instant::now();
        let second = start + Duration::from_secs(1);
        let mut clients = hosts();
        clients.admit(host(2), start, "silent").unwrap();
        let (asking, _) = clients.admit(host(2), start, "asking").unwrap();
        assert!(clients.asks(asking));
        for name in ["young", "younger"] {
            clients.admit(host(1), second, name).unwrap();
        }
        // `asking` connected at the same time as `silent`, but is not silent while the server
        // answers its request.
        assert_eq!(clients.admit(host(1), second, "new").unwrap().1, Some("silent"));
        assert_eq!(clients.admit(host(1), second, "newer").unwrap().1, Some("young"));
        clients.answered(asking, second);
        assert_eq!(clients.admit(host(3), second + Duration::from_secs(1), "last").unwrap().1, Some("younger"));
    }

    #[test]
    fn the_host_with_the_most_silent_clients_makes_way() {
        let start = Instant::now();
        let mut clients = hosts();
        clients.admit(host(2), start, "single").unwrap();
        for (name, after) in [("first", 1), ("second", 2), ("third", 3)] {
            clients.admit(host(1), start + Duration::from_millis(after), name).unwrap();
        }
        let later = start + Duration::from_secs(2);
        assert_eq!(clients.admit(host(3), later, "new").unwrap().1, Some("first"));
        // `host(1)` has two clients, more than any other host, and loses the older one, `second`.
        assert_eq!(clients.admit(host(3), later, "newer").unwrap().1, Some("second"));
    }

    #[test]
    fn clients_that_do_not_read_make_way() {
        let start = Instant::now();
        let mut clients = hosts();
        for name in ["first", "second", "third", "fourth"] {
            let (id, _) = clients.admit(host(1), start, name).unwrap();
            assert!(clients.asks(id));
        }
        assert_eq!(clients.admit(host(2), start, "new").unwrap().1, Some("first"));
    }
}
