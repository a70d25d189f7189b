//! Which packets must stay together on one CPU.

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
    /// Both directions of a flow. For a program that keeps state of a conversation.
    BothDirections,
    /// Each direction of a flow by itself. For routers, which receive the two directions on different interfaces. Hashing costs
    /// less, and a device's own hash can be used more often.
    OneDirection,
}

impl Affinity {
    /// Whether a hash that keeps `self` together also keeps `wanted` together.
    pub fn satisfies(self, wanted: Self) -> bool {
        self == wanted || self == Self::BothDirections
    }

    /// The key to hash for a flow, so that what this affinity names stays together.
    #[must_use]
    #[inline(always)]
    pub const fn key(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::BothDirections => flow.both_directions(),
            Self::OneDirection => flow,
        }
    }
}
