//! The limits of the receive path, each with its reason.

use std::time::Duration;

pub use steerage_ledger::limits::{DRAIN_LOOK, DRAIN_MAX, LEAVE_BEHIND_AFTER, OUTPUT_STUCK_AFTER};
use steerage_mem::supply::LPC_PAGES_PER_CPU;

/// The maximum number of frames that one poll takes from a receive queue: NAPI's weight.
pub const POLL_BUDGET: usize = 64;

/// The maximum number of packets that one round handles before the queues are polled again: Linux's
/// `netdev_budget` and its default.
pub const ROUND_BUDGET: usize = 300;

/// The default size of the flow limit's table, in which flows are counted by hash: Linux's
/// `flow_limit_table_len` and its default.
pub const FLOW_LIMIT_TABLE_LEN: usize = 4096;

/// The largest size of the flow limit's table.
pub const FLOW_LIMIT_TABLE_LEN_MAX: usize = 1 << 16;

/// The maximum number of frames that are handled from one backlog before the next backlog is
/// served. The number equals the poll budget. So a CPU that both receives and handles
/// packets does not prefer one of these two tasks.
pub const HANDLE_BUDGET: usize = 64;

/// The maximum duration of a round before it ends early (`time_squeeze`): Linux's
/// `netdev_budget_usecs`.
pub const ROUND_TIME_MAX: Duration = Duration::from_millis(2);

/// How many slots are staged on a ring before they are published, while polls are full. Four slots
/// share a cache line, so four cache lines at a time cross to the other CPU.
pub const PUBLISH_AT: u64 = 16;

/// The number of full polls after which all rings are published, even rings with few staged frames.
/// This many full polls delay a frame by at most 5 us.
pub const PUBLISH_POLLS: u32 = 8;

/// While a queue has more frames to poll and room for them, the queue takes finished lent frames
/// back only once in this many polls. Other CPUs write the cache line with the finished index.
/// Eight polls are 512 frames, half of a full backlog.
pub const RECLAIM_POLLS: usize = 8;

/// The number of buckets into which the flow hash is divided. With 16 CPUs, each CPU has 256
/// buckets, which keeps the busiest CPU within 1.05 of the mean on Zipf traffic. The table's 8 KiB
/// stay in the first-level cache.
pub const BUCKETS: usize = 4096;

/// The topmost 12 bits of the hash choose the bucket, as with Linux's `reciprocal_scale`.
pub const BUCKET_SHIFT: u32 = 32 - BUCKETS.ilog2();

/// How long a live queue that has room of its own waits for a CPU whose backlog is full. The kernel
/// hands over a whole block of such a queue at a time, so frames arrive at the speed of memory. A
/// CPU that sleeps, or that runs another program for a time slice or two, needs some time to catch
/// up. A CPU that still has no room after this time is overloaded.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// How often the instance checks whether the process has lost or got CPUs. Each check takes 40 us.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);

/// How often a waiting live queue checks for room. If the work per packet is light, a CPU handles a
/// large part of a backlog within this time.
pub const FULL_LOOK: Duration = Duration::from_micros(100);

/// How many frames may wait for one CPU by default: Linux's `netdev_max_backlog` and its default.
pub const BACKLOG_DEFAULT: usize = 1000;

/// The largest value of `netdev_max_backlog`.
pub const BACKLOG_MAX: usize = steerage_mem::ring::RING_SLOTS_MAX;

/// How many frames of moving buckets a queue can park. A slice of a move has a sixteenth of the
/// buckets, so a slice parks about a sixteenth of the frames that arrive while a CPU handles a full
/// backlog.
pub const PARKING_LOT_SLOTS: usize = steerage_mem::supply::LOT_SLOTS;

/// How many buckets move at a time: so few that the frames of these buckets fit the parking lot.
pub const SLICE_BUCKETS: usize = BUCKETS / 16;

/// Once in this many batches, the first packet is handled alone and timed. Reading the clock costs
/// 25 ns, and the extra batch about 20 ns.
pub const TIMED_ONCE_IN: u32 = 32;

