//! The clients of an instance. If there is no place for a new client, this module chooses the
//! client to disconnect.

use std::collections::HashMap;
use std::time::Instant;

use crate::limits::CLIENT_IDLE_SCARCE;
use crate::quota::{Quota, QuotaFull};

/// Clients by number. `C` is the connection of a client.
#[derive(Debug)]
pub(super) struct Clients<C> {
    quota: Quota,
    taken: HashMap<u64, ConnectedClient<C>>,
    next: u64,
}

#[derive(Debug)]
struct ConnectedClient<C> {
    uid: u32,
    /// When its last answer was sent. `None` while a request is being answered.
    idle_since: Option<Instant>,
    connection: C,
}

impl<C> Clients<C> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, taken: HashMap::new(), next: 0 }
    }

    /// Takes a new client of user `uid` at time `now`, and returns its number. If there is no free
    /// place, a client that has been silent for [`CLIENT_IDLE_SCARCE`] loses its place, and its
    /// connection is returned too.
    pub(super) fn admit(&mut self, uid: u32, now: Instant, connection: C) -> Result<(u64, Option<C>), QuotaFull> {
        let others =
            |but: Option<u64>| self.taken.iter().filter(move |(id, _)| Some(**id) != but).map(|(_, client)| client.uid);
        let gone = match self.quota.admit(uid, others(None)) {
            Ok(()) => None,
            Err(full) => {
                let silent = self.longest_silent(uid, full, now).ok_or(full)?;
                self.quota.admit(uid, others(Some(silent)))?;
                Some(silent)
            }
        };
        let gone = gone.and_then(|id| self.taken.remove(&id)).map(|client| client.connection);
        let id = self.next;
        self.next += 1;
        self.taken.insert(id, ConnectedClient { uid, idle_since: Some(now), connection });
        Ok((id, gone))
    }

    /// The client that has been silent for longest, among those that may lose their place to this
    /// user.
    fn longest_silent(&self, uid: u32, full: QuotaFull, now: Instant) -> Option<u64> {
        let may_go = |client: &ConnectedClient<C>| match full {
            QuotaFull::User => client.uid == uid,
            QuotaFull::All => self.quota.rank(client.uid) <= self.quota.rank(uid),
        };
        let silent = self.taken.iter().filter_map(|(id, client)| {
            let since = client.idle_since.filter(|_| may_go(client))?;
            (now.saturating_duration_since(since) >= CLIENT_IDLE_SCARCE).then_some((since, *id))
        });
        silent.min().map(|(_, id)| id)
    }

    /// Records that a client has sent a request. Returns `false` if the client has lost its place.
    pub(super) fn asks(&mut self, id: u64) -> bool {
        self.taken.get_mut(&id).map(|client| client.idle_since = None).is_some()
    }

    /// Records that a client was answered at time `now`.
    pub(super) fn answered(&mut self, id: u64, now: Instant) {
        if let Some(client) = self.taken.get_mut(&id) {
            client.idle_since = Some(now);
        }
    }

    /// Removes a client that has gone.
    pub(super) fn leaves(&mut self, id: u64) {
        self.taken.remove(&id);
    }

    /// Removes all clients.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = C> {
        self.taken.drain().map(|(_, client)| client.connection)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OWNER: u32 = 1000;
    const MALLORY: u32 = 1001;
    const OTHER: u32 = 1002;

    fn clients() -> Clients<&'static str> {
        Clients::new(Quota { all: 6, reserved: 1, per_user: 2, owner: OWNER })
    }

    #[test]
    fn a_silent_client_makes_way_for_the_next_one_of_its_user() {
        let start = Instant::now();
        let mut clients = clients();
        let (first, _) = clients.admit(MALLORY, start, "first").unwrap();
        let later = start + Duration::from_secs(1);
        clients.admit(MALLORY, later, "second").unwrap();
        // Other users' clients have been silent for longer, and keep their places.
        clients.admit(OTHER, start, "other").unwrap();
        assert_eq!(clients.admit(MALLORY, later, "third"), Err(QuotaFull::User));
        let scarce = start + CLIENT_IDLE_SCARCE;
        let (_, gone) = clients.admit(MALLORY, scarce, "third").unwrap();
        assert_eq!(gone, Some("first"));
        assert!(!clients.asks(first));
        assert_eq!(clients.admit(MALLORY, scarce, "fourth"), Err(QuotaFull::User));
    }

    #[test]
    fn a_client_that_is_answered_keeps_its_place() {
        let start = Instant::now();
        let mut clients = clients();
        let ids = ["first", "second"].map(|name| clients.admit(MALLORY, start, name).unwrap().0);
        assert!(ids.iter().all(|id| clients.asks(*id)));
        let late = start + CLIENT_IDLE_SCARCE * 10;
        assert_eq!(clients.admit(MALLORY, late, "third"), Err(QuotaFull::User));
        clients.answered(ids[1], late);
        assert_eq!(clients.admit(MALLORY, late, "third"), Err(QuotaFull::User));
        let (_, gone) = clients.admit(MALLORY, late + CLIENT_IDLE_SCARCE, "third").unwrap();
        assert_eq!(gone, Some("second"));
    }

    #[test]
    fn a_client_makes_way_for_a_user_of_its_rank_or_higher() {
        let start = Instant::now();
        let mut clients = clients();
        for name in ["root's", "root's too", "and another", "the last of others'"] {
            clients.admit(0, start, name).unwrap();
        }
        let late = start + CLIENT_IDLE_SCARCE;
        assert_eq!(clients.admit(MALLORY, late, "mallory's"), Err(QuotaFull::All));
        clients.admit(OWNER, late, "the owner's").unwrap();
        clients.admit(0, late, "root's sixth").unwrap();
        assert_eq!(clients.admit(OWNER, late, "the owner's second"), Err(QuotaFull::All));
        let (_, gone) = clients.admit(0, late + CLIENT_IDLE_SCARCE, "root's seventh").unwrap();
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
}
