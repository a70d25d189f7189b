//! The data that a policy reads from an instance, and stores in the instance. A policy reads
//! counters and groups through the [`Handle`](crate::control::Handle), decides on a thread of its
//! own, and stores its decision as a [`Plan`]. The core never calls or waits for a policy, and
//! follows the stored plan if a mask or the set of usable CPUs changes.

use std::fmt;

use steerage_flow::Timestamp;

use crate::ids::CpuIndex;
use crate::limits::BUCKETS;
pub use steerage_ledger::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate};
pub use steerage_moves::{GroupVersion, Plan};

/// The state of an instance at one moment, from which a policy decides.
#[derive(Clone, Debug)]
pub struct View {
    /// True if no bucket is moving or about to move.
    pub is_settled: bool,
    /// The number of slices (sets of buckets) that have been moved so far.
    pub slices: u64,
    /// For each CPU, the fraction of its time that other programs used recently.
    pub others: Vec<f64>,
    /// The groups of queues, by group number.
    pub groups: Vec<GroupView>,
}

/// One steering group.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// The number and version of the group, which a policy passes with each request.
    pub version: GroupVersion,
    /// The usable CPUs in the order in which they should get buckets. CPUs that poll a queue come
    /// first.
    pub order: Vec<CpuIndex>,
    /// The number of CPUs at the front of `order` that poll queues of the group, at least 1.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: Box<[CpuIndex; BUCKETS]>,
    /// The queues of the group that have not ended.
    pub queues: Vec<usize>,
}

/// The properties of a policy that the instance must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// The policy's name, a single word.
    pub name: &'static str,
    /// True if CPUs should sample their load for the policy.
    pub measures: bool,
}

/// A policy's findings about a group, for reports.
#[derive(Clone, Debug, Default)]
pub struct GroupFindings {
    /// The group to which the findings apply.
    pub version: GroupVersion,
    /// The findings about the whole group.
    pub findings: Findings,
    /// The flows that take a large part of a CPU's time.
    pub elephants: Vec<Elephant>,
}

/// A hook: code that a CPU runs between two rounds, for at most
/// [`BETWEEN_ROUNDS_MAX`](crate::limits::BETWEEN_ROUNDS_MAX), such as the CPU's part of a
/// measurement. A hook must neither wait for a lock nor allocate memory.
pub trait BetweenRounds: Send + Sync + fmt::Debug {
    /// Runs the hook on the CPU. `now` reads the CPU's clock.
    fn run(&self, now: &dyn Fn() -> Timestamp) -> HookStatus;
}

/// The result of one run of a hook: whether the hook is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStatus {
    /// The hook is done.
    Done,
    /// The hook should be run again after the next round.
    Again,
}
