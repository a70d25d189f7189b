//! Quotas for *parties* (users or hosts) that share a limited number of slots, such as connections.
//! Some slots are reserved for root, and as many again for root and the instance's owner together.
//! Any other user or host may use only a limited number of slots.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix length of an IPv6 subnet. One host can use all addresses of such a subnet (RFC 4291,
/// 2.5.4).
const IPV6_HOST_PREFIX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Party {
    User(u32),
    /// A host, by its IPv4 address or IPv6 prefix. All loopback addresses are one host.
    Host(IpAddr),
}

impl Party {
    pub(crate) fn host(address: IpAddr) -> Self {
        // A socket for both families reports IPv4 clients with IPv4-mapped addresses.
        Self::Host(match address.to_canonical() {
            // Every user of this machine can use all addresses in 127.0.0.0/8, and ::1.
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
    /// The number of slots that are reserved for root, and again for root and the owner together.
    pub(crate) reserved: usize,
    pub(crate) per_party: usize,
    /// The user who owns the instance. `owner` is `None` if the parties are hosts.
    pub(crate) owner: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaFull {
    Party,
    /// All slots that this party may use are taken, by this or other parties.
    All,
}

/// Root may use all reserved slots, the owner those that root and the owner share, and others none.
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

    /// Admits clients until the quota refuses one. Returns the number of admitted clients and the
    /// reason for the refusal.
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
