//! Handler state on its way from one CPU to another.

use std::fmt;

use steerage_moves::Slice;

use super::lock::ControlLock;
use crate::ids::CpuIndex;
use crate::limits::BUCKETS;

/// The state of buckets, each with its bucket.
pub(crate) type States<M> = Vec<(u16, M)>;

/// The state that old handlers gave up for the slice that is moving, until the new handlers take it. It is kept apart from
/// the machine, which decides when this happens and does not depend on the type of the state.
pub(crate) struct InTransit<M>(ControlLock<OfSlice<M>>);

struct OfSlice<M> {
    epoch: u64,
    states: States<M>,
}

impl<M> Default for InTransit<M> {
    fn default() -> Self {
        Self(ControlLock::new(OfSlice { epoch: 0, states: Vec::with_capacity(BUCKETS) }))
    }
}

impl<M> InTransit<M> {
    /// Moves `states` here, and returns whether it did. It does not if another CPU is at it: the caller comes again. State that
    /// an earlier slice left behind is dropped.
    pub(crate) fn put(&self, epoch: u64, states: &mut States<M>) -> bool {
        let Some(mut of_slice) = self.0.try_lock() else { return false };
        if of_slice.epoch != epoch {
            of_slice.epoch = epoch;
            of_slice.states.clear();
        }
        of_slice.states.append(states);
        true
    }

    /// Moves the state of the buckets that arrive at `cpu` to `to`, and returns whether it did, as [`put`](Self::put) does.
    pub(crate) fn take(&self, slice: &Slice, cpu: CpuIndex, to: &mut States<M>) -> bool {
        let Some(mut of_slice) = self.0.try_lock() else { return false };
        if of_slice.epoch != slice.epoch {
            return true;
        }
        let is_mine = |bucket: u16| {
            let at = slice.moves.binary_search_by_key(&bucket, |m| m.bucket);
            at.is_ok_and(|at| slice.moves[at].to == cpu && slice.moves[at].has_state)
        };
        let mut nth = 0;
        while let Some((bucket, _)) = of_slice.states.get(nth) {
            if is_mine(*bucket) {
                to.push(of_slice.states.swap_remove(nth));
            } else {
                nth += 1;
            }
        }
        true
    }
}

impl<M> fmt::Debug for InTransit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InTransit")
    }
}
