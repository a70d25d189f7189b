//! Defines who may see which data of a run.

/// The audience of a reply of the instance: the users who may read the reply.
///
/// Counters are public. The traffic itself is private: addresses, ports and names of flows. The
/// names of the files to which the run writes flows are private, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every user of the machine may see a reply with this audience.
    Public,
    /// Only root and the user of the instance may see a reply with this audience.
    Private,
}

impl Audience {
    /// Returns the audience (public or private) of user `uid`, if the instance belongs to user
    /// `owner`.
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
