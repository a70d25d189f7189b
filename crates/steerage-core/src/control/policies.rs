use std::sync::Arc;

use steerage_flow::{FlowKey, Timestamp};
use steerage_moves::Event;

use super::Handle;
use crate::ids::{BucketId, CpuIndex, MoveCause};
use crate::limits::BUCKETS;
use crate::placement::{
    BetweenRounds, Elephant, Findings, GroupFindings, GroupVersion, GroupView, Plan, PolicyInfo, View,
};
use crate::steering::State;
use steerage_ledger::Ledgers;

/// The functions that policies call: see [`placement`](crate::placement).
impl Handle {
    /// Returns the time since the instance was built, on the clock that all CPUs of the instance
    /// read.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.start.elapsed().as_nanos() as u64)
    }

    /// Returns all counters of the instance. Reading does not slow down any CPU.
    pub fn ledgers(&self) -> &Ledgers {
        &self.0.ledgers
    }

    /// Returns the current groups of queues, and each group's map from buckets to CPUs.
    pub fn view(&self) -> View {
        let state = self.0.steering.lock();
        let moves = &state.moves;
        let group = |at: usize| {
            let (version, map) = moves.group(at);
            let (order, owners) = moves.order_of(at);
            let mut copy = Box::new([0; BUCKETS]);
            copy.copy_from_slice(map);
            GroupView { version, order, owners, map: copy, queues: moves.open_queues_of(at).collect() }
        };
        View {
            is_settled: moves.is_settled(),
            slices: moves.counts().slices,
            others: state.others.clone(),
            groups: (0..moves.groups()).map(group).collect(),
        }
    }

    /// Stores a plan for a group of queues. Each active CPU gets an equal share of the buckets,
    /// with as few moves of buckets as possible. Returns false and changes nothing if `version` is
    /// outdated.
    pub fn set_plan(&self, group: usize, version: GroupVersion, plan: Plan) -> bool {
        self.0.change(|state| {
            let current = is_current(state, group, version);
            if current {
                state.on(Event::Plan { group, plan });
            }
            current
        })
    }

    /// Moves the buckets of a group to the CPUs in `map`, and stores a plan that agrees with `map`.
    /// Returns false and changes nothing if `version` is outdated, or if a CPU in `map` is not usable.
    pub fn set_map(
        &self,
        group: usize,
        version: GroupVersion,
        map: &[CpuIndex; BUCKETS],
        plan: Plan,
        cause: MoveCause,
    ) -> bool {
        self.0.change(|state| {
            let allowed = is_current(state, group, version) && state.moves.allows(group, map);
            if allowed {
                state.on(Event::Map { group, map, plan, cause });
            }
            allowed
        })
    }

    /// Like [`set_rx_cpu`](Self::set_rx_cpu), but policies may move the queue again.
    pub fn poll_on(&self, queue: usize, cpu: CpuIndex) {
        self.0.change(|state| state.want_owner(queue, cpu));
    }

    /// Sets the policy's name and whether CPUs sample load. Deletes earlier findings.
    pub fn set_policy_info(&self, policy: PolicyInfo) {
        self.0.change(|state| state.set_policy(policy));
    }

    /// The name of the policy.
    pub fn policy(&self) -> &'static str {
        self.0.steering.lock().policy.name
    }

    /// Stores the policy's findings about a group, for reports.
    pub fn set_findings(&self, group: usize, version: GroupVersion, findings: Findings, elephants: Vec<Elephant>) {
        self.0.change(|state| {
            if state.findings.len() <= group {
                state.findings.resize_with(group + 1, GroupFindings::default);
            }
            state.findings[group] = GroupFindings { version, findings, elephants };
        });
    }

    /// Makes CPUs examine samples of these buckets, to find each bucket's largest flow.
    pub fn name_flows(&self, buckets: Vec<BucketId>) {
        self.0.change(|state| state.set_to_name(buckets));
    }

    /// Returns the flows seen in the examined buckets since the last call, at most
    /// [`FLOWS_SEEN_MAX`](crate::limits::FLOWS_SEEN_MAX).
    pub fn take_flows(&self) -> Vec<(BucketId, FlowKey)> {
        self.0.change(State::take_flows)
    }

    /// Makes a CPU run `hook` between two rounds, instead of an earlier hook that has not run yet.
    pub fn between_rounds(&self, cpu: CpuIndex, hook: Arc<dyn BetweenRounds>) {
        self.0.change(|state| state.set_hook(cpu, hook));
    }

    /// For tests: holds the control lock until the returned value is dropped, like a control thread
    /// that is preempted. Packet CPUs continue to run.
    #[doc(hidden)]
    pub fn hold(&self) -> impl Drop + '_ {
        self.0.steering.lock()
    }
}

fn is_current(state: &State, group: usize, version: GroupVersion) -> bool {
    group < state.moves.groups() && state.moves.group(group).0 == version
}
