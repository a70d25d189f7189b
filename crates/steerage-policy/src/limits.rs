//! Every constant of the policies, with the reason for its value. There are 16 independent
//! constants: [`REFINE_EVERY`], [`MIN_SAMPLES`], [`JOIN_AT_ONCE`] and the fields of [`Tuning`]. All
//! other constants are derived from these 16 constants.

use std::time::Duration;

/// The interval at which the policy checks the load. The interval between load checks is long
/// enough to distinguish a busy CPU from an idle CPU. The interval is also so short that, after a
/// device's ring overflows, the next CPU joins soon.
pub const REFINE_EVERY: Duration = Duration::from_millis(10);

/// The minimum number of samples: an estimate with fewer samples is ignored. A single slow packet,
/// sampled flow or measured distance may be a random error. The standard error of the mean of eight
/// samples is about a third of the samples' standard deviation.
pub(crate) const MIN_SAMPLES: u32 = 8;

/// For each receiving CPU, the number of CPUs that may join at the same time. On a virtual machine,
/// the receiving CPU needs 7 us to wake another CPU. A CPU without packets sleeps again after 50 us
/// ([`IDLE_POLL`](steerage_core::limits::IDLE_POLL)). Half of the 50 us of `IDLE_POLL` are for the
/// wake-ups of all joining CPUs. The other half of the 50 us of `IDLE_POLL` is for the next polls
/// of the queue. These polls give the woken CPUs their next packets. If more CPUs joined at the
/// same time, the first of them would sleep again before it got its next packets. The receiving CPU
/// would then spend all of its time on wake-ups.
pub(crate) const JOIN_AT_ONCE: usize = 3;

/// The numbers on which the decisions of the policy `balance` depend. Each number is a field, so
/// that a test can change the number and show that it matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The dwell: the time for which a policy's decision is expected to hold. The gain of a switch
    /// must pay for the switch within the dwell time (the minimum time). CPUs that have joined stay
    /// for at least this time. Hypervisors move the CPUs of virtual machines about once a second,
    /// and people perceive a second as immediate.
    pub(crate) dwell: Duration,
    /// The longest probe. After ten load checks, the error of the measured throughput is
    /// [`noise`](Self::noise) divided by three. After ten load checks, buckets that were placed by
    /// a guess have moved to better CPUs.
    pub(crate) probe: Duration,
    /// The share of time that may be spent on probes (short trials of other ways of spreading
    /// packets). Users do not notice if this share of the time is lost.
    pub(crate) budget: f64,
    /// The growth of an estimate's relative deviation in the first second without a new sample. The
    /// deviation of an estimate grows with the square root of time. With this growth, a regime (way
    /// of spreading packets) that was half as good as the current regime is tried again after a
    /// minute or two. With this growth, a regime (way of spreading packets) that was nearly as good
    /// as the current regime is tried again after seconds. An estimate that gets a new sample at
    /// each load check follows a change of the true value within a quarter of a second.
    pub(crate) drift: f64,
    /// The relative error of a cost or a throughput that was measured in one load check. On a
    /// virtual machine, the measured throughput differed by 3 to 7 % between two load checks.
    /// `noise` is also the assumed error of the model, and the tolerated difference between the
    /// loads of CPUs.
    pub(crate) noise: f64,
    /// A difference of at least this number of standard deviations counts as certain. With this
    /// number of deviations, one decision in forty is wrong because of random error.
    pub(crate) sure: f64,
    /// The planned load of CPUs, as a share of their time. The CPU time beyond the planned load is
    /// for bursts that are shorter than the interval between load checks.
    pub(crate) fill: f64,
    /// While CPUs are short of time, the offered load is assumed to be the handled load multiplied
    /// by this factor. The true load of CPUs that are short of time is unknown, so the number of
    /// CPUs grows in steps. CPUs leave only if the remaining CPUs have room for one more increase
    /// of the load by this factor. Therefore a CPU that has left does not have to join again
    /// immediately.
    pub(crate) growth: f64,
    /// A CPU counts as short of time only if at least this share of its rounds (passes of its loop)
    /// is full. A round of a CPU's loop is full if the CPU finds at least as much work as it takes
    /// in one round. A CPU that keeps up with its packets has fewer full rounds, even if small
    /// batches make the CPU appear busy.
    pub(crate) full: f64,
    /// The distance between two CPUs that is assumed before it is measured. The assumed distance is
    /// between the distances of near CPUs (30 to 60 ns on the measured machines) and of far CPUs
    /// (120 to 220 ns).
    pub(crate) line: Duration,
    /// The cost of a hand-over is unknown before it is measured. For each of the two CPUs, it is
    /// assumed to be this share of the time that a cache line takes between them. For near CPUs, a
    /// hand-over cost 10 ns and a cache line took 60 ns. For far CPUs, a hand-over cost 25 to 30 ns
    /// and a cache line took 200 ns.
    pub(crate) hand_over: f64,
    /// Two distances between CPUs count as equal if they differ by less than this factor. The
    /// distances of near CPUs and of far CPUs differ by a factor of at least 2.
    pub(crate) same: f64,
    /// The load of a bucket is a weighted mean over several measuring periods (windows). The weight
    /// of the last measuring period (window) in the mean load of a bucket. After CPUs have joined
    /// or left, a measuring period must also last for this fraction of the time since then. The
    /// first placement of buckets is a guess, which should be corrected soon.
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

    /// The number of samples per CPU that a measuring period needs. With it, the error of a CPU's
    /// share of the load is certainly not larger than [`noise`](Self::noise).
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
/// to this value. Therefore an idle instance uses hardly any CPU time. After a pause of the
/// traffic, the policy detects new load within this longest interval.
pub const REFINE_EVERY_MAX: Duration = Tuning::DEFAULT.dwell;

/// If a thread cannot run the policy control because another thread is running it, the first thread
/// should call the control again after this time. A load check takes about 10 us. A load check that
/// compares buckets takes 0.4 ms.
pub const REFINE_RETRY: Duration = Duration::from_nanos(REFINE_EVERY.as_nanos() as u64 / MIN_SAMPLES as u64);
