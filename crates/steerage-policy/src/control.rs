//! Runs one policy for each group of queues, with one load meter and one set of measured distances.
//!
//! The policy control uses the public handle of steerage-core: it reads counters, calls the
//! policies without a lock of the core, and passes on maps and plans. A decision contains the
//! version of its group, and the core ignores decisions on an old version.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use steerage_core::build::{BeginWith, InputSpec};
use steerage_core::control::Handle;
use steerage_core::ids::{BucketId, CpuIndex, MoveCause};
use steerage_core::limits::{BUCKETS, WATCH_EVERY};
use steerage_core::placement::{Elephant, GroupVersion, GroupView, Plan, PolicyInfo, View};
use steerage_flow::Timestamp;
use steerage_ledger::Ledgers;
use steerage_topology::{CpuId, Nearness, nearness};

use crate::activity::Activity;
use crate::distances::Distances;
use crate::elephants::Elephants;
use crate::limits::{REFINE_EVERY, REFINE_EVERY_MAX};
use crate::load::{BucketWork, Interval, LoadMeter};
use crate::others::OthersWant;
use crate::packing::members;
use crate::policy::{GroupLoad, GroupStart, MapRequest, Policy, Window};
use crate::receivers::Receivers;

/// Runs one policy for each group of queues in an instance.
///
/// A program must call [`check`](Self::check) repeatedly, for as long as the instance runs. If
/// calls are late or missing, packets are steered by the last map.
#[derive(Debug)]
pub struct PolicyControl {
    handle: Handle,
    policy: Box<dyn Policy>,
    groups: Vec<Group>,
    load: LoadMeter,
    distances: Distances,
    setting: Setting,
    elephants: Elephants,
    receivers: Receivers,
    want: OthersWant,
    placed: Option<Timestamp>,
    activity: Activity,
    /// True if a policy can choose between CPUs ([`has_choice`]). If no policy can choose between
    /// CPUs, CPUs take no samples of their load.
    chooses: bool,
    awaits_others: bool,
    due: Option<Timestamp>,
    interval: Duration,
}

#[derive(Debug)]
struct Group {
    policy: Box<dyn Policy>,
    work: BucketWork,
    /// The version of the group at which the core accepted the policy's plan.
    version: Option<GroupVersion>,
}

/// Returns the properties of a policy that the core must know: see
/// [`Spec::policy`](steerage_core::build::Spec::policy).
pub fn policy_info(policy: &dyn Policy) -> PolicyInfo {
    PolicyInfo { name: policy.name(), measures: policy.refine_every().is_some() }
}

/// The properties of an instance that policies must know before the instance runs.
#[derive(Clone, Debug)]
pub struct Setting {
    cpus_are_real: bool,
    can_wait: bool,
    /// The time that a cache line takes from the first CPU to the second, measured when the
    /// instance is built.
    apart: Arc<OnceLock<BTreeMap<(CpuIndex, CpuIndex), Duration>>>,
}

impl Setting {
    /// `cpus_are_real` is true if the CPUs of the instance are CPUs of this machine.
    pub fn new(inputs: &[InputSpec], cpus_are_real: bool) -> Self {
        let mut queues = inputs.iter().flat_map(|asked| &asked.input.queues);
        let can_wait = queues.all(|queue| queue.capabilities().can_wait);
        Self { cpus_are_real, can_wait, apart: Arc::default() }
    }

    /// Measures the distances between CPUs once. Returns, for each CPU, the order in which other
    /// CPUs should join this CPU to handle packets.
    pub fn joining_orders(&self, cpus: &[CpuId], owners: &[CpuIndex]) -> Vec<Vec<CpuIndex>> {
        let near = if self.cpus_are_real { nearness(cpus, owners) } else { Nearness::default() };
        let _ = self.apart.set(near.apart);
        near.orders
    }

    fn beginning<'a>(&self, order: &'a [CpuIndex], owners: usize, active: &'a [CpuIndex]) -> GroupStart<'a> {
        let apart = || self.apart.get()?.get(&(*order.first()?, *order.get(owners)?)).copied();
        GroupStart { order, owners, active, apart: apart(), can_wait: self.can_wait }
    }
}

