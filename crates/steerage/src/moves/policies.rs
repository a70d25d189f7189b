//! Groups and their policies: who may have buckets, and in which order.

use std::time::Duration;

use super::State;
use crate::cpu::CpuId;
use crate::handler::BucketId;
use crate::ledger::MoveCause;
use crate::limits::BUCKETS;
use crate::platform::Timestamp;
use crate::policy::{Elephant, GroupSnapshot, Policy};
use crate::rps_map::CpuIndex;

impl<M> State<M> {
    /// The living CPUs of a mask in the order in which they are to join, those that poll first, and how many these are.
    pub(super) fn order_among(
        &self,
        mask: &[CpuIndex],
        owners: impl Iterator<Item = CpuIndex>,
    ) -> (Vec<CpuIndex>, usize) {
        let polls: Vec<CpuIndex> = owners.collect();
        let mut order = self.living(mask);
        let near = polls.first().and_then(|cpu| self.nearness.get(usize::from(*cpu)));
        let far =
            |cpu: &CpuIndex| near.and_then(|near| near.iter().position(|other| other == cpu)).unwrap_or(usize::MAX);
        order.sort_by_key(|cpu| (!polls.contains(cpu), far(cpu), *cpu));
        let owners = order.iter().filter(|cpu| polls.contains(cpu)).count();
        (order, owners.max(1))
    }

    pub(crate) fn order_of(&self, group: usize) -> (Vec<CpuIndex>, usize) {
        let owners = self.open_queues_of(group).into_iter().map(|queue| self.queues[queue].control.owner);
        self.order_among(&self.groups[group].mask, owners)
    }

    /// The queues of a group that have not ended.
    pub(crate) fn open_queues_of(&self, group: usize) -> Vec<usize> {
        (0..self.queues.len()).filter(|q| usize::from(self.queues[*q].group) == group && self.queues[*q].open).collect()
    }

    /// How many CPUs have buckets.
    pub(crate) fn active_cpus(&self) -> usize {
        let mut active: Vec<CpuIndex> = self.groups.iter().flat_map(|group| group.map.cpus()).collect();
        active.sort_unstable();
        active.dedup();
        active.len()
    }

    /// How often load is looked at, if at all.
    pub(crate) fn look_every(&self) -> Option<Duration> {
        self.policy.look_every()
    }

    pub(crate) fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Has two CPUs measure how far they are apart, if it is time. Returns whether they do.
    pub(crate) fn have_measured(&mut self, asks: CpuIndex, answers: CpuIndex, now: Timestamp) -> bool {
        let due = self.distances.ask(asks, answers, now);
        if due {
            self.changed = true;
            self.to_wake.extend([asks, answers]);
        }
        due
    }

    /// These CPUs of ours are there, the others are not: nothing new comes to those.
    pub(crate) fn set_present(&mut self, present: &[CpuIndex]) {
        let absent: Vec<bool> = (0..self.dead.len()).map(|cpu| !present.contains(&(cpu as CpuIndex))).collect();
        if absent == self.absent {
            return;
        }
        let goes = absent.iter().zip(&self.absent).any(|(now, before)| *now && !before);
        self.absent = absent;
        for group in 0..self.groups.len() {
            self.plan(group, if goes { MoveCause::CpuOffline } else { MoveCause::CpuBack });
        }
        self.begin_slice();
    }

    /// All groups are steered by another policy from now on.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        for group in 0..self.groups.len() {
            self.groups[group].policy = policy.fresh();
            self.plan(group, MoveCause::Mask);
        }
        self.policy = policy;
        self.changed = true;
        // Who sleeps is to know whether there is anything to look at.
        self.to_wake.extend(0..self.dead.len() as CpuIndex);
        self.begin_slice();
    }

    /// How each group is steered.
    pub(crate) fn group_snapshots(&self, cpus: &[CpuId]) -> Vec<GroupSnapshot> {
        let shown = (0..self.groups.len()).map(|at| {
            let group = &self.groups[at];
            let (order, _) = self.order_of(at);
            let has = group.map.cpus();
            let active = order.iter().filter(|cpu| has.contains(cpu)).map(|cpu| cpus[usize::from(*cpu)]).collect();
            let queues = (0..self.queues.len()).filter(|q| usize::from(self.queues[*q].group) == at).collect();
            let findings = group.policy.findings();
            let named = |(bucket, load): &(u16, f64)| Elephant {
                bucket: *bucket,
                load: *load,
                flow: self.flow_in(BucketId { group: at as u16, bucket: *bucket }),
            };
            let elephants = findings.elephants.iter().map(named).collect();
            GroupSnapshot { policy: group.policy.name(), queues, active, elephants, findings }
        });
        shown.filter(|group: &GroupSnapshot| !group.queues.is_empty()).collect()
    }
}

const _: () = assert!(BUCKETS <= u16::MAX as usize + 1);
