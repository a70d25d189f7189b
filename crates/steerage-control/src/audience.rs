//! Who may see which data of a run.

/// The readers of a reply.
///
/// Counters are public. The traffic itself (addresses, ports and names of flows) is private, like
/// the files to which flows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every user of the machine.
    Public,
    /// Root, and the user of the instance.
    Private,
}

impl Audience {
    /// Returns the audience of user `uid`, if the instance belongs to user `owner`.
    pub fn of(uid: u32, owner: u32) -> Self {
        if uid == 0 || uid == owner { Self::Private } else { Self::Public }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_owner_see_everything() {
        assert_eq!([0, 1000, 1001].map(|uid| Audience::of(uid, 1000) == Audience::Private), [true, true, false]);
        assert_eq!([0, 1000].map(|uid| Audience::of(uid, 0) == Audience::Private), [true, false]);
    }
}