/// Returns the plans with which groups begin when an instance is built: see
/// [`Spec::bucket_plan`](steerage_core::build::Spec::bucket_plan).
pub fn first_plan(policy: &dyn Policy, setting: Setting) -> BeginWith {
    let policy = policy.fresh();
    BeginWith(Box::new(move |order, owners| policy.fresh().plan(&setting.beginning(order, owners, &[]))))
}

impl PolicyControl {
    /// Creates the control of an instance built with the [`first_plan`] of this policy and setting.
    pub fn new(handle: Handle, policy: impl Policy + 'static, setting: Setting) -> Self {
        let mut control = Self {
            handle,
            policy: Box::new(policy),
            groups: Vec::new(),
            load: LoadMeter::default(),
            distances: Distances::new(setting.cpus_are_real, setting.apart.get().into_iter().flatten()),
            setting,
            elephants: Elephants::default(),
            receivers: Receivers::default(),
            want: OthersWant::default(),
            placed: None,
            activity: Activity::default(),
            chooses: true,
            awaits_others: false,
            due: None,
            interval: REFINE_EVERY,
        };
        control.begin_all(|_| Vec::new());
        control
    }

    /// Replaces the policy. On return, the new plans are in effect, but buckets may still move.
    pub fn set_policy(&mut self, policy: impl Policy + 'static) {
        self.policy = Box::new(policy);
        self.groups.clear();
        (self.load, self.elephants, self.receivers) = Default::default();
        self.handle.name_flows(Vec::new());
        self.begin_all(active);
    }

    fn begin_all(&mut self, active: impl Fn(&GroupView) -> Vec<CpuIndex>) {
        self.chooses = true;
        self.handle.set_policy_info(policy_info(&*self.policy));
        let view = self.handle.view();
        for (at, group) in view.groups.iter().enumerate() {
            self.begin(at, group, &active(group));
        }
        self.interval = self.policy.refine_every().unwrap_or(REFINE_EVERY);
        self.due = self.next_check(Timestamp::ZERO).map(|_| Timestamp::ZERO);
    }

    /// Does the work that is due at the time `now` ([`Handle::now`]). Returns the time of the next
    /// call, or `None` if no call is needed until another policy is set. An early call has no
    /// effect. A late call works like a call on time, because the load is measured over the real
    /// time.
    ///
    /// If a policy that is not [`Guarded`](crate::Guarded) panics, buckets stay on their CPUs, and
    /// the load is not checked until another policy is set.
    pub fn check(&mut self, now: Timestamp) -> Option<Timestamp> {
        if now < self.due? {
            return self.due;
        }
        let next = catch_unwind(AssertUnwindSafe(|| self.check_now(now)));
        self.due = next.unwrap_or_else(|_| {
            tracing::error!(policy = self.policy.name(), "the policy panicked and is not called again");
            None
        });
        self.due
    }

    /// Until the CPU time that other programs use has been measured, the policies decide nothing
    /// for live devices. Another program may be the sender of the packets, and once steerage
    /// competes with the sender for a CPU, the time that the sender wants can no longer be
    /// measured.
    pub(crate) fn await_others(&mut self, yes: bool) {
        self.awaits_others = yes;
    }

    fn check_now(&mut self, now: Timestamp) -> Option<Timestamp> {
        let view = self.handle.view();
        let mut is_active = self.activity.since_last(self.handle.ledgers()) | !view.is_settled;
        for (at, group) in view.groups.iter().enumerate() {
            is_active |= self.follow(at, group);
        }
        if let Some(every) = self.policy.refine_every() {
            self.follow_choice(&view);
            // If no policy can choose between CPUs, the control only checks whether a mask has
            // changed.
            if self.chooses {
                is_active |= self.check_load(now, &view);
            }
            let longer = (self.interval * 2).min(REFINE_EVERY_MAX);
            self.interval = if is_active { every } else { longer.max(every) };
        }
        self.next_check(now)
    }

    /// CPUs take samples only while a policy can choose between several CPUs.
    fn follow_choice(&mut self, view: &View) {
        let chooses = view.groups.iter().any(|group| has_choice(group, self.handle.ledgers()));
        if chooses != std::mem::replace(&mut self.chooses, chooses) {
            let info = policy_info(&*self.policy);
            self.handle.set_policy_info(PolicyInfo { measures: info.measures && chooses, ..info });
            self.receivers = Receivers::default();
            self.groups.iter_mut().for_each(|group| group.work = BucketWork::default());
        }
    }

