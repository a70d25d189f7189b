/// The users who may read a reply of the instance.
///
/// Counters are public. The addresses, ports and names of flows, and the names of the files to
/// which the run writes flows, are private.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every user of the machine may read the reply.
    Public,
    /// Only root and the user of the instance may read the reply.
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
