//! The functions of the [`Handle`] that policies call.

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
    /// Returns the time of the instance's clock, which started when the instance was built. All
    /// CPUs read the same clock.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.start.elapsed().as_nanos() as u64)
    }

    /// Returns all counters of the instance, by CPU and by queue. Reading the counters does not
    /// slow down any CPU.
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

    /// Stores a plan (which CPUs get buckets) for a group of queues. Each active CPU of the plan
    /// gets an equal share of the buckets. As few buckets as possible move. Returns false and
    /// changes nothing if `version` (the group's version that the caller read) is outdated.
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
    /// Returns false and changes nothing if `version` is outdated, or if `map` contains a CPU that
    /// the group cannot use.
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

    /// Makes another CPU poll a queue, as [`set_rx_cpu`](Self::set_rx_cpu) does. Unlike after
    /// `set_rx_cpu`, policies may move the queue again after this function.
    pub fn poll_on(&self, queue: usize, cpu: CpuIndex) {
        self.0.change(|state| state.want_owner(queue, cpu));
    }

    /// Sets the name of the policy for reports, and sets whether CPUs sample their load. The
    /// findings of the previous policy are deleted.
    pub fn set_policy_info(&self, policy: PolicyInfo) {
        self.0.change(|state| state.set_policy(policy));
    }

    /// The name of the policy.
    pub fn policy(&self) -> &'static str {
        self.0.steering.lock().policy.name
    }

    /// Stores the policy's findings about a group of queues, so that reports can show them.
    pub fn set_findings(&self, group: usize, version: GroupVersion, findings: Findings, elephants: Vec<Elephant>) {
        self.0.change(|state| {
            if state.findings.len() <= group {
                state.findings.resize_with(group + 1, GroupFindings::default);
            }
            state.findings[group] = GroupFindings { version, findings, elephants };
        });
    }

    /// Sets `buckets`: CPUs examine samples of the packets of these buckets, to find the largest
    /// flow of each bucket.
    pub fn name_flows(&self, buckets: Vec<BucketId>) {
        self.0.change(|state| state.set_to_name(buckets));
    }

    /// Returns the flows that CPUs have seen in the examined buckets since the last call: at
    /// most [`FLOWS_SEEN_MAX`](crate::limits::FLOWS_SEEN_MAX).
    pub fn take_flows(&self) -> Vec<(BucketId, FlowKey)> {
        self.0.change(State::take_flows)
    }

    /// Makes a CPU run `hook` between two of its next rounds (passes of its loop). A sleeping CPU
    /// is woken. If an earlier hook has not run yet, the new hook replaces it.
    pub fn between_rounds(&self, cpu: CpuIndex, hook: Arc<dyn BetweenRounds>) {
        self.0.change(|state| state.set_hook(cpu, hook));
    }

    /// Holds the control lock until the returned value is dropped. This function is for tests: it
    /// simulates a control thread that is preempted while it holds the lock. Packet CPUs continue
    /// to run, while other control threads wait for the lock.
    #[doc(hidden)]
    pub fn hold(&self) -> impl Drop + '_ {
        self.0.steering.lock()
    }
}

fn is_current(state: &State, group: usize, version: GroupVersion) -> bool {
    group < state.moves.groups() && state.moves.group(group).0 == version
}
