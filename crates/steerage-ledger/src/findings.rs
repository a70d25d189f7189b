//! The findings of the steering policies: costs per packet, and regimes (ways to use CPUs).

use std::borrow::Cow;
use std::time::Duration;

use steerage_flow::FlowKey;
use steerage_topology::CpuId;

#[cfg(feature = "serde")]
use crate::serial;

/// The findings of a policy about a group of queues.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Findings {
    /// The number of times that a CPU has joined the group since the start.
    pub joined: u64,
    /// The number of times that a CPU has left the group since the start.
    pub left: u64,
    /// The load of the busiest CPU, divided by the load that the busiest CPU would have with the
    /// best division of the buckets.
    pub uneven: Option<f64>,
    /// The measured time of transferring a cache line to the CPU that joined the group last or
    /// would join next. `None` if this time does not matter.
    #[cfg_attr(feature = "serde", serde(rename = "apart_ns", with = "serial::nanoseconds"))]
    pub apart: Option<Duration>,
    /// The current regime, which is `inline`, `collector` or `spread`. Empty if the policy has no
    /// regimes.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub regime: Cow<'static, str>,
    /// The reason for the regime, which is `start`, `predicted`, `measured`, `probe-failed` or
    /// `quiet`.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub reason: Cow<'static, str>,
    /// The measured costs per packet of each step, such as receiving.
    pub costs: Vec<CostEstimate>,
    /// The estimated throughput of each regime, with the current regime first.
    pub regimes: Vec<RegimeEstimate>,
    /// The buckets that take nearly all of a CPU's time or more, heaviest first, each with the
    /// share of a CPU's time that it takes.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub elephants: Vec<(u16, f64)>,
    /// The number of buckets that the policy `dry-run` would move now.
    pub would_move: Option<usize>,
}

/// A policy's estimate of the cost of one step per packet.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct CostEstimate {
    /// The step is `receive`, `hash` or `work`, or `give` or `take` for the two sides of a
    /// hand-over between CPUs.
    pub step: Cow<'static, str>,
    /// The estimated cost in nanoseconds per packet. The cost of the step `take` is negative if the
    /// CPU that takes the packet is faster than the CPU that gives it.
    #[cfg_attr(feature = "serde", serde(rename = "ns", with = "serial::tenths"))]
    pub nanos: f64,
    /// The standard deviation of the estimate, in the same unit.
    #[cfg_attr(feature = "serde", serde(rename = "deviation_ns", with = "serial::tenths"))]
    pub deviation: f64,
}

impl CostEstimate {
    /// Creates an estimate of the cost of `step`, in nanoseconds per packet.
    pub fn new(step: impl Into<Cow<'static, str>>, nanos: f64, deviation: f64) -> Self {
        Self { step: step.into(), nanos, deviation }
    }
}

/// A policy's estimate of the throughput of a regime (a way to use the CPUs).
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct RegimeEstimate {
    /// The regime: `inline`, `collector` or `spread`.
    pub regime: Cow<'static, str>,
    /// The number of CPUs in this regime (way to use the CPUs), including the CPUs that receive.
    pub cpus: usize,
    /// The throughput in packets per second, estimated from costs and measurements.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub rate: f64,
    /// The standard deviation of the estimate, in the same unit.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub deviation: f64,
    /// The throughput in packets per second, predicted from the costs alone, if known.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub predicted: f64,
}

impl RegimeEstimate {
    /// Creates an estimate of the throughput of `regime`, in packets per second.
    pub fn new(regime: impl Into<Cow<'static, str>>, cpus: usize, rate: f64, deviation: f64, predicted: f64) -> Self {
        Self { regime: regime.into(), cpus, rate, deviation, predicted }
    }
}

/// Describes how one group of queues is steered.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The policy's name.
    pub policy: Cow<'static, str>,
    /// The indices of the group's receive queues, counted across all inputs.
    pub queues: Vec<usize>,
    /// The CPUs that have buckets of this group of queues, in the order in which they joined the
    /// group.
    #[cfg_attr(feature = "serde", serde(rename = "active_list", with = "serial::cpu_list"))]
    pub active: Vec<CpuId>,
    /// The buckets that take nearly all of a CPU's time.
    pub elephants: Vec<Elephant>,
    /// The findings of the policy about the group.
    pub findings: Findings,
}

impl GroupSnapshot {
    /// Creates the snapshot of a group from its queues, CPUs and findings.
    pub fn new(
        policy: impl Into<Cow<'static, str>>,
        queues: Vec<usize>,
        active: Vec<CpuId>,
        elephants: Vec<Elephant>,
        findings: Findings,
    ) -> Self {
        Self { policy: policy.into(), queues, active, elephants, findings }
    }
}

/// A bucket that takes a large part of a CPU's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Elephant {
    /// The number of the bucket.
    pub bucket: u16,
    /// The part of a CPU's time that the bucket takes.
    pub load: f64,
    /// The flow with most packets of the bucket, if known. The flow keeps the direction of its
    /// packets: the source is the sender. The flow is not serialized, because not everyone who may
    /// read the counts may also see the traffic.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub flow: Option<FlowKey>,
}

impl Elephant {
    /// Creates an elephant from a bucket, its share of a CPU's time and its flow.
    pub fn new(bucket: u16, load: f64, flow: Option<FlowKey>) -> Self {
        Self { bucket, load, flow }
    }
}
