//! Every constant of the policies, each with its reason. There are 16: [`REFINE_EVERY`],
//! [`MIN_SAMPLES`], [`JOIN_AT_ONCE`] and the fields of [`Tuning`]. All other constants derive from
//! these.

use std::time::Duration;

/// How often the policy checks the load. The interval is long enough to distinguish a busy CPU from
/// an idle CPU, and short enough that a device's ring does not overflow for long before the next
/// CPU joins.
pub const REFINE_EVERY: Duration = Duration::from_millis(10);

/// Ignore an estimate that has fewer samples. A single slow packet, sampled flow or measured
/// distance is random error, and the mean of eight is accurate to a third of a deviation.
pub(crate) const MIN_SAMPLES: u32 = 8;

/// The number of CPUs that may join at once for each CPU that receives. On a virtual machine,
/// waking a CPU takes the waking CPU 7 us, and a CPU without packets sleeps again after 50 us
/// ([`IDLE_POLL`](steerage_core::limits::IDLE_POLL)). Half of this time is for wake-ups, and the
/// other half for the polls after which a CPU gets its next packets. If more CPUs joined, the first
/// CPU would sleep again before its next packets, and the receiving CPU would do nothing but wake
/// CPUs.
pub(crate) const JOIN_AT_ONCE: usize = 3;

/// The numbers on which decisions depend, as fields, so that a test can show that each matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// How long a decision is expected to hold, and so how long CPUs stay at least: a gain must pay
    /// for the switch within this time. Hosts move the CPUs of virtual machines about once a
    /// second, and people perceive a second as immediate.
    pub(crate) dwell: Duration,
    /// The longest probe. Ten load checks determine the throughput to [`noise`](Self::noise)
    /// divided by three, and by then buckets that were placed by a guess have moved to better CPUs.
    pub(crate) probe: Duration,
    /// The share of time that may be spent on probes: a loss that users do not notice.
    pub(crate) budget: f64,
    /// How much the deviation of an estimate, relative to its mean, grows in the first second in
    /// which no new sample arrives. The deviation grows with the square root of time. A regime that
    /// was half as good is tried again after a minute or two, and a regime that was nearly as good
    /// after seconds. An estimate that is renewed at each load check follows within a quarter of a
    /// second.
    pub(crate) drift: f64,
    /// The relative error of a cost or a throughput in one load check. On a virtual machine,
    /// throughput was measured to differ by 3 to 7 % between two load checks. `noise` is also the
    /// assumed error of the model, and the tolerated difference between CPUs.
    pub(crate) noise: f64,
    /// How many standard deviations make a difference certain: one in forty such decisions is wrong
    /// because of random error.
    pub(crate) sure: f64,
    /// The planned busy share of a CPU's time. The rest is for bursts that are shorter than the
    /// interval of load checks.
    pub(crate) fill: f64,
    /// The load that is assumed while CPUs are short of time, as a factor of the load that they
    /// handle. The true load is unknown, so the number of CPUs grows by steps. CPUs leave only if
    /// the remaining CPUs have this much more room, so that they need not join again at once.
    pub(crate) growth: f64,
    /// The minimum share of full rounds of a CPU that is short of time. A round is full if it finds
    /// as much work as one round takes. A CPU that keeps up has fewer full rounds, even if small
    /// batches make it appear busy.
    pub(crate) full: f64,
    /// The assumed distance of CPUs until it is measured: between near (30 to 60 ns on the machines
    /// that we measured) and far (120 to 220 ns).
    pub(crate) line: Duration,
    /// The assumed cost of a hand-over for each side until it is measured, as a share of the time
    /// that a cache line takes. Near CPUs took 10 of 60 ns. Far CPUs took 25 to 30 of 200 ns.
    pub(crate) hand_over: f64,
    /// Two distances count as equal if they differ by less than this factor. Near and far differ by
    /// a factor of at least 2.
    pub(crate) same: f64,
    /// The weight of the last window in a bucket's load. A window must also cover this part of the
    /// time since CPUs joined or left, because the first placement is a guess that should be
    /// corrected soon.
    pub(crate) recent: f64,
}

impl Tuning {
    pub(crate) const DEFAULT: Self = Self {
        dwell: Duration::from_secs(1),
        probe: Duration::from_millis(100),
        budget: 0.01,
        drift: 0.05,
        noise: 0.05,
        sure: 2.0,
        fill: 0.85,
        growth: 1.25,
        full: 0.25,
        line: Duration::from_nanos(100),
        hand_over: 0.15,
        same: 1.7,
        recent: 0.25,
    };

    /// The number of samples that measures a CPU's share to within [`noise`](Self::noise) with
    /// certainty.
    pub(crate) fn samples(&self) -> f64 {
        (self.sure / self.noise).powi(2)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest interval between two load checks. While no packets arrive, the interval doubles up
/// to this value, so that an idle instance takes hardly any CPU time. The policy detects load after
/// a pause within this time.
pub const REFINE_EVERY_MAX: Duration = Tuning::DEFAULT.dwell;

/// A thread that finds another thread in the control should call again after this time. A load
/// check takes about 10 us, and 0.4 ms if it compares buckets.
pub const REFINE_RETRY: Duration = Duration::from_nanos(REFINE_EVERY.as_nanos() as u64 / MIN_SAMPLES as u64);
