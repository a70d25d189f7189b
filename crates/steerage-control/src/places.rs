//! How a limited number of places is shared, so that no user can take them all: the last ones are root's, those before
//! them root's and the instance's user's, and every other user has a limit of its own.

/// A number of places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// All of them.
    pub(crate) all: usize,
    /// How many are kept for root, and as many again for root and the owner.
    pub(crate) reserved: usize,
    /// How many any other user may have.
    pub(crate) per_user: usize,
    /// The instance's user.
    pub(crate) owner: u32,
}

/// Why there is no place for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The user has as many as one may have.
    User,
    /// All that the user may have are taken, by whomever.
    All,
}

/// How much a user has a right to places: a higher one may take what a lower one may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Other,
    Owner,
    Root,
}

impl Places {
    pub(crate) fn rank(&self, uid: u32) -> Rank {
        match uid {
            0 => Rank::Root,
            uid if uid == self.owner => Rank::Owner,
            _ => Rank::Other,
        }
    }

    /// Whether there is a place for a user, beside those that these users have.
    pub(crate) fn admit(&self, uid: u32, taken: impl Iterator<Item = u32>) -> Result<(), Full> {
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
            Err(Full::User)
        } else if all + kept >= self.all {
            Err(Full::All)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;
    const PLACES: Places = Places { all: 20, reserved: 2, per_user: 6, owner: OWNER };

    /// Admits a user until there is no place left; how often that was, and why no more.
    fn fill(taken: &mut Vec<u32>, uid: u32) -> (usize, Full) {
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
        assert_eq!(fill(&mut taken, 1), (6, Full::User));
        assert_eq!(fill(&mut taken, 2), (6, Full::User));
        assert_eq!(fill(&mut taken, 3), (4, Full::All));
        assert_eq!(fill(&mut taken, OWNER), (2, Full::All));
        assert_eq!(fill(&mut taken, 0), (2, Full::All));
    }

    #[test]
    fn the_owner_leaves_room_for_root() {
        let mut taken = Vec::new();
        assert_eq!(fill(&mut taken, OWNER), (18, Full::All));
        assert_eq!(fill(&mut taken, 0), (2, Full::All));
    }
}
