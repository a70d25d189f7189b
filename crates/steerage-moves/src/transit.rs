use std::fmt;

use crate::{CpuIndex, Slice};

/// Bucket numbers, each with the flow state of the bucket.
pub type States<M> = Vec<(u16, M)>;

/// The flow state of the current slice, on its way from the handlers of the old CPUs to those of
/// the new CPUs.
pub struct Transit<M> {
    epoch: u64,
    states: States<M>,
}

impl<M> Transit<M> {
    /// Creates an empty [`Transit`] with room for the state of this many buckets.
    pub fn with_capacity(buckets: usize) -> Self {
        Self { epoch: 0, states: Vec::with_capacity(buckets) }
    }

    /// Stores flow state for the slice `epoch`, and drops the flow state of an earlier slice.
    pub fn put(&mut self, epoch: u64, states: &mut States<M>) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.states.clear();
        }
        self.states.append(states);
    }

    /// Appends to `to` the flow state of the buckets that arrive at `cpu`.
    pub fn take(&mut self, slice: &Slice, cpu: CpuIndex, to: &mut States<M>) {
        if self.epoch != slice.epoch {
            return;
        }
        let is_mine = |bucket: u16| {
            let at = slice.moves.binary_search_by_key(&bucket, |m| m.bucket);
            at.is_ok_and(|at| slice.moves[at].to == cpu && slice.moves[at].has_state)
        };
        let mut nth = 0;
        while let Some((bucket, _)) = self.states.get(nth) {
            if is_mine(*bucket) {
                to.push(self.states.swap_remove(nth));
            } else {
                nth += 1;
            }
        }
    }
}

impl<M> fmt::Debug for Transit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transit of {} states", self.states.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BucketMove;

    #[test]
    fn each_cpu_takes_the_state_of_its_buckets_in_this_slice() {
        let mut slice = Slice::new(16, 3, 1);
        slice.epoch = 2;
        slice.moves = [(1, 1), (4, 2), (5, 1), (9, 1)]
            .map(|(bucket, to)| BucketMove { bucket, from: 0, to, has_state: bucket != 9 })
            .into();
        let mut transit = Transit::with_capacity(4);
        transit.put(1, &mut vec![(4, "of an earlier slice")]);
        let mut taken = Vec::new();
        transit.take(&slice, 2, &mut taken);
        assert_eq!(taken, [], "of another slice");
        transit.put(2, &mut vec![(4, "d")]);
        transit.put(2, &mut vec![(1, "a"), (5, "e"), (9, "not announced")]);
        assert_eq!(format!("{transit:?}"), "Transit of 4 states");
        transit.take(&slice, 1, &mut taken);
        taken.sort_unstable();
        assert_eq!(taken, [(1, "a"), (5, "e")]);
        transit.take(&slice, 1, &mut taken);
        assert_eq!(taken.len(), 2, "taken once");
        taken.clear();
        transit.take(&slice, 2, &mut taken);
        assert_eq!(taken, [(4, "d")]);
    }
}
