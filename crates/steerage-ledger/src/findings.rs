//! The findings of policies: costs, regimes, and how each group is steered.

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
    /// CPUs that joined, so far.
    pub joined: u64,
    /// CPUs that left, so far.
    pub left: u64,
    /// The busiest CPU's load over the best that the buckets allow, when that was last measured.
    pub uneven: Option<f64>,
    /// How long a cache line takes from the CPU that receives to the CPU that joined or is next, by the last measurement. `None` if it
    /// did not matter.
    #[cfg_attr(feature = "serde", serde(rename = "apart_ns", with = "serial::nanoseconds"))]
    pub apart: Option<Duration>,
    /// The regime in force: `inline`, `collector` or `spread`. Empty if the policy knows no regimes.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub regime: Cow<'static, str>,
    /// Why it is in force: `start`, `predicted`, `measured`, `probe-failed` or `quiet`. Empty like `regime`.
    #[cfg_attr(feature = "serde", serde(with = "serial::name"))]
    pub reason: Cow<'static, str>,
    /// The cost of a packet, as far as the policy has found out.
    pub costs: Vec<CostEstimate>,
    /// The value of each regime. The one in force is the first.
    pub regimes: Vec<RegimeEstimate>,
    /// The buckets that nearly fill or overfill a CPU, with the share of a CPU that each takes. The heaviest is first. Reports have
    /// them in [`GroupSnapshot::elephants`].
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
    /// The step: `receive`, `hash` and `work`, and on both sides of a hand-over, `give` and `take`.
    pub step: Cow<'static, str>,
    /// The cost in nanoseconds per packet. That of `take` is negative if the other CPU is the faster one.
    #[cfg_attr(feature = "serde", serde(rename = "ns", with = "serial::tenths"))]
    pub nanos: f64,
    /// The standard deviation of the estimate.
    #[cfg_attr(feature = "serde", serde(rename = "deviation_ns", with = "serial::tenths"))]
    pub deviation: f64,
}

impl CostEstimate {
    /// An estimate, in nanoseconds per packet.
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
    /// The number of CPUs, those that receive among them.
    pub cpus: usize,
    /// The throughput in packets per second, by the costs of a packet and what was measured.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub rate: f64,
    /// The standard deviation of the estimate.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub deviation: f64,
    /// The throughput by the costs alone.
    #[cfg_attr(feature = "serde", serde(with = "serial::whole"))]
    pub predicted: f64,
}

impl RegimeEstimate {
    /// An estimate, in packets per second.
    pub fn new(regime: impl Into<Cow<'static, str>>, cpus: usize, rate: f64, deviation: f64, predicted: f64) -> Self {
        Self { regime: regime.into(), cpus, rate, deviation, predicted }
    }
}

/// How a steering group is steered.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The policy's name.
    pub policy: Cow<'static, str>,
    /// The receive queues in it, numbered over all inputs.
    pub queues: Vec<usize>,
    /// The CPUs that have buckets, in the order in which they joined.
    #[cfg_attr(feature = "serde", serde(rename = "active_list", with = "serial::cpu_list"))]
    pub active: Vec<CpuId>,
    /// The buckets that nearly fill a CPU, if there are any.
    pub elephants: Vec<Elephant>,
    /// The findings of the policy.
    pub findings: Findings,
}

impl GroupSnapshot {
    /// A group with these queues, CPUs and findings of its policy.
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
    /// The share of a CPU's time that it takes.
    pub load: f64,
    /// The flow that most of its packets belong to, in the direction of its sender. `None` if no flow stands out, or too few packets
    /// were sampled. It is no part of the written form: not everybody who may see the counts may see the traffic.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub flow: Option<FlowKey>,
}

impl Elephant {
    /// A bucket with this load.
    pub fn new(bucket: u16, load: f64, flow: Option<FlowKey>) -> Self {
        Self { bucket, load, flow }
    }
}
