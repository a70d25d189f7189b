//! The point at which a slice's buckets are their new CPUs'.

use super::State;
use crate::ledger::MoveCause;
use crate::rps_map::CpuIndex;

impl<M> State<M> {
    /// What is released from here on goes by the new map.
    pub(super) fn put_in_force(&mut self) {
        let Some(slice) = &self.slice else { return };
        let planned = self.groups[usize::from(slice.group_after)].cause;
        for m in &slice.moves {
            // Whatever else is planned: from a dead CPU they have to go.
            let cause = if self.dead[usize::from(m.from)] { MoveCause::CpuDied } else { planned };
            self.counts.count(cause, u64::from(m.from != m.to));
            self.moved[usize::from(m.bucket)] += u64::from(m.from != m.to);
            for queue in &slice.queues {
                self.queues[*queue].map.0[usize::from(m.bucket)] = m.to;
            }
            if slice.group_before == slice.group_after {
                self.groups[usize::from(slice.group_after)].map.0[usize::from(m.bucket)] = m.to;
            }
        }
        for queue in &slice.queues {
            let queue = &mut self.queues[*queue];
            queue.group = slice.group_after;
            if queue.joining == Some(slice.group_after) {
                queue.joining = None;
            }
        }
    }

    /// Of each bucket of a queue, who has it and how often that changed.
    pub(crate) fn buckets_of(&self, queue: usize) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.queues[queue].map.0.iter().copied().zip(self.moved.iter().copied())
    }
}
