//! Every constant of the policies, with its reason. All limits of the policies depend on 16
//! constants: [`REFINE_EVERY`], [`MIN_SAMPLES`], [`JOIN_AT_ONCE`] and the fields of [`Tuning`].

use std::time::Duration;

/// The interval between load checks: long enough to distinguish a busy CPU from an idle CPU, and so
/// short that the next CPU joins soon after a device's ring overflows.
pub const REFINE_EVERY: Duration = Duration::from_millis(10);

/// An estimate with fewer than eight samples is ignored, because it may be a random error. The
/// standard error of the mean of eight samples is about a third of their standard deviation.
pub(crate) const MIN_SAMPLES: u32 = 8;

/// For each receiving CPU, the number of CPUs that may join at the same time. On a virtual machine,
/// the receiving CPU needs 7 us to wake a CPU, and a CPU without packets sleeps again after 50 us
/// ([`IDLE_POLL`](steerage_core::limits::IDLE_POLL)). Half of these 50 us are for the wake-ups, and
/// half for the polls that give the woken CPUs their next packets. If more than three CPUs joined
/// at the same time, the first of them would sleep again, and the receiving CPU would spend all of
/// its time on wake-ups.
pub(crate) const JOIN_AT_ONCE: usize = 3;

/// The numbers on which `balance` depends, as fields that a test can change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// A decision is expected to hold for this time: the gain of a switch must pay for the switch
    /// within this time, and CPUs that have joined stay for at least this time. Hypervisors move
    /// the CPUs of virtual machines about once a second, and people perceive a second as immediate.
    pub(crate) dwell: Duration,
    /// The longest probe. After ten load checks, the error of the measured throughput is
    /// [`noise`](Self::noise) divided by three, and buckets that were placed by a guess have moved.
    pub(crate) probe: Duration,
    /// The share of time for probes, so small that users do not notice it.
    pub(crate) budget: f64,
    /// The growth of an estimate's relative deviation in the first second without a new sample.
    /// After this second, the deviation grows with the square root of time. A regime that was half
    /// as good as the current regime is tried again after a minute or two. A regime that was nearly
    /// as good is tried again after seconds. An estimate with a sample at each load check follows a
    /// change within a quarter of a second.
    pub(crate) drift: f64,
    /// The relative error of the model and of a measurement in one load check (3 to 7 % on a
    /// virtual machine). Buckets move only if the loads of CPUs differ by more than this error, or
    /// by more than a quarter of it while a CPU is saturated.
    pub(crate) noise: f64,
    /// With this many standard deviations, one decision in forty is wrong by chance.
    pub(crate) sure: f64,
    /// The planned load of CPUs. The rest of a CPU's time is for bursts shorter than a load check.
    pub(crate) fill: f64,
    /// While CPUs are short of time, the true load is unknown, and assumed to be the handled load
    /// multiplied by this factor, so that the number of CPUs grows in steps. CPUs leave only if the
    /// remaining CPUs have room for one more step of load growth, so that they need not join again
    /// at once.
    pub(crate) growth: f64,
    /// A CPU counts as short of time only if at least this share of its rounds is full (uses up its
    /// budget). A CPU that keeps up with its packets has few full rounds, even if small batches
    /// make it appear busy.
    pub(crate) full: f64,
    /// The assumed distance between two CPUs until it is measured: longer than between near CPUs
    /// (30 to 60 ns on the measured machines), and shorter than between far CPUs (120 to 220 ns).
    pub(crate) line: Duration,
    /// The assumed cost of handing a packet over, and of taking it over, as a share of the time
    /// that a cache line takes between the two CPUs. Measured hand-overs and cache lines: 10 ns and
    /// 60 ns for near CPUs, 25 to 30 ns and 200 ns for far CPUs.
    pub(crate) hand_over: f64,
    /// Distances within this factor count as equal. The distances of near and far CPUs differ by a
    /// factor of at least 2.
    pub(crate) same: f64,
    /// The weight of the latest measuring window in the mean load of a bucket. A window must last
    /// for this fraction of the time since CPUs joined or left, so that short first windows soon
    /// correct the first placement of buckets, which is a guess.
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

    /// The number of samples per CPU with which the error of the CPU's load is at most
    /// [`noise`](Self::noise).
    pub(crate) fn samples(&self) -> f64 {
        (self.sure / self.noise).powi(2)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest interval between load checks. While no packets arrive, the interval doubles up to
/// this value, so that an idle instance uses hardly any CPU time.
pub const REFINE_EVERY_MAX: Duration = Tuning::DEFAULT.dwell;

/// The time after which a thread should call the policy control again if another thread is running
/// it. A load check takes about 10 us, or 0.4 ms if it compares the loads of buckets.
pub const REFINE_RETRY: Duration = Duration::from_nanos(REFINE_EVERY.as_nanos() as u64 / MIN_SAMPLES as u64);
