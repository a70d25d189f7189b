//! Groups are sets of queues that share a bucket map. This module also orders the CPUs of a group.

use crate::counts::MoveCause;

use crate::map::{Scratch, spread};
use crate::{CpuIndex, Moves, Plan};

/// Queues with the same mask share one map, so that one CPU gets both directions of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) version: GroupVersion,
    pub(crate) mask: Vec<CpuIndex>,
    plan: Plan,
    pub(crate) map: Vec<CpuIndex>,
    /// The bucket map that the group will have after its current moves.
    pub(crate) want: Vec<CpuIndex>,
    pub(crate) cause: MoveCause,
}

/// Identifies a group and its state at the time at which a policy read it, to detect outdated
/// requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupVersion {
    /// Identifies the group. (A group's number does not, because a later group may get the same
    /// number.)
    pub begun: u64,
    /// How many times the group's mask, usable CPUs, plan or polling CPUs have changed.
    pub changed: u64,
}

impl Moves {
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
    }

    fn change_group(&mut self, group: u16, moving: &[usize], cpus: &[CpuIndex]) {
        let same = self.group_with(cpus);
        if same == Some(group) {
            return;
        }
        let whole = (0..self.queues.len()).all(|queue| self.group_of(queue) != group || moving.contains(&queue));
        let target = match same {
            Some(same) => same,
            None if whole => {
                self.groups[usize::from(group)].mask = cpus.to_vec();
                self.derive_map(usize::from(group), MoveCause::Mask, true);
                return;
            }
            None => {
                // The new group's map is close to the map of the old group, so that few buckets
                // move.
                let Group { plan, map, .. } = self.groups[usize::from(group)].clone();
                let owners: Vec<CpuIndex> = moving.iter().map(|q| self.queues[*q].owner).collect();
                let (mut chosen, _) = self.order_among(cpus, &owners);
                plan.choose_in_place(&mut chosen);
                let mut begins = map;
                spread(&mut begins, &chosen, true, &mut self.scratch);
                self.begin_group(cpus.to_vec(), plan, begins)
            }
        };
        for queue in moving {
            let arrives_in = self.arrives_in(*queue);
            self.queues[*queue].joining = (arrives_in != target).then_some(target);
        }
    }

    pub(crate) fn group_of(&self, queue: usize) -> u16 {
        self.queues[queue].joining.unwrap_or_else(|| self.arrives_in(queue))
    }

    pub(crate) fn arrives_in(&self, queue: usize) -> u16 {
        let slice = self.slice().filter(|slice| slice.includes(queue));
        slice.map_or(self.queues[queue].group, |slice| slice.group_after)
    }

    /// Returns the group with this mask, but not a group whose queues have all ended, because flow
    /// state may still be on its old CPUs.
    pub(crate) fn group_with(&self, mask: &[CpuIndex]) -> Option<u16> {
        let in_it = |at: usize| (0..self.queues.len()).any(|q| self.queues[q].open && self.group_of(q) == at as u16);
        (0..self.groups.len()).find(|at| self.groups[*at].mask == mask && in_it(*at)).map(|at| at as u16)
    }

    /// Creates a group. The new group reuses the number of a group without queues, if there is one.
    pub(crate) fn begin_group(&mut self, mask: Vec<CpuIndex>, plan: Plan, map: Vec<CpuIndex>) -> u16 {
        self.groups_begun += 1;
        let version = GroupVersion { begun: self.groups_begun, changed: 0 };
        let begun = Group { version, mask, plan, want: map.clone(), map, cause: MoveCause::Mask };
        let in_use =
            |at: &usize| self.queues.iter().any(|q| usize::from(q.group) == *at || q.joining == Some(*at as u16));
        let concerned = |at: &usize| self.slice().is_some_and(|slice| usize::from(slice.group_after) == *at);
        match (0..self.groups.len()).find(|at| !in_use(at) && !concerned(at)) {
            Some(empty) => {
                self.groups[empty] = begun;
                empty as u16
            }
            None => {
                self.groups.push(begun);
                (self.groups.len() - 1) as u16
            }
        }
    }

    pub(crate) fn order_among(&self, mask: &[CpuIndex], polls: &[CpuIndex]) -> (Vec<CpuIndex>, usize) {
        let mut order = mask.to_vec();
        let owners = self.order_in_place(&mut order, polls);
        (order, owners)
    }

    /// Keeps the usable CPUs, in the order in which they should get buckets: all CPUs that are
    /// alive and present, or else all that are alive, or else all. Returns how many of the CPUs
    /// poll queues, at least 1.
    fn order_in_place(&self, cpus: &mut Vec<CpuIndex>, polls: &[CpuIndex]) -> usize {
        let is_alive = |cpu: &CpuIndex| !self.dead[usize::from(*cpu)];
        let is_present = |cpu: &CpuIndex| is_alive(cpu) && !self.absent[usize::from(*cpu)];
        if cpus.iter().any(is_present) {
            cpus.retain(is_present);
        } else if cpus.iter().any(is_alive) {
            cpus.retain(is_alive);
        }
        let near = polls.first().and_then(|cpu| self.nearness.get(usize::from(*cpu)));
        let far =
            |cpu: &CpuIndex| near.and_then(|near| near.iter().position(|other| other == cpu)).unwrap_or(usize::MAX);
        cpus.sort_unstable_by_key(|cpu| (!polls.contains(cpu), far(cpu), *cpu));
        cpus.iter().filter(|cpu| polls.contains(cpu)).count().max(1)
    }

    /// Returns a group's usable CPUs in the order in which they should get buckets, and how many
    /// CPUs at the front of this list poll queues.
    pub fn order_of(&self, group: usize) -> (Vec<CpuIndex>, usize) {
        let polls: Vec<CpuIndex> = self.open_queues_of(group).map(|queue| self.queues[queue].owner).collect();
        self.order_among(&self.groups[group].mask, &polls)
    }

    /// Returns the queues of a group that have not ended.
    pub fn open_queues_of(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.queues.len()).filter(move |q| usize::from(self.queues[*q].group) == group && self.queues[*q].open)
    }

    /// The queues of a group.
    pub fn queues_of(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.queues.len()).filter(move |q| usize::from(self.queues[*q].group) == group)
    }

    /// Returns the number of groups, including groups that have no queues.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the version of a group, and its current map.
    pub fn group(&self, group: usize) -> (GroupVersion, &[CpuIndex]) {
        (self.groups[group].version, &self.groups[group].map)
    }

    /// If `keep` is true, the map changes only if the set of CPUs that have buckets changes.
    fn derive_map(&mut self, group: usize, cause: MoveCause, keep: bool) {
        let mut scratch = std::mem::replace(&mut self.scratch, Scratch::new(0));
        let Scratch { cpus, polls, .. } = &mut scratch;
        polls.clear();
        let owners = self.open_queues_of(group).map(|queue| self.queues[queue].owner);
        owners.for_each(|owner| {
            if !polls.contains(&owner) {
                polls.push(owner);
            }
        });
        cpus.clear();
        cpus.extend_from_slice(&self.groups[group].mask);
        self.order_in_place(cpus, polls);
        let group = &mut self.groups[group];
        group.plan.choose_in_place(cpus);
        let chosen = std::mem::take(cpus);
        group.want.copy_from_slice(&group.map);
        spread(&mut group.want, &chosen, keep, &mut scratch);
        group.cause = cause;
        group.version.changed += 1;
        scratch.cpus = chosen;
        self.scratch = scratch;
    }

    pub(crate) fn derive_all_maps(&mut self, cause: MoveCause) {
        (0..self.groups.len()).for_each(|group| self.derive_map(group, cause, true));
    }

    pub(crate) fn set_present(&mut self, present: &[CpuIndex]) {
        let absent: Vec<bool> = (0..self.absent.len()).map(|cpu| !present.contains(&(cpu as CpuIndex))).collect();
        if absent == self.absent {
            return;
        }
        let goes = absent.iter().zip(&self.absent).any(|(now, before)| *now && !before);
        self.absent = absent;
        self.derive_all_maps(if goes { MoveCause::CpuOffline } else { MoveCause::CpuBack });
    }

    pub(crate) fn set_plan(&mut self, group: usize, plan: Plan) {
        self.groups[group].plan = plan;
        self.derive_map(group, MoveCause::Mask, false);
    }

    pub(crate) fn set_map(&mut self, group: usize, map: &[CpuIndex], plan: Plan, cause: MoveCause) {
        let group = &mut self.groups[group];
        group.want.copy_from_slice(map);
        (group.plan, group.cause) = (plan, cause);
    }

    /// Returns true if `map` has a usable CPU of the group for each bucket.
    pub fn allows(&self, group: usize, map: &[CpuIndex]) -> bool {
        let (order, _) = self.order_of(group);
        map.len() == self.buckets && map.iter().all(|cpu| order.contains(cpu))
    }
}