/// A timed packet counts for at most this many times the average. If a packet took longer, the CPU
/// ran something else during the measurement.
pub const TIMED_MAX: u64 = 64;

/// How many flows CPUs record for a policy until the policy collects them. A policy that reads the
/// instance a hundred times a second gets about as many between two readings. Sampling more packets
/// would not identify a flow better.
pub const FLOWS_SEEN_MAX: usize = 64;

/// The time spent receiving is measured in one round out of this many.
pub const RECEIVE_TIMED_ONCE_IN: u32 = 16;

/// How long a move waits for its fence. After that, frames that arrive for the moving buckets are
/// dropped (`moving`), and the old CPU is ordered to discard its backlog (`revoked`).
pub const MOVE_WAIT: Duration = Duration::from_millis(20);

/// How long a released queue waits for its new CPU. After that, the old CPU takes the queue back.
/// The wait is shorter than [`MOVE_WAIT`], so that a move that begins during the wait loses no
/// packets.
pub const OFFER_WAIT: Duration = Duration::from_millis(10);

/// How long a CPU may make no progress while a move waits for it, before it is declared dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);

/// How often a sleeping CPU wakes to check on a move in which it takes part.
pub const MOVE_LOOK: Duration = Duration::from_micros(500);

/// How long an idle CPU keeps polling before it sleeps. On a virtual machine, waking a halted CPU
/// costs the waking CPU 7 us and takes 22 us. After about twice that time, polling has cost as much
/// as sleeping.
pub const IDLE_POLL: Duration = Duration::from_micros(50);

/// How many pages are taken from or returned to the shared pool at a time, so that one atomic
/// exchange serves a whole poll.
pub const POOL_BULK: usize = POLL_BUDGET;

/// The default for how many packets of one queue handlers may keep at a time.
pub const KEPT_DEFAULT: usize = 1024;

/// The maximum number of packets that one CPU's function may originate at a time, each in its own
/// page. With this limit, a function can answer each packet of a poll with as many packets as a
/// poll has.
pub const ORIGINATED_MAX: usize = POLL_BUDGET * POLL_BUDGET;

pub use steerage_mem::fit::{HEADROOM, PAGE_BYTES_MIN, TAILROOM};

/// How often a CPU checks whether a full output has room again, while it holds back packets of a
/// source that can wait. The output's buffer lasts longer than this interval.
pub const OUTPUT_LOOK: Duration = Duration::from_millis(1);

/// How often a join checks for a requested stop.
pub const JOIN_LOOK: Duration = Duration::from_millis(50);

/// The maximum number of CPUs of one instance. A map entry has 16 bits and could name more CPUs,
/// but each CPU costs a ring for each queue.
pub use steerage_topology::CPUS_MAX;

/// The maximum number of outputs of one instance: a verdict names its output by one byte.
pub const OUTPUTS_MAX: usize = 256;

/// The maximum number of receive queues of one instance.
pub const QUEUES_MAX: usize = 1024;

/// The default cap on the memory of packets and rings together.
pub const MEMORY_MAX_DEFAULT: usize = 1 << 30;

/// The limits that can be changed while an instance runs: see
/// [`Handle::set_limits`](crate::control::Handle::set_limits).
///
/// ```
/// # mod steerage { pub use steerage_core::control::Handle; }
/// use steerage::Handle;
///
/// /// Halves the backlog of every CPU. Returns the backlog that is in force now.
/// fn halve(handle: &Handle) -> usize {
///     handle.set_limits(|limits| limits.backlog /= 2).backlog
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many frames may wait for a CPU: `netdev_max_backlog`. As in Linux, the limit holds for
    /// the frames of all live queues together. The limit also holds separately for each queue that
    /// can wait (a file). The limit is at least 1. If there is memory under the cap, the limit is
    /// at most 16 times the backlog with which the instance was built.
    pub backlog: usize,
    /// How many frames one poll takes from a queue, and how many frames are handled from one
    /// backlog before the next backlog is served: `dev_weight`. The weight also limits the length
    /// of the lists that are handed to other CPUs. From 1 to [`POLL_BUDGET`], which is the default.
    pub dev_weight: usize,
    /// How many packets a round handles before the queues are polled again: `netdev_budget`. The
    /// budget is at least 1. However small the budget is, every round handles the CPU's own share
    /// and one more list. The default is [`ROUND_BUDGET`].
    pub budget: usize,
    /// How long a round may take before the queues are polled again: `netdev_budget_usecs`. The
    /// default is [`ROUND_TIME_MAX`].
    pub budget_time: Duration,
    /// The size of the flow limit's table: `flow_limit_table_len`. A change applies to flow limits
    /// that are switched on after it. The value is rounded up to a power of two, at most
    /// [`FLOW_LIMIT_TABLE_LEN_MAX`]. The default is [`FLOW_LIMIT_TABLE_LEN`].
    pub flow_limit_table_len: usize,
}

