//! The limits of the receive path, each with its reason.

use std::time::Duration;

pub use steerage_ledger::limits::{DRAIN_LOOK, DRAIN_MAX, LEAVE_BEHIND_AFTER, OUTPUT_STUCK_AFTER};
use steerage_mem::supply::LPC_PAGES_PER_CPU;

/// The maximum number of frames that one poll of a receive queue returns: NAPI's weight.
pub const POLL_BUDGET: usize = 64;

/// The maximum number of packets that a CPU handles in one round (pass of its loop) before it polls
/// its queues again. This limit is Linux's `netdev_budget`, with the same default.
pub const ROUND_BUDGET: usize = 300;

/// The default number of entries in the flow limit's table, which counts packets by flow hash. This
/// number is Linux's `flow_limit_table_len`, with the same default.
pub const FLOW_LIMIT_TABLE_LEN: usize = 4096;

/// The maximum number of entries in the flow limit's table.
pub const FLOW_LIMIT_TABLE_LEN_MAX: usize = 1 << 16;

/// The maximum number of frames that a CPU handles from one backlog before it handles the next
/// backlog. `HANDLE_BUDGET` equals `POLL_BUDGET`, the maximum number of frames in one poll.
/// Therefore a CPU that both receives and handles packets alternates between equal numbers of
/// packets for both tasks.
pub const HANDLE_BUDGET: usize = 64;

/// The maximum duration of a round (one pass of a CPU's loop). A round that takes longer than this
/// maximum ends early (`time_squeeze`): Linux's `netdev_budget_usecs`.
pub const ROUND_TIME_MAX: Duration = Duration::from_millis(2);

/// While polls return the maximum number of frames, a ring's staged slots (entries that the other
/// CPU cannot see yet) are published only when there are this many of them. Four slots fill a cache
/// line, so 16 slots transfer four cache lines to the other CPU at a time.
pub const PUBLISH_AT: u64 = 16;

/// After this many polls with the maximum number of frames, the staged slots of all rings are
/// published, even of rings with few staged slots. At the maximum packet rate, eight polls take at
/// most 5 us.
pub const PUBLISH_POLLS: u32 = 8;

/// While a queue still has frames to poll and room for them, it reclaims its finished lent frames
/// (in memory of the device) only once in this many polls. To reclaim frames, the queue reads the
/// finished index of a ring. All slots before a ring's finished index were handled. The finished
/// index of a ring is in a cache line that other CPUs write, so reading the index is expensive.
/// Eight polls return up to 512 frames, which is half of a full backlog.
pub const RECLAIM_POLLS: usize = 8;

/// The number of buckets into which the flow hash is divided. With 16 CPUs, each CPU has 256
/// buckets. With 4,096 buckets and Zipf traffic, the load of the busiest CPU is at most 1.05 times
/// the mean load. The table that assigns CPUs to buckets has 8 KiB and stays in the first-level
/// cache.
pub const BUCKETS: usize = 4096;

/// The number of low bits that are removed from the hash. The upper 12 bits choose the bucket, as
/// with `reciprocal_scale` in Linux.
pub const BUCKET_SHIFT: u32 = 32 - BUCKETS.ilog2();

/// If a CPU's backlog is full, a live queue whose device provides the memory waits at most this
/// long for the CPU. For a live queue whose device provides the memory, the kernel hands over whole
/// blocks of frames, so frames arrive as fast as memory can be read. A CPU needs some time to catch
/// up if it sleeps, or if another program runs on it for one or two time slices. If a CPU's backlog
/// still has no room after the maximum waiting time, the CPU is overloaded.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// The interval at which the instance checks whether the set of CPUs that the process may use has
/// changed. Each check takes 40 us.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);

/// The interval at which a live queue that waits for a CPU checks whether the CPU has room. If
/// packets need little work, a CPU handles a large part of a backlog within this interval.
pub const FULL_LOOK: Duration = Duration::from_micros(100);

