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

/// The maximum number of frames that are handled from one backlog before the CPU goes on to the
/// next backlog. This maximum equals the poll budget. So a CPU that both receives and handles
/// packets gives both tasks the same number of packets at a time.
pub const HANDLE_BUDGET: usize = 64;

/// The maximum duration of a round. A round that takes longer ends early (`time_squeeze`): Linux's
/// `netdev_budget_usecs`.
pub const ROUND_TIME_MAX: Duration = Duration::from_millis(2);

/// While polls are full, a ring is published only after this many slots were staged on it. Four
/// slots fill a cache line, so four cache lines at a time cross to the other CPU.
pub const PUBLISH_AT: u64 = 16;

/// After this many full polls, all rings are published, even rings with few staged frames. At the
/// full rate of packets, this many polls take at most 5 us.
pub const PUBLISH_POLLS: u32 = 8;

/// While a queue still has frames to poll and room for them, its finished lent frames are taken
/// back only once in this many polls. The finished index is in a cache line that other CPUs write,
/// so reading it is expensive. Eight polls are 512 frames, which is half of a full backlog.
pub const RECLAIM_POLLS: usize = 8;

/// The number of buckets into which the flow hash is divided. With 16 CPUs, each CPU has 256
/// buckets. With so many buckets, the load of the busiest CPU is within 1.05 of the mean for Zipf
/// traffic. The table of buckets has 8 KiB and stays in the first-level cache.
pub const BUCKETS: usize = 4096;

/// The topmost 12 bits of the hash choose the bucket, as with `reciprocal_scale` in Linux.
pub const BUCKET_SHIFT: u32 = 32 - BUCKETS.ilog2();

/// The maximum time for which a live queue with memory of its own waits for a CPU if the CPU's
/// backlog is full. The kernel hands over whole blocks of such a queue, so frames arrive as fast as
/// memory can be read. A CPU needs some time to catch up if it sleeps, or if it runs another
/// program for a time slice or two. If a CPU still has no room after this time, it is overloaded.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// The interval at which the instance checks whether CPUs were taken from the process or given to
/// it. Each check takes 40 us.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);

/// The interval at which a live queue that waits for a CPU checks whether the CPU has room. If
/// packets need little work, a CPU handles a large part of a backlog within this interval.
pub const FULL_LOOK: Duration = Duration::from_micros(100);

/// The default of how many frames may wait for one CPU: Linux's `netdev_max_backlog` and its
/// default.
pub const BACKLOG_DEFAULT: usize = 1000;

/// The largest value of `netdev_max_backlog`.
pub const BACKLOG_MAX: usize = steerage_mem::ring::RING_SLOTS_MAX;

/// The number of frames of moving buckets that a queue can store in its parking lot. A slice is a
/// sixteenth of the buckets. A slice parks about a sixteenth of the frames that arrive while a CPU
/// handles a full backlog.
pub const PARKING_LOT_SLOTS: usize = steerage_mem::supply::LOT_SLOTS;

/// The number of buckets that move at a time. The frames of so few buckets fit in the parking lot.
pub const SLICE_BUCKETS: usize = BUCKETS / 16;

/// In one batch out of this many, the first packet is handled alone and timed. Reading the clock
/// costs 25 ns, and the additional batch costs about 20 ns.
pub const TIMED_ONCE_IN: u32 = 32;

/// The measured time of a packet is limited to this many times the average. If a packet took longer
/// than that, the CPU ran other code during the measurement.
pub const TIMED_MAX: u64 = 64;

/// The maximum number of flows that CPUs record before a policy collects them. A policy that reads
/// the instance a hundred times a second finds about this many flows each time. With more samples,
/// a flow would not be identified better.
pub const FLOWS_SEEN_MAX: usize = 64;

/// The time that a CPU spends receiving is measured in one round out of this many.
pub const RECEIVE_TIMED_ONCE_IN: u32 = 16;

/// The time for which a move waits for its fence before it discards packets. When the wait for the
/// fence is over, frames that arrive for the moving buckets are dropped (`moving`), and the old CPU
/// is ordered to discard its backlog (`revoked`).
pub const MOVE_WAIT: Duration = Duration::from_millis(20);

/// The time for which a released queue waits for its new CPU. When this wait is over, the old CPU
/// takes the queue back. The wait for the new CPU is shorter than [`MOVE_WAIT`], so that a move
/// that begins during the wait loses no packets.
pub const OFFER_WAIT: Duration = Duration::from_millis(10);

/// If a move waits for a CPU, the CPU is declared dead after this time without progress.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);