impl Limits {
    /// All defaults.
    pub const DEFAULT: Self = Self {
        backlog: BACKLOG_DEFAULT,
        dev_weight: POLL_BUDGET,
        budget: ROUND_BUDGET,
        budget_time: ROUND_TIME_MAX,
        flow_limit_table_len: FLOW_LIMIT_TABLE_LEN,
    };

    /// The limits, reduced to the values that rings with `ring_slots` slots allow.
    pub(crate) fn clamped(self, ring_slots: usize) -> Self {
        Self {
            backlog: self.backlog.clamp(1, ring_slots),
            dev_weight: self.dev_weight.clamp(1, POLL_BUDGET),
            budget: self.budget.max(1),
            budget_time: self.budget_time,
            flow_limit_table_len: self.flow_limit_table_len.min(FLOW_LIMIT_TABLE_LEN_MAX).next_power_of_two(),
        }
    }
}

/// The limits of one queue that can be changed while an instance runs: see
/// [`Handle::set_queue_limits`](crate::control::Handle::set_queue_limits).
///
/// ```
/// # mod steerage { pub use steerage_core::{control::Handle, error::SetError}; }
/// use steerage::{Handle, SetError};
///
/// /// Copies the short frames of receive queue 0 out of the device's pages.
/// fn copy_short(handle: &Handle) -> Result<(), SetError> {
///     handle.set_queue_limits(0, |limits| limits.copybreak = 256)?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// How many pages the queue keeps in its local cache: ENA's local page cache. From 0, which
    /// switches the cache off, to [`LPC_PAGES_MAX`](steerage_mem::supply::LPC_PAGES_MAX). The
    /// default is [`LpcMemory::default_pages`](steerage_mem::supply::LpcMemory::default_pages). A
    /// queue whose device provides blocks has no cache by default, since only frames that are
    /// copied need pages.
    pub lpc_pages: usize,
    /// Frames of up to this many bytes are copied out of the device's page by
    /// [`Completions::rx_finish`], so that the page stays in the device's ring: ethtool's
    /// `rx-copybreak`. The default is 0, which copies no frame. A queue that
    /// [has no such pages](crate::device::Capabilities::has_copybreak) accepts only 0.
    ///
    /// [`Completions::rx_finish`]: crate::completions::Completions::rx_finish
    pub copybreak: usize,
}

impl QueueLimits {
    /// All defaults.
    pub const DEFAULT: Self = Self { lpc_pages: LPC_PAGES_PER_CPU, copybreak: 0 };
}

const _: () = {
    assert!(POLL_BUDGET == HANDLE_BUDGET);
    assert!(FLOW_LIMIT_TABLE_LEN_MAX <= u16::MAX as usize + 1);
    assert!(BUCKETS.is_power_of_two() && BUCKETS == 1 << (32 - BUCKET_SHIFT));
    assert!(PUBLISH_AT as usize <= POLL_BUDGET);
    assert!(PARKING_LOT_SLOTS >= 2 * POLL_BUDGET);
    assert!(BACKLOG_DEFAULT <= BACKLOG_MAX);
};

/// How long a hook may run between two rounds of a CPU. The limit is a tenth of a round's maximum
/// time, so that hooks hardly delay packets.
pub const BETWEEN_ROUNDS_MAX: Duration = Duration::from_micros(200);
