//! The limits of the receive path, each with its reason.

use std::time::Duration;

pub use steerage_ledger::limits::{DRAIN_LOOK, DRAIN_MAX, LEAVE_BEHIND_AFTER, OUTPUT_STUCK_AFTER};
use steerage_mem::supply::LPC_PAGES_PER_CPU;

/// The maximum number of frames that one poll of a receive queue returns: NAPI's weight.
pub const POLL_BUDGET: usize = 64;

/// The maximum number of packets that a CPU handles between two polls of its queues: Linux's
/// `netdev_budget`.
pub const ROUND_BUDGET: usize = 300;

/// The default number of entries in the flow limit's table, which counts packets by flow hash:
/// Linux's `flow_limit_table_len`, with the same default.
pub const FLOW_LIMIT_TABLE_LEN: usize = 4096;

/// The maximum number of entries in the flow limit's table.
pub const FLOW_LIMIT_TABLE_LEN_MAX: usize = 1 << 16;

/// The maximum number of frames that a CPU handles from one backlog at a time. Equal to
/// `POLL_BUDGET`, so that receiving and handling alternate evenly.
pub const HANDLE_BUDGET: usize = 64;

/// The maximum duration of a round, after which the round ends early: Linux's
/// `netdev_budget_usecs`.
pub const ROUND_TIME_MAX: Duration = Duration::from_millis(2);

/// While polls are full, the staged slots of a ring are published only when the ring has this many
/// staged slots. Four slots fill a cache line, so four cache lines move to the other CPU at a time.
pub const PUBLISH_AT: u64 = 16;

/// After this many full polls (at most 5 us), the staged slots of all rings are published.
pub const PUBLISH_POLLS: u32 = 8;

/// While a queue has frames to poll and room for them, it takes its finished lent frames back only
/// once in this many polls. A ring's finished index is in a cache line that another CPU writes, so
/// reading it often is slow. Eight polls receive up to 512 frames, which is half of a full backlog.
pub const RECLAIM_POLLS: usize = 8;

/// The number of buckets into which the flow hash is divided. With 4,096 buckets, 16 CPUs and Zipf
/// traffic, the load of the busiest CPU is at most 1.05 times the mean load. The table that assigns
/// CPUs to buckets has 8 KiB and stays in the first-level cache.
pub const BUCKETS: usize = 4096;

/// The number of bits by which a hash is shifted right to get its bucket, as by `reciprocal_scale`
/// in Linux.
pub const BUCKET_SHIFT: u32 = 32 - BUCKETS.ilog2();

/// A live queue whose device provides the memory waits at most this long for a CPU with a full
/// backlog. The kernel hands over whole blocks, whose frames arrive as fast as memory can be read.
/// A CPU needs time to catch up if it sleeps, or if another program runs on it for one or two time
/// slices; after this time, the CPU is overloaded.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// The interval at which steerage checks which CPUs the process may use. A check takes 40 us.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);

/// The interval at which a live queue that waits for a CPU checks for room. If packets need little
/// work, a CPU handles a large part of a backlog in 100 us.
pub const FULL_LOOK: Duration = Duration::from_micros(100);

/// The default maximum of frames that wait for one CPU: Linux's `netdev_max_backlog`.
pub const BACKLOG_DEFAULT: usize = 1000;

/// The largest value of `netdev_max_backlog`.
pub const BACKLOG_MAX: usize = steerage_mem::ring::RING_SLOTS_MAX;

/// The number of frames of moving buckets that a queue can store in its parking lot. A slice (a
/// sixteenth of the buckets) moves in about the time in which a CPU handles a full backlog. About a
/// sixteenth of the frames that arrive during the move belong to the slice.
pub const PARKING_LOT_SLOTS: usize = steerage_mem::supply::LOT_SLOTS;

/// The number of buckets that move at a time (a slice). The parking lot, in which frames of moving
/// buckets wait, has room for the frames of a slice.
pub const SLICE_BUCKETS: usize = BUCKETS / 16;

/// The CPU measures the time of a packet once in this number of batches, by handling the batch's
/// first packet separately. Reading the clock costs 25 ns, and handling one packet separately costs
/// about 20 ns.
pub const TIMED_ONCE_IN: u32 = 32;

/// A measured packet time is limited to this multiple of the average, because a longer time
/// includes other code.
pub const TIMED_MAX: u64 = 64;

/// The maximum number of flows that CPUs record before a policy collects them, a hundred times per
/// second. More recorded flows would not identify the largest flow better.
pub const FLOWS_SEEN_MAX: usize = 64;

/// Once in this number of rounds, a CPU measures the time that it spends receiving.
pub const RECEIVE_TIMED_ONCE_IN: u32 = 16;

/// The maximum time that a move waits for its fence: until the old CPU has finished the moving
/// buckets' earlier packets. After this time, steerage drops frames for the moving buckets
/// (`moving`), and orders the old CPU to discard its backlog (`revoked`).
pub const MOVE_WAIT: Duration = Duration::from_millis(20);

/// The maximum time that a released queue waits for its new CPU, before the old CPU takes it back:
/// shorter than [`MOVE_WAIT`], so that a move that begins meanwhile loses no packets.
pub const OFFER_WAIT: Duration = Duration::from_millis(10);