/// The default maximum number of frames that wait for one CPU. This limit is Linux's
/// `netdev_max_backlog`, with the same default.
pub const BACKLOG_DEFAULT: usize = 1000;

/// The largest value of `netdev_max_backlog`.
pub const BACKLOG_MAX: usize = steerage_mem::ring::RING_SLOTS_MAX;

/// The number of frames of moving buckets that a queue can store in its parking lot. Buckets move
/// in slices, and a slice is a sixteenth of the buckets. A slice (a sixteenth of the buckets) moves
/// in about the time in which a CPU handles a full backlog. The parking lot gets about a sixteenth
/// of the frames that arrive in this time.
pub const PARKING_LOT_SLOTS: usize = steerage_mem::supply::LOT_SLOTS;

/// The number of buckets that move at a time. The parking lot has room for the frames of a
/// sixteenth of the buckets.
pub const SLICE_BUCKETS: usize = BUCKETS / 16;

/// In one of this many batches, the CPU handles the first packet separately, and measures how long
/// handling takes. For such a measurement, reading the clock costs 25 ns, and handling the packet
/// as a separate batch costs about 20 ns.
pub const TIMED_ONCE_IN: u32 = 32;

/// If the measured time of a packet is more than this many times the average, the measured time is
/// reduced to this limit. If the measured time exceeds this limit, the CPU ran other code during
/// the measurement.
pub const TIMED_MAX: u64 = 64;

/// The maximum number of flows that CPUs record before a policy collects them. A policy that
/// collects the flows a hundred times per second finds about this many flows each time. With more
/// recorded flows, a policy would not identify the largest flow better.
pub const FLOWS_SEEN_MAX: usize = 64;

/// In one of this many rounds (passes of its loop), a CPU measures the time that it spends
/// receiving.
pub const RECEIVE_TIMED_ONCE_IN: u32 = 16;

/// The maximum time that a move waits for its fence (a marked position in the ring), that is, until
/// the old CPU has finished the moving buckets' earlier packets. If the move has waited this long,
/// steerage drops frames that arrive for the moving buckets (counted as `moving`), and orders the
/// old CPU to discard its backlog (counted as `revoked`).
pub const MOVE_WAIT: Duration = Duration::from_millis(20);

/// When the old CPU of a queue has released the queue, the queue waits at most this long for its
/// new CPU. If the new CPU has not taken the queue within this time, the old CPU takes the queue
/// back. A queue's maximum wait for its new CPU is shorter than [`MOVE_WAIT`], so that a move of
/// buckets that begins during the wait loses no packets.
pub const OFFER_WAIT: Duration = Duration::from_millis(10);

/// If a move waits for a CPU that makes no progress for this time, the CPU is declared dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);

/// The interval at which a CPU checks whether a move of its buckets takes too long. A sleeping CPU
/// wakes for this.
pub const MOVE_LOOK: Duration = Duration::from_micros(500);

/// The time for which an idle CPU continues to poll before it sleeps. On a virtual machine, waking
/// a halted CPU takes 22 us. The CPU that wakes the halted CPU is busy for 7 us of the 22 us. If a
/// CPU has polled for about twice the time that a wake-up takes, further polling costs more than
/// sleeping.
pub const IDLE_POLL: Duration = Duration::from_micros(50);

/// The number of pages that a queue takes from the shared pool, or returns to the pool, at a time.
/// With this number of pages, one atomic exchange supplies the pages for a whole poll.
pub const POOL_BULK: usize = POLL_BUDGET;

/// The default maximum number of packets of one queue that handlers keep at the same time.
pub const KEPT_DEFAULT: usize = 1024;

/// The maximum number of packets that the packet function of one CPU may originate at a time. Each
/// of them needs a page. The maximum is 64 times 64, so a function can answer each of the 64
/// packets of a poll with 64 packets.
pub const ORIGINATED_MAX: usize = POLL_BUDGET * POLL_BUDGET;

