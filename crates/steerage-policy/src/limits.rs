//! Every constant of the policies, each with its reason. There are 15: [`REFINE_EVERY`], [`MIN_SAMPLES`] and the fields of [`Tuning`].
//! Everything else derives from them.

use std::time::Duration;

/// How often the policy reads the load. The interval is long enough to distinguish a busy CPU from an idle
/// one, and short enough that a device's ring does not overflow for long before the next CPU joins.
pub const REFINE_EVERY: Duration = Duration::from_millis(10);

/// Ignore an estimate that has fewer samples. One packet that took long, one sampled flow or one measurement of a distance is
/// random error, and a mean of eight is good to a third of a deviation.
pub(crate) const MIN_SAMPLES: u32 = 8;

/// The numbers that decisions depend on. They are fields, so that a test can show that each of them matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// How long a decision is expected to hold, and so how long CPUs stay at least: a gain has to pay for the switch within this
    /// time. Hosts move the CPUs of virtual machines about once a second, and people see a second as at once.
    pub(crate) dwell: Duration,
    /// The longest probe. Ten looks determine the throughput to [`noise`](Self::noise) divided by three, and buckets that were
    /// placed by a guess have found better CPUs by then.
    pub(crate) probe: Duration,
    /// The share of time that may be spent on probes: a loss that nobody notices.
    pub(crate) budget: f64,
    /// By how much an estimate that is not renewed becomes less certain in a second, relative to its mean.
    /// The deviation grows with the square root of time. A regime that was half as good is tried again after
    /// a minute or two, and a regime that was nearly as good after seconds. An estimate that is renewed at
    /// each look follows within a quarter of a second.
    pub(crate) drift: f64,
    /// The relative error of one look at a cost or a throughput. Measured: throughput differs by 3 to 7 % from one look to the next
    /// on a virtual machine. Also how far the model itself is trusted, and how uneven CPUs may be.
    pub(crate) noise: f64,
    /// How many standard deviations make a difference certain: one in forty such decisions is wrong because of random error.
    pub(crate) sure: f64,
    /// The share of their time that CPUs are planned to be busy for. The rest is for bursts that are shorter than a look.
    pub(crate) fill: f64,
    /// The load that is assumed while CPUs are short of time, as a factor of the load that they handle. The
    /// true load is unknown, so the number of CPUs grows by steps. CPUs leave only if the others have so much
    /// more room, so that they need not come back at once.
    pub(crate) growth: f64,
    /// The share of rounds that find as much work as one round takes, from which on a CPU can be short of time. A CPU that keeps up
    /// has fewer full rounds, even if small batches make it look busy.
    pub(crate) full: f64,
    /// The distance that is assumed for CPUs until it is measured. It is between near (30 to 60 ns on the machines that we measured)
    /// and far (120 to 220 ns).
    pub(crate) line: Duration,
    /// The cost of a hand-over that is assumed for each side until it is measured, as a share of the time
    /// that a cache line takes. Near CPUs took 10 of 60 ns. Far CPUs took 25 to 30 of 200 ns.
    pub(crate) hand_over: f64,
    /// Two distances count as the same if they differ by less than this factor. Near and far differ by a factor of 2 at least.
    pub(crate) same: f64,
    /// The weight of the last window in a bucket's load. Also the part of the time since CPUs joined or left
    /// that a window has to cover. The first placement is a guess, which should be corrected soon.
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

    /// The number of samples that measures a CPU's share to within [`noise`](Self::noise) with certainty.
    pub(crate) fn samples(&self) -> f64 {
        (self.sure / self.noise).powi(2)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest interval between two looks. The interval doubles up to this while nothing is received, so that an idle instance hardly
/// takes CPU time. Load that begins after a pause is noticed within this time.
pub const REFINE_EVERY_MAX: Duration = Tuning::DEFAULT.dwell;

/// A caller of the control that finds another caller at work should come again after this time. A look takes about 10 us, and 0.4 ms
/// if it compares buckets.
pub const REFINE_RETRY: Duration = Duration::from_nanos(REFINE_EVERY.as_nanos() as u64 / MIN_SAMPLES as u64);
