//! [`Affinity`] states which packets a handler needs together on one CPU.

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
    /// Both directions of a flow stay together. Choose `BothDirections` for a program that keeps
    /// state for each connection.
    BothDirections,
    /// Each direction of a flow is steered separately. Choose `OneDirection` for a router, because
    /// a router receives the two directions of a flow on different interfaces. A hash for one
    /// direction costs less time than a hash for both directions. More devices can provide a hash
    /// for one direction.
    OneDirection,
}

impl Affinity {
    /// Returns true if a hash with the affinity `self` keeps together all packets that the affinity
    /// `wanted` requires to be together.
    pub fn satisfies(self, wanted: Self) -> bool {
        self == wanted || self == Self::BothDirections
    }

    /// Returns the flow key to hash for a flow. All packets that must stay together by this
    /// affinity have the same flow key, so they get the same hash.
    #[must_use]
    #[inline(always)]
    pub const fn key(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::BothDirections => flow.both_directions(),
            Self::OneDirection => flow,
        }
    }
}
