//! Every limit of the policies, each with its reason.

use std::time::Duration;

/// The target of a balancing step, as a factor of the best busiest CPU that the buckets allow. It is below [`UNEVEN_FROM`], so
/// that the next step does not begin at once.
pub(crate) const PACK_WITHIN: f64 = 1.03;

/// Buckets move if the busiest CPU is above the best that the buckets allow by this factor. Loads are measured from samples, so
/// the difference must also be larger than random error explains.
pub(crate) const UNEVEN_FROM: f64 = 1.05;

/// Reduces [`PACK_WITHIN`] and [`UNEVEN_FROM`] if a CPU has no time left: only this part of what they allow above 1 counts then.
/// The excess of a saturated CPU is packets that are not handled. The excess of a CPU with idle time costs nothing.
pub(crate) const SHORT_OF_TIME: f64 = 0.5;

/// How often the policy reads the load. The interval is long enough to tell a busy CPU from an idle one, and short enough that a
/// device's ring does not overflow for long before the next CPU joins.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The longest interval between two looks. The interval doubles up to this while nothing is received, so that an idle instance hardly
/// takes CPU time. Load that begins after a pause is noticed within this time.
pub const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// A caller of the control that finds another caller at work should come again after this time. A look takes about 10 us, and 0.4 ms
/// if it compares buckets.
pub const LOOK_RETRY: Duration = Duration::from_millis(1);

/// The number of looks that an average covers, roughly. A CPU that was idle and is now saturated is recognised after two.
pub(crate) const LOOKS_AVERAGED: f64 = 2.0;

/// The minimum length of a window in which bucket loads are measured, as a divisor of the time since CPUs last joined or left.
/// Early windows are short because the first placement was a guess that should be corrected soon. The length is at least
/// [`WINDOW_FIRST`] and at most [`WINDOW_MIN`].
pub(crate) const WINDOW_PART: u32 = 4;

/// The shortest window. If packets are light, it contains enough samples.
pub(crate) const WINDOW_FIRST: Duration = Duration::from_millis(20);

/// The minimum length of a window once nothing has changed for some time. It is long enough to ignore another program that takes
/// one of the CPUs for a moment.
pub(crate) const WINDOW_MIN: Duration = Duration::from_millis(100);

/// The longest window. It ends here even if it has fewer than [`WINDOW_SAMPLES`] samples per CPU.
pub(crate) const WINDOW_MAX: Duration = Duration::from_secs(2);

/// The number of samples per CPU that keeps a window's random error at about 2 %.
pub(crate) const WINDOW_SAMPLES: u64 = 2000;

/// The weight of the last window in a bucket's load. After four windows, two thirds of the old value are forgotten.
pub(crate) const WINDOW_WEIGHT: f64 = 0.25;

/// The weight of the average work per packet in a bucket's time per packet, in packets. A single packet that took long is random
/// error.
pub(crate) const TIMED_PRIOR: f64 = 8.0;

/// Another CPU joins if the CPUs are busy for this share of their time on average. The rest is for bursts.
pub(crate) const JOIN_FROM: f64 = 0.85;

/// A CPU is short of time only if at least this share of its rounds is full, that is, finds as much work as one round takes. A CPU
/// that keeps up has fewer full rounds, even if small batches make it look busy.
pub(crate) const FULL_FROM: f64 = 0.25;

/// The load that a CPU that keeps up counts as at most, however busy it seems.
pub(crate) const KEEPS_UP: f64 = 0.6;

/// A CPU may leave if the remaining CPUs would be busy for less than this share of their time. The distance from [`JOIN_FROM`]
/// prevents the CPU from joining again at once.
pub(crate) const LEAVE_BELOW: f64 = 0.5;

/// How long the load must be below [`LEAVE_BELOW`] before a CPU leaves. The time doubles each time that a CPU left too soon.
pub(crate) const LEAVE_AFTER: Duration = Duration::from_secs(1);

/// The upper limit of [`LEAVE_AFTER`] after it has doubled. CPUs stay for load that comes and goes every few seconds.
pub(crate) const LEAVE_AFTER_MAX: Duration = Duration::from_secs(60);

/// The minimum length of a trial, in which a CPU that joined must show that it helps.
pub(crate) const TRIAL_TIME: Duration = Duration::from_millis(100);

/// The maximum length of a trial. Buckets may need this long to reach the CPUs that suit them best.
pub(crate) const TRIAL_TIME_MAX: Duration = Duration::from_millis(300);

/// The CPU that is on trial stays if the capacity of the group grows by this factor. The gain must be larger than the
/// difference between two measurements.
pub(crate) const TRIAL_GAIN: f64 = 1.03;

/// If the capacity changes by more than this part from one look to the next, the work itself has changed.
pub(crate) const CAPACITY_CHANGED: f64 = 0.2;

/// The shortest interval between two measurements of the same distance. A measurement takes about 20 us of each of the two CPUs,
/// and wakes the other one if it sleeps.
pub(crate) const DISTANCE_EVERY: Duration = Duration::from_millis(20);

