//! The view that a policy has of an instance, and the state that it leaves there. A policy reads counters and groups by the
//! [`Handle`](crate::control::Handle), decides on a thread of its own, and stores its wish. The core never calls a policy and never
//! waits for one: if the mask or the usable CPUs change, it goes by the [`Plan`] that the policy left.

use std::fmt;

use steerage_flow::Timestamp;

use crate::ids::CpuIndex;
use crate::limits::BUCKETS;
pub use steerage_ledger::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate};
pub use steerage_moves::{GroupVersion, Plan};

/// The part of an instance that a policy decides on, at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// Whether no bucket is moving or about to move.
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
    /// Which group this is, and in which state. A wish has to name it.
    pub version: GroupVersion,
    /// The usable CPUs of the group, in the order in which they should join. The CPUs that poll a queue of the group come first.
    pub order: Vec<CpuIndex>,
    /// How many CPUs of `order` poll; at least 1.
    pub owners: usize,
    /// The CPU of each bucket.
    pub map: Box<[CpuIndex; BUCKETS]>,
    /// Its queues that have not ended. Empty if the group is over.
    pub queues: Vec<usize>,
}

/// The properties of a policy that an instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// The name, in one word.
    pub name: &'static str,
    /// Whether CPUs should sample their load for it.
    pub measures: bool,
}

/// The findings of a policy about a group, for reports.
#[derive(Clone, Debug, Default)]
pub struct GroupFindings {
    /// The group that this is about.
    pub version: GroupVersion,
    /// About the whole group.
    pub findings: Findings,
    /// The flows that fill a large part of a CPU.
    pub elephants: Vec<Elephant>,
}

/// Something that a CPU runs between two rounds, without a lock, for at most
/// [`BETWEEN_ROUNDS_MAX`](crate::limits::BETWEEN_ROUNDS_MAX): for example a part in a measurement that
/// needs this CPU. It must neither wait for a lock nor allocate.
pub trait BetweenRounds: Send + Sync + fmt::Debug {
    /// Runs on the CPU. `now` is the CPU's clock.
    fn run(&self, now: &dyn Fn() -> Timestamp) -> HookStatus;
}

/// Whether a hook is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStatus {
    /// It is done.
    Done,
    /// It should be run again after the next round.
    Again,
}
