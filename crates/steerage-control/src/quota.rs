//! Quotas for *parties* (users or hosts) that share a limited number of slots, such as connections.
//! No party can take all of the slots. Some of the shared slots are reserved for root. In addition,
//! the same number of slots is reserved for root and the instance's owner together. Every party
//! other than root and the owner may use only a limited number of slots.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The length of the IPv6 prefix of a subnet. A single host can use every address of its subnet
/// (RFC 4291, 2.5.4).
const IPV6_HOST_PREFIX: u32 = 64;

/// The party that uses a slot: a user or a host. Each slot that a client uses counts against the
/// quota of the client's party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    User(u32),
    /// A host, identified by its IPv4 address or its IPv6 prefix. All loopback addresses identify
    /// the same host: this machine.
    Host(IpAddr),
}

impl Party {
    pub(crate) fn host(address: IpAddr) -> Self {
        // A socket that serves both IPv4 and IPv6 reports an IPv4 client with an IPv4-mapped IPv6
        // address.
        Self::Host(match address.to_canonical() {
            // Every user of this machine can use all addresses of 127.0.0.0/8 and the address ::1.
            // Therefore all loopback addresses count as one host.
            address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - IPV6_HOST_PREFIX))))
            }
            address => address,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) all: usize,
    /// The number of slots that are reserved for root. In addition, the same number of slots is
    /// reserved for root and the owner together.
    pub(crate) reserved: usize,
    pub(crate) per_party: usize,
    /// The user who owns the instance. The owner is `None` if the parties are hosts.
    pub(crate) owner: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaFull {
    Party,
    /// Every slot that this party may use is already in use, by this party or by another party.
    All,
}

/// The rank of a party. A party's rank is root (the highest), owner, or other (the lowest). A party
/// may use the slots that are reserved for its own rank and the slots for lower ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Other,
    Owner,
    Root,
}

impl Quota {
    pub(crate) fn rank(&self, party: Party) -> Rank {
        match party {
            Party::User(0) => Rank::Root,
            Party::User(uid) if Some(uid) == self.owner => Rank::Owner,
            _ => Rank::Other,
        }
    }

    pub(crate) fn admit(&self, party: Party, taken: impl Iterator<Item = Party>) -> Result<(), QuotaFull> {
        let (mut all, mut own) = (0, 0);
        for other in taken {
            all += 1;
            own += usize::from(other == party);
        }
        let rank = self.rank(party);
        let kept = match rank {
            Rank::Root => 0,
            Rank::Owner => self.reserved,
            Rank::Other => 2 * self.reserved,
        };
        if rank == Rank::Other && own >= self.per_party {
            Err(QuotaFull::Party)
        } else if all + kept >= self.all {
            Err(QuotaFull::All)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;
    const PLACES: Quota = Quota { all: 20, reserved: 2, per_party: 6, owner: Some(OWNER) };

    /// Admits clients of the user `uid`, one after another, until the quota refuses a client.
    /// Returns the number of admissions, and the reason for the first refusal.
    fn fill(taken: &mut Vec<Party>, uid: u32) -> (usize, QuotaFull) {
        let before = taken.len();
        let user = Party::User(uid);
        loop {
            match PLACES.admit(user, taken.iter().copied()) {
                Ok(()) => taken.push(user),
                Err(full) => return (taken.len() - before, full),
            }
        }
    }

    #[test]
    fn no_user_takes_all_places() {
        let mut taken = Vec::new();
        assert_eq!(fill(&mut taken, 1), (6, QuotaFull::Party));
        assert_eq!(fill(&mut taken, 2), (6, QuotaFull::Party));
        assert_eq!(fill(&mut taken, 3), (4, QuotaFull::All));
        assert_eq!(fill(&mut taken, OWNER), (2, QuotaFull::All));
        assert_eq!(fill(&mut taken, 0), (2, QuotaFull::All));
    }

    #[test]
    fn the_owner_leaves_room_for_root() {
        let mut taken = Vec::new();
        assert_eq!(fill(&mut taken, OWNER), (18, QuotaFull::All));
        assert_eq!(fill(&mut taken, 0), (2, QuotaFull::All));
    }

    #[test]
    fn a_host_is_an_address_or_a_prefix() {
        let host = |address: &str| Party::host(address.parse().unwrap());
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        for loopback in ["127.0.0.2", "127.255.0.1", "::1", "::ffff:127.0.0.9"] {
            assert_eq!(host(loopback), host("127.0.0.1"));
        }
        assert_ne!(host("::ffff:192.0.2.1"), host("::ffff:192.0.2.2"));
        assert_eq!(host("2001:db8:0:1::1"), host("2001:db8:0:1:ffff:ffff:ffff:ffff"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
    }
}