pub use steerage_mem::fit::{HEADROOM, PAGE_BYTES_MIN, TAILROOM};

/// The interval at which a CPU checks whether a full output has room again. A CPU checks a full
/// output as long as it holds back packets of a queue that can wait. The buffer of an output needs
/// longer than this interval to become empty.
pub const OUTPUT_LOOK: Duration = Duration::from_millis(1);

/// The interval at which a program that waits for the end of a run checks whether a stop was
/// requested.
pub const JOIN_LOOK: Duration = Duration::from_millis(50);

/// The maximum number of CPUs of one instance. An entry of the bucket table has 16 bits, which is
/// enough for more CPUs than this maximum. The number of CPUs is limited because each CPU needs a
/// ring for each queue.
pub use steerage_topology::CPUS_MAX;

/// The maximum number of outputs of one instance. A packet's verdict stores the number of the
/// output in one byte.
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
    /// The maximum number of frames that wait for a CPU: `netdev_max_backlog`. As in Linux, the
    /// limit applies to the frames of all live queues together. For a queue that can wait (a file),
    /// the limit applies to the frames of this queue alone. The limit is at least 1. If the memory
    /// limit allows it, the limit on waiting frames can grow to 16 times the value with which the
    /// instance was built.
    pub backlog: usize,
    /// The maximum number of frames that one poll of a queue returns, and that a CPU handles from
    /// one backlog before the next backlog: `dev_weight`. The weight `dev_weight` also limits the
    /// number of frames that a CPU hands to another CPU in one list. The value of `dev_weight` is
    /// from 1 to [`POLL_BUDGET`], which is the default.
    pub dev_weight: usize,
    /// The maximum number of packets that a CPU handles in a round (a pass of its loop) before it
    /// polls its queues again: `netdev_budget`. The budget is at least 1. Even with the smallest
    /// budget, a CPU handles in every round the frames of the queues that it polls itself (its
    /// lanes) and one more batch. The default is [`ROUND_BUDGET`].
    pub budget: usize,
    /// The maximum duration of a round (a pass of a CPU's loop), after which the CPU polls its
    /// queues again: `netdev_budget_usecs`. The default is [`ROUND_TIME_MAX`].
    pub budget_time: Duration,
    /// The number of entries in the flow limit's table: `flow_limit_table_len`. A new table size
    /// applies only to flow limits that are switched on afterwards. The table size is rounded up to
    /// a power of two, at most [`FLOW_LIMIT_TABLE_LEN_MAX`]. The default
    /// is [`FLOW_LIMIT_TABLE_LEN`].
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

    /// Returns the limits, reduced to values that rings with `ring_slots` slots allow.
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
    /// The number of pages that the queue keeps in its local cache: ENA's local page cache. The
    /// value 0 (the minimum) switches the local cache off. The maximum
    /// is [`LPC_PAGES_MAX`](steerage_mem::supply::LPC_PAGES_MAX). The default
    /// is [`LpcMemory::default_pages`](steerage_mem::supply::LpcMemory::default_pages). By default,
    /// a queue whose device provides blocks has no cache, because only copied frames need pages.
    pub lpc_pages: usize,
    /// Frames of up to this many bytes are copied out of the device's page
    /// by [`Completions::rx_finish`], so that the page stays in the device's ring. ethtool calls
    /// this `rx-copybreak`. With the default, 0, no frame is copied. A queue for which copying
    /// short frames (copybreak) [has no effect](crate::device::Capabilities::has_copybreak) accepts
    /// only 0.
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

/// The maximum time that a hook (a function that runs between two rounds of a CPU) may take. The
/// limit is a tenth of the maximum duration of a round, so that hooks hardly delay packets.
pub const BETWEEN_ROUNDS_MAX: Duration = Duration::from_micros(200);
