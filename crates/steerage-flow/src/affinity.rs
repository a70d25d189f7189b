use crate::flow_key::FlowKey;

/// Which packets must stay together on one CPU.
///
/// ```
/// use steerage_flow::{Affinity, FlowKey};
///
/// let request: FlowKey = "tcp 10.0.0.1:40000 > 10.0.0.2:80".parse()?;
/// let answer = request.reversed();
/// assert_eq!(Affinity::BothDirections.key(request), Affinity::BothDirections.key(answer));
/// assert_ne!(Affinity::OneDirection.key(request), Affinity::OneDirection.key(answer));
/// # Ok::<(), steerage_flow::ParseFlowKeyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Both directions of a flow stay together, for programs that keep state for each connection.
    BothDirections,
    /// Each direction is steered separately, for programs that are routers: they receive the two
    /// directions on different interfaces. Compared with the hash for both directions, the hash of
    /// one direction takes less time, and more devices provide it.
    OneDirection,
}

impl Affinity {
    /// Returns true if all packets that the affinity `wanted` keeps together also stay together
    /// with this affinity.
    pub fn satisfies(self, wanted: Self) -> bool {
        self == wanted || self == Self::BothDirections
    }

    /// Returns the key to hash for a flow, which is equal for all packets that must stay together.
    #[must_use]
    #[inline(always)]
    pub const fn key(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::BothDirections => flow.both_directions(),
            Self::OneDirection => flow,
        }
    }
}
