//! Quotas: a limited number of places is shared among users, so that no user can take them all. The last places are
//! reserved for root, those before them for root and the instance's owner. Every other user has a limit of its own.

/// The quota for one kind of place, such as connections or open files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// The number of places.
    pub(crate) all: usize,
    /// How many are reserved for root. As many again are reserved for root and the owner.
    pub(crate) reserved: usize,
    /// The most that any other user may have.
    pub(crate) per_user: usize,
    /// The instance's user.
    pub(crate) owner: u32,
}

/// Why there is no place for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaFull {
    /// The user has reached its own limit.
    User,
    /// All places that this user may have are taken, also by others.
    All,
}

/// The rank of a user. A higher rank may take places that a lower rank may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Other,
    Owner,
    Root,
}

impl Quota {
    pub(crate) fn rank(&self, uid: u32) -> Rank {
        match uid {
            0 => Rank::Root,
            uid if uid == self.owner => Rank::Owner,
            _ => Rank::Other,
        }
    }

    /// Whether there is a place for the user `uid`, if the users in `taken` have one place each.
    pub(crate) fn admit(&self, uid: u32, taken: impl Iterator<Item = u32>) -> Result<(), QuotaFull> {
        let (mut all, mut own) = (0, 0);
        for user in taken {
            all += 1;
            own += usize::from(user == uid);
        }
        let rank = self.rank(uid);
        let kept = match rank {
            Rank::Root => 0,
            Rank::Owner => self.reserved,
            Rank::Other => 2 * self.reserved,
        };
        if rank == Rank::Other && own >= self.per_user {
            Err(QuotaFull::User)
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
    const PLACES: Quota = Quota { all: 20, reserved: 2, per_user: 6, owner: OWNER };

    /// Admits a user until there is no place left. Returns how many times that worked, and why the
    /// next attempt failed.
    fn fill(taken: &mut Vec<u32>, uid: u32) -> (usize, QuotaFull) {
        let before = taken.len();
        loop {
            match PLACES.admit(uid, taken.iter().copied()) {
                Ok(()) => taken.push(uid),
                Err(full) => return (taken.len() - before, full),
            }
        }
    }

    #[test]
    fn no_user_takes_all_places() {
        let mut taken = Vec::new();
        assert_eq!(fill(&mut taken, 1), (6, QuotaFull::User));
        assert_eq!(fill(&mut taken, 2), (6, QuotaFull::User));
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
}