/// A distance is measured again after the time for which it has been the same, divided by this number. So at most 1 % of the time
/// passes before a change is seen.
pub(crate) const DISTANCE_STEADY: u32 = 100;

/// The longest interval between two measurements of the same distance.
pub(crate) const DISTANCE_EVERY_MAX: Duration = Duration::from_secs(1);

/// The longest time for which two CPUs measure, and for which the answering CPU waits for the first question. The other CPU's round
/// takes about 10 us if work is so light that the distance matters.
pub(crate) const DISTANCE_TIME: Duration = Duration::from_micros(200);

/// How long the asking CPU goes on with its rounds until the other has come. A sleeping CPU takes 22 us to wake up, and a CPU of a
/// virtual machine sometimes takes several hundred.
pub(crate) const DISTANCE_PATIENCE: Duration = Duration::from_micros(500);

/// The number of round trips of a cache line in one sample. Reading the clock (25 ns) takes little time compared with them.
pub(crate) const DISTANCE_TRIPS: u32 = 8;

/// The number of samples. The shortest one counts.
pub(crate) const DISTANCE_SAMPLES: usize = 5;

/// Two distances count as the same if they differ by less than this factor. Near is 30 to 60 ns on the machines that we measured,
/// and far is 120 to 220 ns.
pub(crate) const DISTANCE_SAME: f64 = 1.7;

/// The number of CPUs that are measured in turn if no CPU is known to be near enough to join. Each of them is woken up for it.
pub(crate) const DISTANCE_CANDIDATES: usize = 8;

/// The number of distances for which trial results are remembered.
pub(crate) const DISTANCES_MAX: usize = 4;

/// The distance matters if the packet function takes at most this time per packet. Handing over costs at most 50 ns per packet more
/// if CPUs are far apart.
pub(crate) const DISTANCE_MATTERS: Duration = Duration::from_nanos(500);

/// The number of looks over which the capacity is averaged. It is measured for at least that long before a CPU joins on trial.
pub(crate) const CAPACITY_LOOKS: u32 = 8;

/// Like [`CAPACITY_LOOKS`], at the beginning, when no CPU has joined yet.
pub(crate) const CAPACITY_LOOKS_FIRST: u32 = 3;

/// Like [`TRIAL_GAIN`], if the capacity before the trial was measured over [`CAPACITY_LOOKS_FIRST`] looks only. A program that has
/// just started is slow, so whatever comes later seems to be an improvement. A gain between the two limits is measured again.
pub(crate) const TRIAL_GAIN_FIRST: f64 = 1.15;

/// A CPU is contended if other programs or guests take this share of its time. It joins after all CPUs that are not. If throughput
/// falls during its trial, that is not random: the CPU took time from the program that sends packets or waits for replies.
pub(crate) const CONTENDED_FROM: f64 = 0.3;

/// The loss at which a trial ends, or CPUs that have paid before leave. It is the lost throughput expressed as time in which
/// nothing would be done. Leaving and joining again costs about as much, so that a random loss does not cause a larger one.
pub(crate) const LOST_MAX: Duration = Duration::from_millis(50);

/// The time between a trial without a result and the next one. It doubles each time up to [`TRIAL_AGAIN`].
pub(crate) const TRIAL_UNDECIDED: Duration = Duration::from_secs(1);

/// The time after a trial that paid before the policy checks whether the throughput has fallen below that of the receiving CPUs
/// alone. It doubles each time up to [`TRIAL_AGAIN`].
pub(crate) const LOOK_BACK: Duration = Duration::from_millis(500);

/// How long a CPU that had work from the start keeps it before the policy tries without it.
pub(crate) const BEGUN_JOINED_FOR: Duration = Duration::from_secs(1);

/// The time between a trial that failed and the next one. It doubles each time up to [`TRIAL_AGAIN_MAX`].
pub(crate) const TRIAL_AGAIN: Duration = Duration::from_secs(10);

/// The upper limit of [`TRIAL_AGAIN`] after it has doubled.
pub(crate) const TRIAL_AGAIN_MAX: Duration = Duration::from_secs(600);

/// If the time per packet of the packet function grows by this factor after a trial failed, the next trial begins early.
pub(crate) const WORK_CHANGED: f64 = 1.3;

/// The time per packet must also have grown by this many nanoseconds. Handing over costs more than that, and shorter times are not
/// measured exactly enough.
pub(crate) const WORK_CHANGED_NANOS: f64 = 10.0;

/// A bucket is reported as an elephant if it takes this share of a CPU's time. Two such buckets fill a CPU.
pub(crate) const ELEPHANT_FROM: f64 = 0.5;

/// A CPU is saturated if it is busy for this share of its time. If it receives, its device may hold more packets for it, and nobody
/// knows how many.
pub(crate) const SATURATED_FROM: f64 = 0.97;

/// A bucket's flow is named if at least so many more packets of it than of other flows were seen.
pub(crate) const ELEPHANT_VOTES: u32 = 4;
