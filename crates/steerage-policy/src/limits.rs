//! Every constant of the policies, with the reason for its value. There are 16 independent
//! constants: [`REFINE_EVERY`], [`MIN_SAMPLES`], [`JOIN_AT_ONCE`] and the fields of [`Tuning`]. All
//! other constants follow from these.

use std::time::Duration;

/// The interval at which the policy checks the load. The interval is long enough to distinguish a
/// busy CPU from an idle CPU. The interval is also short enough: a device's ring does not overflow
/// for long before the next CPU joins.
pub const REFINE_EVERY: Duration = Duration::from_millis(10);

/// An estimate with fewer samples is ignored. A single slow packet, sampled flow or measured
/// distance may be a random error. The error of the mean of eight samples is about a third of their
/// standard deviation.
pub(crate) const MIN_SAMPLES: u32 = 8;

/// The number of CPUs that may join at once, for each CPU that receives. On a virtual machine,
/// waking a CPU takes the waking CPU 7 us. A CPU without packets sleeps again after 50 us
/// ([`IDLE_POLL`](steerage_core::limits::IDLE_POLL)). Half of the 50 us before a CPU sleeps are for
/// wake-ups. The other half of the 50 us is for the polls after which a woken CPU gets its next
/// packets. If more CPUs joined at once, the first of them would sleep again before its next
/// packets, and the receiving CPU would do nothing but wake CPUs.
pub(crate) const JOIN_AT_ONCE: usize = 3;

/// The numbers on which decisions depend. Each number is a field, so that a test can change it and
/// show that it matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The dwell: how long a decision is expected to hold. A gain must pay for the switch within
    /// this time, and CPUs stay at least this long. Hosts move the CPUs of virtual machines about
    /// once a second, and people perceive a second as immediate.
    pub(crate) dwell: Duration,
    /// The longest probe. In ten load checks, the throughput is measured to [`noise`](Self::noise)
    /// divided by three. After ten load checks, buckets that were placed by a guess have moved to
    /// better CPUs.
    pub(crate) probe: Duration,
    /// The share of time that may be spent on probes. Users do not notice a loss of this share.
    pub(crate) budget: f64,
    /// The growth of an estimate's relative deviation in the first second without a new sample. The
    /// deviation of an estimate grows with the square root of time. A regime that was half as good
    /// is tried again after a minute or two. A regime that was nearly as good is tried again after
    /// seconds. An estimate that gets a new sample at each load check follows a change within a
    /// quarter of a second.
    pub(crate) drift: f64,
    /// The relative error of a cost or a throughput that was measured in one load check. On a
    /// virtual machine, the measured throughput differed by 3 to 7 % between two load checks.
    /// `noise` is also the assumed error of the model, and the tolerated difference between CPUs.
    pub(crate) noise: f64,
    /// The number of standard deviations from which on a difference counts as certain. With this
    /// number of deviations, one decision in forty is wrong because of random error.
    pub(crate) sure: f64,
    /// The planned load of CPUs, as a share of their time. The rest of the CPUs' time is for bursts
    /// that are shorter than the interval between load checks.
    pub(crate) fill: f64,
    /// While CPUs are short of time, the load is assumed to be this many times the load that they
    /// handle. The true load is unknown in this case, so the number of CPUs grows in steps. CPUs
    /// leave only if the remaining CPUs have room for this factor once more. So no CPU has to join
    /// again immediately.
    pub(crate) growth: f64,
    /// A CPU counts as short of time only if at least this share of its rounds is full. A round is
    /// full if it finds at least as much work as one round takes. A CPU that keeps up has fewer
    /// full rounds, even if small batches make it appear busy.
    pub(crate) full: f64,
    /// The distance that is assumed for CPUs before it is measured. The assumed distance is between
    /// near (30 to 60 ns on the machines that we measured) and far (120 to 220 ns).
    pub(crate) line: Duration,
    /// Before a hand-over is measured, its cost for each side is assumed to be this share of the
    /// time that a cache line takes. For near CPUs, a hand-over cost 10 ns and a cache line took 60
    /// ns. For far CPUs, a hand-over cost 25 to 30 ns and a cache line took 200 ns.
    pub(crate) hand_over: f64,
    /// Two distances count as equal if they differ by less than this factor. The near distance and
    /// the far distance differ by a factor of at least 2.
    pub(crate) same: f64,
    /// The weight of the last window when the load of a bucket is computed. After CPUs have joined
    /// or left, a window must also cover this fraction of the time since then. The first placement
    /// is a guess, which should be corrected soon.
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

    /// With this many samples, a CPU's share is known to within [`noise`](Self::noise) with
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
/// to this value. So an idle instance takes hardly any CPU time. After a pause, the policy detects
/// load within this time.
pub const REFINE_EVERY_MAX: Duration = Tuning::DEFAULT.dwell;

/// If a thread finds that another thread is running the control, it should call again after this
/// time. A load check takes about 10 us. If it compares buckets, it takes 0.4 ms.
pub const REFINE_RETRY: Duration = Duration::from_nanos(REFINE_EVERY.as_nanos() as u64 / MIN_SAMPLES as u64);