/// If a move waits for a CPU that makes no progress for this time, the CPU is declared dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);

/// The interval at which a CPU checks whether a move takes too long. A sleeping CPU wakes for this.
pub const MOVE_LOOK: Duration = Duration::from_micros(500);

/// The time for which an idle CPU polls before it sleeps. On a virtual machine, waking a CPU takes
/// 22 us, and costs 7 us of the CPU that wakes it. If a CPU has been idle for about twice the time
/// of a wake-up, sleeping is cheaper than polling.
pub const IDLE_POLL: Duration = Duration::from_micros(50);

/// The number of pages that a queue takes from the shared pool at once, so that a whole poll needs
/// only one atomic exchange.
pub const POOL_BULK: usize = POLL_BUDGET;

/// The default maximum number of packets of one queue that handlers keep at the same time.
pub const KEPT_DEFAULT: usize = 1024;

/// The maximum number of packets that the packet function of one CPU may originate at a time, each
/// of which needs a page: 64 answers to each of the 64 packets of a poll.
pub const ORIGINATED_MAX: usize = POLL_BUDGET * POLL_BUDGET;

pub use steerage_mem::fit::{HEADROOM, PAGE_BYTES_MIN, TAILROOM};

/// The interval at which a CPU that holds back packets checks whether a full output has room again.
/// The buffer of an output takes longer than 1 ms to become empty.
pub const OUTPUT_LOOK: Duration = Duration::from_millis(1);

/// The interval at which a program that waits for the end of a run checks whether a stop was
/// requested.
pub const JOIN_LOOK: Duration = Duration::from_millis(50);

/// The maximum number of CPUs of one instance. Each CPU needs a ring for each queue.
pub use steerage_topology::CPUS_MAX;

/// The maximum number of outputs of one instance: a packet's verdict stores the output in one byte.
pub const OUTPUTS_MAX: usize = 256;

/// The maximum number of receive queues of one instance.
pub const QUEUES_MAX: usize = 1024;

/// The default limit on the memory of packets and rings together, in bytes.
pub const MEMORY_MAX_DEFAULT: usize = 1 << 30;

/// The limits that can change while an instance runs:
/// see [`Handle::set_limits`](crate::control::Handle::set_limits).
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
    /// The maximum number of frames that wait for a CPU: `netdev_max_backlog`, at least 1. As in
    /// Linux, the frames of all live queues count together. The frames of a queue that can wait (a
    /// file) are counted separately. The backlog can grow to 16 times its first value, if the
    /// memory limit allows it.
    pub backlog: usize,
    /// The maximum number of frames per poll of a queue, per batch from a backlog, and per list
    /// handed to another CPU: `dev_weight`, from 1 to [`POLL_BUDGET`], which is the default.
    pub dev_weight: usize,
    /// The maximum number of packets that a CPU handles in a round before it polls its queues
    /// again: `netdev_budget`, at least 1. In every round, a CPU handles at least the frames of the
    /// queues that it polls (its lanes) and one batch of a backlog. The default is
    /// [`ROUND_BUDGET`].
    pub budget: usize,
    /// The maximum duration of a round, after which the CPU polls its queues again:
    /// `netdev_budget_usecs`. The default is [`ROUND_TIME_MAX`].
    pub budget_time: Duration,
    /// The number of entries in the table of each flow limit that is set later:
    /// `flow_limit_table_len`, rounded up to a power of two, up to [`FLOW_LIMIT_TABLE_LEN_MAX`].
    /// The default is [`FLOW_LIMIT_TABLE_LEN`].
    pub flow_limit_table_len: usize,
}

impl Limits {
    /// The default limits of all CPUs.
    pub const DEFAULT: Self = Self {
        backlog: BACKLOG_DEFAULT,
        dev_weight: POLL_BUDGET,
        budget: ROUND_BUDGET,
        budget_time: ROUND_TIME_MAX,
        flow_limit_table_len: FLOW_LIMIT_TABLE_LEN,
    };

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

/// The limits of one queue that can change while an instance runs:
/// see [`Handle::set_queue_limits`](crate::control::Handle::set_queue_limits).
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
    /// The number of pages in the queue's local page cache (as in the ENA driver), from 0 (off) to
    /// [`LPC_PAGES_MAX`](steerage_mem::supply::LPC_PAGES_MAX). The default is
    /// [`LpcMemory::default_pages`](steerage_mem::supply::LpcMemory::default_pages), or 0 for a
    /// device that provides blocks, with which only copied frames need pages.
    pub lpc_pages: usize,
    /// Frames of up to this many bytes are copied out of the device's page by
    /// [`Completions::rx_finish`], so that the page stays in the device's ring: ethtool's
    /// `rx-copybreak`. With the default, 0, no frame is copied. A queue for which copybreak [has no
    /// effect](crate::device::Capabilities::has_copybreak) accepts only 0.
    ///
    /// [`Completions::rx_finish`]: crate::completions::Completions::rx_finish
    pub copybreak: usize,
}

impl QueueLimits {
    /// The default limits of a queue.
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

/// The maximum time of a hook, a function that runs between two rounds of a CPU. Hooks hardly delay
/// packets, because a round may take ten times as long.
pub const BETWEEN_ROUNDS_MAX: Duration = Duration::from_micros(200);