/// The interval at which a CPU checks whether a move in which it takes part takes too long. A
/// sleeping CPU wakes for this.
pub const MOVE_LOOK: Duration = Duration::from_micros(500);

/// The time for which an idle CPU continues to poll before it sleeps. On a virtual machine, waking
/// a halted CPU takes 22 us, of which the waking CPU is busy for 7 us. After about twice the time
/// of a wake-up, further polling costs more than sleeping.
pub const IDLE_POLL: Duration = Duration::from_micros(50);

/// The number of pages that are taken from the shared pool or returned to it at a time. With this
/// number, one atomic exchange supplies the pages for a whole poll.
pub const POOL_BULK: usize = POLL_BUDGET;

/// By default, how many packets of one queue handlers may keep at the same time.
pub const KEPT_DEFAULT: usize = 1024;

/// The maximum number of packets that one CPU's function may originate at a time. Each of them
/// needs a page. With this maximum, a function can answer each packet of a poll with as many
/// packets as a full poll has.
pub const ORIGINATED_MAX: usize = POLL_BUDGET * POLL_BUDGET;

pub use steerage_mem::fit::{HEADROOM, PAGE_BYTES_MIN, TAILROOM};

/// The interval at which a CPU checks whether a full output has room again. The CPU checks this as
/// long as it holds back packets of a queue that can wait. The output's buffer takes longer than
/// this interval to become empty.
pub const OUTPUT_LOOK: Duration = Duration::from_millis(1);

/// While a program waits for the end of a run, this is how often it checks whether a stop was
/// requested.
pub const JOIN_LOOK: Duration = Duration::from_millis(50);

/// The maximum number of CPUs of one instance. A map entry has 16 bits and could name more CPUs.
/// The number of CPUs is limited because each CPU needs a ring for each queue.
pub use steerage_topology::CPUS_MAX;

/// The maximum number of outputs of one instance. A verdict stores the output's number in one byte.
pub const OUTPUTS_MAX: usize = 256;

/// The maximum number of receive queues of one instance.
pub const QUEUES_MAX: usize = 1024;

/// The default limit on the memory of packets and rings together.
pub const MEMORY_MAX_DEFAULT: usize = 1 << 30;

/// The limits that can change while an instance runs: see
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
    /// The number of frames that may wait for a CPU: `netdev_max_backlog`. As in Linux, the limit
    /// applies to the frames of all live queues together. The limit also applies separately to each
    /// queue that can wait (a file). The limit is at least 1. If the memory limit allows it, the
    /// backlog can grow to 16 times the backlog with which the instance was built.
    pub backlog: usize,
    /// The number of frames that one poll takes from a queue, and how many frames of one backlog
    /// are handled before the next backlog: `dev_weight`. The weight also limits how many frames
    /// are handed to other CPUs in one list. From 1 to [`POLL_BUDGET`], which is the default.
    pub dev_weight: usize,
    /// The number of packets that a round handles before the queues are polled again:
    /// `netdev_budget`. The budget is at least 1. Even with the smallest budget, every round
    /// handles the frames in the CPU's own lanes and one more batch. The default is
    /// [`ROUND_BUDGET`].
    pub budget: usize,
    /// The maximum time for a round, after which the queues are polled again:
    /// `netdev_budget_usecs`. The default is [`ROUND_TIME_MAX`].
    pub budget_time: Duration,
    /// The size of the flow limit's table: `flow_limit_table_len`. A new size applies to flow
    /// limits that are switched on afterwards. The value is rounded up to a power of two, at most
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

    /// Reduces the limits to values that rings with `ring_slots` slots allow.
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

/// The limits of one queue that can change while an instance runs: see
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
    /// The number of pages that the queue keeps in its local cache: ENA's local page cache. The
    /// minimum is 0, which switches the cache off. The maximum is
    /// [`LPC_PAGES_MAX`](steerage_mem::supply::LPC_PAGES_MAX). The default is
    /// [`LpcMemory::default_pages`](steerage_mem::supply::LpcMemory::default_pages). By default, a
    /// queue whose device provides blocks has no cache, because only copied frames need pages.
    pub lpc_pages: usize,
    /// Frames of up to this many bytes are copied out of the device's page by
    /// [`Completions::rx_finish`], so that the page stays in the device's ring. ethtool calls this
    /// `rx-copybreak`. The default is 0, with which no frame is copied. A queue for which copybreak
    /// [has no effect](crate::device::Capabilities::has_copybreak) accepts only 0.
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

/// The maximum time for which a hook may run between two rounds of a CPU. The limit is a tenth of
/// the maximum duration of a round, so that hooks hardly delay packets.
pub const BETWEEN_ROUNDS_MAX: Duration = Duration::from_micros(200);