    /// If the policy needs no load checks, calls of `check` only pass on plans that the core has
    /// not accepted yet.
    fn next_check(&self, now: Timestamp) -> Option<Timestamp> {
        let checks = self.policy.refine_every().is_some() || self.groups.iter().any(|group| group.version.is_none());
        checks.then(|| now + self.interval)
    }

    fn follow(&mut self, at: usize, group: &GroupView) -> bool {
        match self.groups.get_mut(at) {
            Some(Group { version: Some(known), .. }) if *known == group.version => false,
            Some(Group { version: Some(known), policy, .. }) if known.begun == group.version.begun => {
                *known = group.version;
                policy.cpus_changed();
                true
            }
            _ => {
                self.begin(at, group, &active(group));
                true
            }
        }
    }

    fn begin(&mut self, at: usize, group: &GroupView, active: &[CpuIndex]) {
        let fresh = || Group { policy: self.policy.fresh(), work: BucketWork::default(), version: None };
        while self.groups.len() <= at {
            self.groups.push(fresh());
        }
        let mut begun = fresh();
        let plan = begun.policy.plan(&self.setting.beginning(&group.order, group.owners, active));
        self.handle.set_findings(at, group.version, begun.policy.findings(), Vec::new());
        begun.version = self.handle.set_plan(at, group.version, plan).then_some(group.version);
        self.groups[at] = begun;
    }

    fn check_load(&mut self, now: Timestamp, view: &View) -> bool {
        self.distances.collect(now);
        for (bucket, flow) in self.handle.take_flows() {
            self.elephants.note(bucket, flow);
        }
        let mut work: Vec<&mut BucketWork> = self.groups.iter_mut().map(|group| &mut group.work).collect();
        let Some(interval) = self.load.check(now, self.handle.ledgers(), view, &mut work) else {
            self.receivers.begin_anew();
            return false;
        };
        self.want.note(now, &view.others, self.handle.ledgers());
        if self.awaits_others && !self.setting.can_wait {
            return true;
        }
        // After a trial of another CPU has begun or ended, the policies wait for a measurement of
        // the time that other programs now take, so that no decision disturbs the trial.
        if self.placed.is_some_and(|placed| now.since(placed) < 2 * WATCH_EVERY) {
            return self.place_receivers(now, view);
        }
        let (mut requests, mut to_measure) = (Vec::new(), Vec::new());
        for (at, group) in view.groups.iter().enumerate().filter(|(_, group)| !group.queues.is_empty()) {
            requests.extend(self.check_group(now, at, view, &interval).map(|request| (at, request)));
            to_measure.extend(self.groups[at].policy.asks_distance().map(|cpu| (group.order[0], cpu)));
        }
        if let Some(window) = &interval.window {
            self.receivers.note_heavy(&window.heavy);
            self.follow_elephants();
        }
        for (at, group) in view.groups.iter().enumerate().filter(|(_, group)| !group.queues.is_empty()) {
            self.report(at, group);
        }
        let has_wishes = !requests.is_empty();
        for (at, request) in requests {
            self.grant(now, at, &view.groups[at], request);
        }
        // Measuring distances would disturb moves of buckets.
        if !has_wishes {
            self.measure(now, &to_measure);
        }
        has_wishes || self.place_receivers(now, view)
    }

    /// Begins or ends a trial, in which another CPU receives packets or gets a heavy bucket.
    /// Returns true if a trial has begun or ended.
    fn place_receivers(&mut self, now: Timestamp, view: &View) -> bool {
        if !self.policy.moves_receivers() {
            return false;
        }
        let Some(change) = self.receivers.check(now, view, self.handle.ledgers()) else { return false };
        tracing::info!(queue = change.queue, polled_on = ?change.polled_on, "a trial of other CPUs begins or ends");
        let groups = view.groups.iter().enumerate();
        for (at, group) in groups.filter(|(_, group)| group.queues.contains(&change.queue)) {
            let plan = plan_of(&change.map, &group.order);
            // If the group has changed since the view was taken, the core ignores the map.
            self.handle.set_map(at, group.version, &change.map, plan, MoveCause::Balance);
        }
        if let Some(cpu) = change.polled_on {
            self.handle.poll_on(change.queue, cpu);
        }
        self.placed = Some(now);
        true
    }

