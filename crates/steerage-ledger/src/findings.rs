//! The findings of policies: the costs per packet, the regimes, and the steering of each group.

use std::borrow::Cow;
use std::time::Duration;

use steerage_flow::FlowKey;
use steerage_topology::CpuId;

#[cfg(feature = "serde")]
use crate::serial;

/// The findings of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Findings {
    /// The number of CPUs that joined since the start.
    pub joined: u64,
    /// The number of CPUs that left since the start.
    pub left: u64,
    /// The busiest CPU's load, divided by the lowest load that the buckets allow, when it was last
    /// measured.
    pub uneven: Option<f64>,
    /// The latest measurement of the time in which a cache line travels from the receiving CPU to
    /// the CPU that joined or is next. `None` if the distance did not matter.
    #[cfg_attr(feature = "serde", serde(rename = "apart_ns", with = "serial::nanoseconds"))]
    pub apart: Option<Duration>,
    /// The current regime: `inline`, `collector` or `spread`. Empty if the policy has no regimes.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub regime: Cow<'static, str>,
    /// The reason for the current regime: `start`, `predicted`, `measured`, `probe-failed` or
    /// `quiet`. Empty if the policy has no regimes.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub reason: Cow<'static, str>,
    /// The cost of each step per packet, as far as the policy has measured it.
    pub costs: Vec<CostEstimate>,
    /// The value of each regime. The first is the current regime.
    pub regimes: Vec<RegimeEstimate>,
    /// The buckets that nearly fill or overfill a CPU, with each bucket's share of a CPU, heaviest
    /// first. Reports show these buckets in [`GroupSnapshot::elephants`].
    #[cfg_attr(feature = "serde", serde(skip))]
    pub elephants: Vec<(u16, f64)>,
    /// The number of buckets that a dry run would move now.
    pub would_move: Option<usize>,
}

/// The cost of one step per packet, as a policy estimates it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct CostEstimate {
    /// The name of the step: `receive`, `hash` or `work`, or `give` and `take` for the two sides of
    /// a hand-over.
    pub step: Cow<'static, str>,
    /// The cost in nanoseconds per packet. The cost of `take` is negative if the other CPU is the
    /// faster one.
    #[cfg_attr(feature = "serde", serde(rename = "ns", with = "serial::tenths"))]
    pub nanos: f64,
    /// The standard deviation of the estimate.
    #[cfg_attr(feature = "serde", serde(rename = "deviation_ns", with = "serial::tenths"))]
    pub deviation: f64,
}

impl CostEstimate {
    /// Makes an estimate in nanoseconds per packet.
    pub fn new(step: impl Into<Cow<'static, str>>, nanos: f64, deviation: f64) -> Self {
        Self { step: step.into(), nanos, deviation }
    }
}

/// The value of a regime, as a policy estimates it.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct RegimeEstimate {
    /// The regime: `inline`, `collector` or `spread`.
    pub regime: Cow<'static, str>,
    /// The number of CPUs, including the CPUs that receive.
    pub cpus: usize,
    /// The throughput in packets per second, estimated from the costs per packet and from
    /// measurements.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub rate: f64,
    /// The standard deviation of the estimate.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub deviation: f64,
    /// The throughput in packets per second, estimated from the costs alone.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub predicted: f64,
}

impl RegimeEstimate {
    /// Makes an estimate in packets per second.
    pub fn new(regime: impl Into<Cow<'static, str>>, cpus: usize, rate: f64, deviation: f64, predicted: f64) -> Self {
        Self { regime: regime.into(), cpus, rate, deviation, predicted }
    }
}

/// The steering of one group.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The policy's name.
    pub policy: Cow<'static, str>,
    /// The receive queues of the group, numbered over all inputs.
    pub queues: Vec<usize>,
    /// The CPUs that have buckets, in the order in which they joined.
    #[cfg_attr(feature = "serde", serde(rename = "active_list", with = "serial::cpu_list"))]
    pub active: Vec<CpuId>,
    /// The buckets that nearly fill a CPU.
    pub elephants: Vec<Elephant>,
    /// The findings of the policy.
    pub findings: Findings,
}

impl GroupSnapshot {
    /// Makes the snapshot of a group with these queues, CPUs and findings.
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

/// A bucket that takes much of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Elephant {
    /// The number of the bucket.
    pub bucket: u16,
    /// The share of a CPU's time that the bucket takes.
    pub load: f64,
    /// The flow with most of the bucket's packets, in the direction of its sender. `None` if no
    /// flow stands out, or if too few packets were sampled. Serialized reports leave the flow out,
    /// because a person who may see the counts may not always see the traffic.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub flow: Option<FlowKey>,
}

impl Elephant {
    /// Makes an elephant from a bucket, its load and its flow.
    pub fn new(bucket: u16, load: f64, flow: Option<FlowKey>) -> Self {
        Self { bucket, load, flow }
    }
}
