//! What a policy reads from an instance and stores in it. A policy reads counters and groups
//! through the [`Handle`](crate::control::Handle), decides on its own thread, and stores its plan.
//! The core never calls a policy and never waits for a policy. If the mask or the usable CPUs
//! change, the core follows the stored [`Plan`].

use std::fmt;

use steerage_flow::Timestamp;

use crate::ids::CpuIndex;
use crate::limits::BUCKETS;
pub use steerage_ledger::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate};
pub use steerage_moves::{GroupVersion, Plan};

/// The state of an instance on which a policy decides, at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// True if no bucket is moving or about to move.
    pub is_settled: bool,
    /// How many slices of buckets have moved so far.
    pub slices: u64,
    /// The share of each CPU's time that other programs used lately.
    pub others: Vec<f64>,
    /// The groups, by their numbers.
    pub groups: Vec<GroupView>,
}

/// One steering group.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// The number and version of the group. A request of a policy contains this version.
    pub version: GroupVersion,
    /// The usable CPUs of the group, in the order in which they should join. The CPUs that poll a
    /// queue of the group come first.
    pub order: Vec<CpuIndex>,
    /// How many CPUs of `order` poll queues. At least 1.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: Box<[CpuIndex; BUCKETS]>,
    /// The queues of the group that have not ended. Empty if the group is over.
    pub queues: Vec<usize>,
}

/// The properties of a policy that an instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// The name of the policy, in one word.
    pub name: &'static str,
    /// True if CPUs should sample their load for the policy.
    pub measures: bool,
}

/// The findings of a policy about a group, for reports.
#[derive(Clone, Debug, Default)]
pub struct GroupFindings {
    /// The group to which the findings belong.
    pub version: GroupVersion,
    /// The findings about the whole group.
    pub findings: Findings,
    /// The flows that use a large part of a CPU's time.
    pub elephants: Vec<Elephant>,
}

/// A hook: code that a CPU runs between two rounds, without a lock, for at most
/// [`BETWEEN_ROUNDS_MAX`](crate::limits::BETWEEN_ROUNDS_MAX), such as a part of a measurement that
/// needs this CPU. A hook must neither wait for a lock nor allocate memory.
pub trait BetweenRounds: Send + Sync + fmt::Debug {
    /// Runs the hook on the CPU. `now` is the CPU's clock.
    fn run(&self, now: &dyn Fn() -> Timestamp) -> HookStatus;
}

/// Whether a hook is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStatus {
    /// The hook is done.
    Done,
    /// The hook should be run again after the next round.
    Again,
}
