//! Who is in which group, and what is wanted of it.

use super::{Group, State};
use crate::ledger::MoveCause;
use crate::load::BucketWork;
use crate::rps_map::{CpuIndex, RpsMap};

impl<M> State<M> {
    /// Gives `queues` the mask `cpus`. The change takes place as soon as what moves now has moved.
    pub(crate) fn set_mask(&mut self, queues: &[usize], cpus: &[CpuIndex]) {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        let mut groups: Vec<u16> = queues.iter().map(|queue| self.group_of(*queue)).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            let moving: Vec<usize> = queues.iter().copied().filter(|queue| self.group_of(*queue) == group).collect();
            self.change_group(group, &moving, &cpus);
        }
        self.begin_slice();
    }

    pub(super) fn change_group(&mut self, group: u16, moving: &[usize], cpus: &[CpuIndex]) {
        let same = self.group_with(cpus);
        if same == Some(group) {
            return;
        }
        let whole = (0..self.queues.len()).all(|queue| self.group_of(queue) != group || moving.contains(&queue));
        let target = match same {
            Some(same) => same,
            None if whole => {
                self.groups[usize::from(group)].mask = cpus.to_vec();
                self.plan(usize::from(group), MoveCause::Mask);
                return;
            }
            None => {
                // The new group begins near the old one, so that few of the queue's buckets move.
                let map = self.groups[usize::from(group)].map.clone();
                let (order, owners) = self.order_among(cpus, moving.iter().map(|q| self.queues[*q].control.owner));
                let group = self.new_group(cpus.to_vec(), map);
                let begun = &mut self.groups[usize::from(group)];
                if let Some(active) = begun.policy.active(&order, owners, &begun.map.cpus()) {
                    begun.map = begun.map.with_cpus(&active);
                }
                begun.want = begun.map.clone();
                group
            }
        };
        for queue in moving {
            let arrives_in = self.arrives_in(*queue);
            self.queues[*queue].joining = (arrives_in != target).then_some(target);
        }
    }

    /// The group a queue is in, or on its way to.
    pub(super) fn group_of(&self, queue: usize) -> u16 {
        self.queues[queue].joining.unwrap_or_else(|| self.arrives_in(queue))
    }

    /// The group a queue is in once what moves now has moved.
    pub(super) fn arrives_in(&self, queue: usize) -> u16 {
        let slice = self.slice.as_ref().filter(|slice| slice.includes(queue));
        slice.map_or(self.queues[queue].group, |slice| slice.group_after)
    }

    /// The group that has this mask and a queue in it that has not ended. Where all have, what is known of their flows may
    /// have stayed behind in the midst of a move: whoever comes to have this mask gets a group of its own.
    pub(super) fn group_with(&self, mask: &[CpuIndex]) -> Option<u16> {
        let in_it = |at: usize| (0..self.queues.len()).any(|q| self.queues[q].open && self.group_of(q) == at as u16);
        (0..self.groups.len()).find(|at| self.groups[*at].mask == mask && in_it(*at)).map(|at| at as u16)
    }

    pub(super) fn new_group(&mut self, mask: Vec<CpuIndex>, map: RpsMap) -> u16 {
        let (policy, work) = (self.policy.fresh(), BucketWork::default());
        let group = Group { mask, want: map.clone(), map, cause: MoveCause::Mask, policy, work };
        let in_use =
            |at: &usize| self.queues.iter().any(|q| usize::from(q.group) == *at || q.joining == Some(*at as u16));
        let concerned = |at: &usize| self.slice.as_ref().is_some_and(|s| usize::from(s.group_after) == *at);
        match (0..self.groups.len()).find(|at| !in_use(at) && !concerned(at)) {
            Some(empty) => {
                self.groups[empty] = group;
                empty as u16
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u16
            }
        }
    }

    /// The CPUs of a mask that live and are there; if there are none, those that live, at last all.
    pub(super) fn living(&self, mask: &[CpuIndex]) -> Vec<CpuIndex> {
        let mut living = mask.to_vec();
        living.retain(|cpu| !self.dead[usize::from(*cpu)]);
        let mut present = living.clone();
        present.retain(|cpu| !self.absent[usize::from(*cpu)]);
        [present, living].into_iter().find(|cpus| !cpus.is_empty()).unwrap_or_else(|| mask.to_vec())
    }

    pub(super) fn plan(&mut self, group: usize, cause: MoveCause) {
        let (order, owners) = self.order_of(group);
        let group = &mut self.groups[group];
        group.want = match group.policy.active(&order, owners, &group.map.cpus()) {
            Some(active) => group.map.with_cpus(&active),
            None => group.map.clone(),
        };
        group.cause = cause;
    }

    /// The map in force for a queue, and the group it is known by.
    pub(crate) fn map_of(&self, queue: usize) -> (&RpsMap, u16) {
        (&self.queues[queue].map, self.queues[queue].group)
    }

    /// The mask of a queue, as it is wanted.
    pub(crate) fn mask_of(&self, queue: usize) -> &[CpuIndex] {
        &self.groups[usize::from(self.group_of(queue))].mask
    }

    /// Whether every mask is in force.
    pub(crate) fn is_settled(&self) -> bool {
        self.slice.is_none()
            && self.queues.iter().all(|queue| queue.joining.is_none() || !queue.open)
            && self.groups.iter().all(|group| group.map == group.want)
    }
}