    fn check_group(&mut self, now: Timestamp, at: usize, view: &View, interval: &Interval) -> Option<MapRequest> {
        let group = &view.groups[at];
        let cpus = self.load.loads(interval, &group.queues, &view.others, &self.want);
        let Group { policy, work, .. } = &mut self.groups[at];
        let window = interval.window.as_ref().map(|window| Window {
            cpus: &window.cpus,
            buckets: &window.shares[at],
            samples: work.samples as u64,
        });
        let first = group.order[0];
        let apart: Vec<Option<Duration>> =
            (0..cpus.len()).map(|cpu| self.distances.between(first, cpu as CpuIndex)).collect();
        policy.refine(&GroupLoad {
            now,
            elapsed: interval.elapsed,
            order: &group.order,
            owners: group.owners,
            map: &group.map,
            cpus: &cpus,
            apart: &apart,
            window,
            can_wait: self.setting.can_wait,
        })
    }

    fn grant(&mut self, now: Timestamp, at: usize, group: &GroupView, request: MapRequest) {
        if !request.map.iter().all(members(&group.order)) {
            tracing::error!(policy = self.policy.name(), "a policy wished for a CPU that it cannot have");
            return;
        }
        let plan = plan_of(&request.map, &group.order);
        // If the group has changed, the core ignores the map until the next load check.
        if self.handle.set_map(at, group.version, &request.map, plan, request.cause)
            && request.cause != MoveCause::Balance
        {
            self.load.cpus_changed(now);
        }
    }

    fn measure(&mut self, now: Timestamp, pairs: &[(CpuIndex, CpuIndex)]) {
        let parts = pairs.iter().find_map(|(asks, answers)| self.distances.begin(*asks, *answers, now));
        for (cpu, part) in parts.into_iter().flatten() {
            self.handle.between_rounds(cpu, part);
        }
    }

    fn follow_elephants(&mut self) {
        let heavy = |(group, state): (usize, &Group)| {
            let buckets = state.policy.findings().elephants.into_iter();
            buckets.map(move |(bucket, _)| BucketId { group: group as u16, bucket }).collect::<Vec<_>>()
        };
        let before = self.elephants.buckets();
        self.elephants.follow(self.groups.iter().enumerate().flat_map(heavy).collect());
        let now = self.elephants.buckets();
        if now != before {
            self.handle.name_flows(now);
        }
    }

    fn report(&self, at: usize, group: &GroupView) {
        let findings = self.groups[at].policy.findings();
        let named = |(bucket, load): &(u16, f64)| {
            let flow = self.elephants.flow_in(BucketId { group: at as u16, bucket: *bucket });
            Elephant::new(*bucket, *load, flow)
        };
        let elephants = findings.elephants.iter().map(named).collect();
        self.handle.set_findings(at, group.version, findings, elephants);
    }
}

/// Returns true if another CPU could get buckets of the group, or could poll one of its queues.
fn has_choice(group: &GroupView, ledgers: &Ledgers) -> bool {
    let is_elsewhere = |queue: &usize| ledgers.queues[*queue].owner() != group.order[0];
    !group.queues.is_empty() && (group.order.len() > 1 || group.queues.iter().any(is_elsewhere))
}

fn active(group: &GroupView) -> Vec<CpuIndex> {
    let Plan { mut order, active } = plan_of(&group.map, &group.order);
    order.truncate(active);
    order
}

/// The CPUs with buckets come first, and then all other CPUs, both in the order of the group. If a
/// CPU with buckets fails, the next CPU in this order replaces it.
fn plan_of(map: &[CpuIndex; BUCKETS], order: &[CpuIndex]) -> Plan {
    let has_buckets = members(map);
    let (mut first, rest): (Vec<CpuIndex>, Vec<CpuIndex>) = order.iter().partition(|cpu| has_buckets(cpu));
    let active = first.len();
    first.extend(rest);
    Plan { order: first, active }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_a_map_begins_with_the_cpus_that_have_buckets() {
        let mut map = [3; BUCKETS];
        map[7] = 5;
        // CPU 0, which receives packets and has no buckets, is the first to replace a failed CPU.
        assert_eq!(plan_of(&map, &[0, 5, 1, 3]), Plan { order: vec![5, 3, 0, 1], active: 2 });
        let version = GroupVersion::default();
        let group = GroupView { version, order: vec![0, 1, 3], owners: 1, map: Box::new(map), queues: vec![0] };
        assert_eq!(active(&group), [3], "CPU 5 cannot be used");
    }
}
