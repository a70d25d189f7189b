//! Every limit of the receive path, in one place, each with its reason.

use std::time::Duration;

/// The most frames one poll of a receive queue takes: NAPI's weight.
pub const POLL_BUDGET: usize = 64;

/// The most packets that a round handles before the queues are polled again: Linux's `netdev_budget` and its default.
pub const ROUND_BUDGET: usize = 300;

/// How many of the last packets the flow limit counts flows over: Linux's `FLOW_LIMIT_HISTORY`.
pub const FLOW_LIMIT_HISTORY: usize = 128;

/// How many places the flow limit tells flows apart by: Linux's `flow_limit_table_len` and its default.
pub const FLOW_LIMIT_TABLE_LEN: usize = 4096;

/// The most of them.
pub const FLOW_LIMIT_TABLE_LEN_MAX: usize = 1 << 16;

/// The most frames handled from one backlog before the next has its turn. As the poll's, so that a CPU that receives
/// and handles gives both the same share.
pub const HANDLE_BUDGET: usize = 64;

/// How long one round may take before it ends early (`time_squeeze`): Linux's `netdev_budget_usecs`.
pub const ROUND_TIME_MAX: Duration = Duration::from_millis(2);

/// How many slots wait on a ring before they are published in the midst of busy polling. Four to a cache line, so four
/// lines at a time cross to the other CPU.
pub const PUBLISH_AT: u64 = 16;

/// How many full polls may pass before all rings are published whatever waits on them: 8 x 64 frames at 10 ns each are
/// 5 us of delay at most.
pub const PUBLISH_POLLS: u32 = 8;

/// In how many polls once lent frames are taken home while there is more to poll and room for it: which are finished is told by a line
/// that other CPUs write. Eight polls are 512 frames, half of a full backlog.
pub const RECLAIM_POLLS: usize = 8;

/// How many buckets the flow hash is cut into. 256 to a CPU at 16 CPUs hold the busiest within 1.05 of the mean on
/// Zipf traffic; 8 KiB of table stay in the first-level cache.
pub const BUCKETS: usize = 4096;

/// The hash's topmost 12 bits choose the bucket, as `reciprocal_scale` does in Linux.
pub const BUCKET_SHIFT: u32 = 32 - BUCKETS.ilog2();

/// The most headers that are read of a frame, of all kinds together: twice what the deepest stacks in use have (two tags,
/// labels, three IP headers, two of them in UDP tunnels), since each may bring tags and extensions of its own.
pub const FLOW_HEADERS_MAX: usize = 32;

/// VLAN tags that are read behind an Ethernet header: an outer and an inner one (IEEE 802.1ad).
pub const VLAN_TAGS_MAX: usize = 2;

/// MPLS labels that are read to find what is below: twice the deepest stacks that routers impose.
pub const MPLS_LABELS_MAX: usize = 16;

/// IP headers that are entered, one in another: a tunnel in a tunnel in a tunnel, and the flow.
pub const IP_LAYERS_MAX: usize = 4;

/// Extension headers that are skipped behind an IP header; beyond, the flow is known by addresses and by the type of the
/// header at which reading ended. RFC 8200, 4.1, has no use for more than seven; the rest is for senders that know no
/// better.
pub const IPV6_EXTENSIONS_MAX: usize = 8;

/// GTP-U extension headers that are skipped. 5G has use for one (3GPP TS 38.415), the standard for a handful.
pub const GTP_EXTENSIONS_MAX: usize = 4;

/// How long a datagram's fragments are expected: Linux's `ipfrag_time`.
pub const FRAGMENT_TIME: Duration = Duration::from_secs(30);

/// Datagrams whose hashes agree in this table's index and that can be under way at a time.
pub const FRAGMENT_WAYS: usize = 4;

/// How many datagrams a queue can have under way in fragments: 1024. At 100,000 datagrams a second that is room for 10 ms
/// from a datagram's first fragment to its last; what is lost on the way keeps its place for [`FRAGMENT_TIME`].
pub const FRAGMENT_SETS: usize = 1024 / FRAGMENT_WAYS;

/// How long a live queue that has room of its own waits for a CPU whose backlog is full. What the kernel shows a block at a
/// time comes at the speed of memory, and a CPU that sleeps, or that another program has for a time slice or two, takes a while
/// to come round; after that long it does not keep up.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// How often it is looked whether CPUs were taken away or given back: 40 us each time.
pub const WATCH_EVERY: Duration = Duration::from_millis(250);

/// How often it is looked meanwhile whether there is room: in so long a CPU works off a backlog's part of light work.
pub const FULL_LOOK: Duration = Duration::from_micros(100);

/// How many frames may wait for one CPU from one queue: Linux's `netdev_max_backlog` and its default.
pub const BACKLOG_DEFAULT: usize = 1000;

/// The most that `netdev_max_backlog` can be set to.
pub const BACKLOG_MAX: usize = steerage_mem::ring::RING_SLOTS_MAX;

/// How many frames of moving buckets a queue can park. A slice of a move (a sixteenth of the buckets) parks about a
/// sixteenth of what arrives while a full backlog is worked off.
pub const PARKING_LOT_SLOTS: usize = 1024;

/// How many buckets move at a time, so that what arrives for them fits the parking lot.
pub const SLICE_BUCKETS: usize = BUCKETS / 16;

/// How near to the best that the buckets allow a spread comes before it is left alone: balancing begins only beyond
/// [`UNEVEN_FROM`], so that it does not begin anew at once.
pub const SPREAD_WITHIN: f64 = 1.03;

/// How far the busiest CPU is above the best that the buckets allow before buckets move. What is measured is a sample: it
/// must be further off than chance explains, too.
pub const UNEVEN_FROM: f64 = 1.05;

/// The parts of [`SPREAD_WITHIN`] and [`UNEVEN_FROM`] beyond 1 that hold where a CPU has no time left: what it is above the others
/// is packets that are not done, and where there is time left it is nothing.
pub const SHORT_OF_TIME: f64 = 0.5;

/// How often load is looked at. Long enough that a CPU was busy or wasn't, short enough that a device's ring is not over long
/// before the next CPU joins.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How many looks an average goes back, about: a CPU that is idle and then has no time left is seen to be after two.
pub const LOOKS_AVERAGED: f64 = 2.0;

/// How long buckets are measured at least before they are compared: a part of the time since CPUs joined or left, since what was
/// guessed then is to be put right soon, ...
pub const WINDOW_PART: u32 = 4;

/// ... but so long in any case, in which there may be enough samples where packets are light ...
pub const WINDOW_FIRST: Duration = Duration::from_millis(20);

/// ... and no longer than this, which tells what is from what somebody else's program does to one of the CPUs for a moment ...
pub const WINDOW_MIN: Duration = Duration::from_millis(100);

/// ... and at most, if so many samples for each CPU have not come by then.
pub const WINDOW_MAX: Duration = Duration::from_secs(2);

/// How many samples for each CPU hold a window's chance error to about 2 %.
pub const WINDOW_SAMPLES: u64 = 2000;

/// Of a bucket's load, how much the last window counts: it takes four until what was is forgotten by two thirds.
pub const WINDOW_WEIGHT: f64 = 0.25;

/// One batch in so many is begun with a packet alone, whose work is timed: the clock costs 25 ns, a batch more some 20.
pub const TIMED_ONCE_IN: u32 = 32;

/// How much longer than the average a timed packet may seem to take: beyond, the CPU was elsewhere.
pub const TIMED_MAX: u64 = 64;

/// How many packets of average work a bucket's timed ones are mixed with: one packet that took long is chance.
pub const TIMED_PRIOR: f64 = 8.0;

/// How long the CPUs that receive leave a look to the others, which have more time.
pub const LOOK_GRACE: Duration = Duration::from_millis(2);

/// One round in so many has its receiving timed.
pub const RECEIVE_TIMED_ONCE_IN: u32 = 16;

/// Of their time the CPUs are busy, on average, before another one joins. The rest is for bursts.
pub const JOIN_FROM: f64 = 0.85;

/// In which share of its rounds a CPU that has no time left finds as much to do as is done at a time. One that keeps up finds
/// less, even if each round takes longer for that.
pub const FULL_FROM: f64 = 0.25;

/// What a CPU that keeps up counts as at most, however busy it seems.
pub const KEEPS_UP: f64 = 0.6;

/// Of their time those that stay may be busy, by what was measured, for one to leave. Far enough from [`JOIN_FROM`] that it
/// does not come back at once.
pub const LEAVE_BELOW: f64 = 0.5;

/// How long that must hold. It doubles whenever a CPU left too soon ...
pub const LEAVE_AFTER: Duration = Duration::from_secs(1);

/// ... up to this: load that comes and goes every few seconds finds the CPUs there.
pub const LEAVE_AFTER_MAX: Duration = Duration::from_secs(60);

/// How long it is tried at least whether another CPU helps, and at most.
pub const TRIAL_TIME: Duration = Duration::from_millis(100);

/// See [`TRIAL_TIME`]: so long buckets may need until they are where they do best.
pub const TRIAL_TIME_MAX: Duration = Duration::from_millis(300);

/// How much more has to be done with another CPU for it to stay: more than a measurement differs from the next.
pub const TRIAL_GAIN: f64 = 1.03;

/// By which part what can be done in a second changes from one look to the next where the work itself has changed.
pub const CAPACITY_CHANGED: f64 = 0.2;

/// How often the distance between two CPUs is measured at most: some 20 us of each of them, and a wake-up where one sleeps.
pub const DISTANCE_EVERY: Duration = Duration::from_millis(20);

/// The part of the time for which a distance has stayed what it is after which it is measured again: so much is missed of a change.
pub const DISTANCE_STEADY: u32 = 100;

/// ... but after so long at the latest.
pub const DISTANCE_EVERY_MAX: Duration = Duration::from_secs(1);

/// How long two CPUs measure, at most, and who answers waits to be asked: a round takes some 10 us where work is so light that the
/// distance matters.
pub const DISTANCE_TIME: Duration = Duration::from_micros(200);

/// How long who asks goes on with its rounds until the other has come: a sleeping CPU takes 22 us to wake, and of a virtual machine
/// now and then several hundred.
pub const DISTANCE_PATIENCE: Duration = Duration::from_micros(500);

/// How often a line goes to and fro in a sample, so that a look at the clock (25 ns) is little beside it.
pub const DISTANCE_TRIPS: u32 = 8;

/// How many samples are taken, of which the shortest counts.
pub const DISTANCE_SAMPLES: usize = 5;

/// Up to how many times one another distances are the same: near is 30 to 60 ns here, far 120 to 220.
pub const DISTANCE_SAME: f64 = 1.7;

/// How many CPUs are measured in turn where none is known to be near enough to join: each is woken for it.
pub const DISTANCE_CANDIDATES: usize = 8;

/// For how many distances it is remembered what was learned at them.
pub const DISTANCES_MAX: usize = 4;

/// The most that a function takes for a packet where the distance matters: handing over costs 50 ns a packet more at most where CPUs are
/// far.
pub const DISTANCE_MATTERS: Duration = Duration::from_nanos(500);

/// Over how many looks what can be done in a second is averaged, and measured at least before a CPU joins on trial.
pub const CAPACITY_LOOKS: u32 = 8;

/// ... but over so few at the beginning, while nobody has joined yet ...
pub const CAPACITY_LOOKS_FIRST: u32 = 3;

/// ... and so much more has to be done then: what begins is slow, and what comes later would seem to be better. What is between that
/// and [`TRIAL_GAIN`] is measured anew.
pub const TRIAL_GAIN_FIRST: f64 = 1.15;

/// Which share of a CPU's time others have where it joins after all that have more time, and where less that was done while
/// it was on trial is no chance: it took from whoever sends, or waits for answers, what that needed.
pub const CONTENDED_FROM: f64 = 0.3;

/// How much may be lost on trial, and before CPUs that were worth it leave, as time in which nothing would be done: about what it
/// takes to leave and come back, so that chance does not cost more than it saves.
pub const LOST_MAX: Duration = Duration::from_millis(50);

/// How long after a trial that said nothing there is another; it doubles each time up to [`TRIAL_AGAIN`].
pub const TRIAL_UNDECIDED: Duration = Duration::from_secs(1);

/// How long CPUs that were worth it stay before it is looked at whether they still are: whether less is done than the CPUs that
/// receive did alone. It doubles each time up to [`TRIAL_AGAIN`].
pub const LOOK_BACK: Duration = Duration::from_millis(500);

/// How long a CPU that had work from the start keeps it before it is seen what is done without it.
pub const BEGUN_JOINED_FOR: Duration = Duration::from_secs(1);

/// How long after a trial in vain there is another; it doubles each time ...
pub const TRIAL_AGAIN: Duration = Duration::from_secs(10);

/// ... up to this.
pub const TRIAL_AGAIN_MAX: Duration = Duration::from_secs(600);

/// How many times what the function took when a trial failed it has to take for another trial before its time.
pub const WORK_CHANGED: f64 = 1.3;

/// And how much longer it has to be, in nanoseconds: handing over costs more than that, and work of a few is not measured better.
pub const WORK_CHANGED_NANOS: f64 = 10.0;

/// Which share of a CPU's time a bucket takes to be told as an elephant: with another one like it the CPU would be full.
pub const ELEPHANT_FROM: f64 = 0.5;

/// From which share of its time on a CPU counts as having none left. What the device of one that receives has for it besides is
/// not known.
pub const SATURATED_FROM: f64 = 0.97;

/// How many more packets of one flow than of others have to be seen in a bucket for the flow to be named.
pub const ELEPHANT_VOTES: u32 = 4;

/// How long a move waits for its fence before its frames drop (`moving`) and the old CPU is told to discard its
/// backlog (`revoked`).
pub const MOVE_WAIT: Duration = Duration::from_millis(20);

/// How long a CPU may show no sign of life while a move waits for it before it is declared dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(1);

/// How often a sleeping CPU looks again while it has a part in a move.
pub const MOVE_LOOK: Duration = Duration::from_micros(500);

/// How often a CPU whose queues have ended looks whether the last frames are finished.
pub const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// How long a CPU polls on before it sleeps. Waking a halted CPU costs its waker 7 us and takes 22 us on a virtual
/// machine: at twice that, polling has cost as much as the sleep would have.
pub const IDLE_POLL: Duration = Duration::from_micros(50);

/// How long a stop waits for what is in flight.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Pages in a unit of `lpc_size`, the size of a receive queue's local page cache: ENA's (the README of its
/// Linux driver, "Local Page Cache").
pub const LPC_UNIT_PAGES: usize = 1024;

/// Units that a queue keeps to itself where nobody says: ENA's default.
pub const LPC_SIZE_DEFAULT: usize = 2;

/// The most that it can be given: ENA's.
pub const LPC_SIZE_MAX: usize = 32;

/// Where the local caches of all queues together would keep more than this part of the memory that there is (the cap, or the
/// machine's if that is less), they are off by default: an eighth held back is felt nowhere, and by default it is 31 queues' worth.
pub const LPC_MEMORY_PART: u64 = 8;

/// Pages that go to or come from the shared pool at a time: one lock for a whole poll's worth.
pub const POOL_BULK: usize = POLL_BUDGET;

/// How many packets of one queue handlers may keep at a time.
pub const KEPT_DEFAULT: usize = 1024;

/// The most packets of its own making that a CPU's function may send at a time: each has a page. As many as a poll brings, and
/// as many answers to each.
pub const ORIGINATED_MAX: usize = POLL_BUDGET * POLL_BUDGET;

/// Room before a frame in a page, for headers that a function puts in front: the kernel's `NET_SKB_PAD` doubled, and
/// what XDP promises is 256; a tunnel over IPv6 with options fits.
pub const HEADROOM: usize = 128;

/// Pages are at least this long: a frame of 1514 bytes, two VLAN tags and the headroom fit. 33 cache lines, not 32: at a
/// stride of 2048 the frames' first lines fall into the same few cache sets, at four times the cost a packet.
pub const PAGE_BYTES_MIN: usize = 2112;

/// How long after its time to drain a CPU may still be about to return; then it is left behind.
pub const LEAVE_BEHIND_AFTER: Duration = Duration::from_millis(500);

/// How often a CPU looks whether a full output has room again for what its source can wait with. The output's buffer lasts for
/// longer than that.
pub const OUTPUT_LOOK: Duration = Duration::from_millis(1);

/// An output that takes nothing for so long is stuck: sources that can wait no longer wait for it, and neither does the end of a
/// run. A program that reads a pipe may well be busy for a second or two with what it has read.
pub const OUTPUT_STUCK_AFTER: Duration = Duration::from_secs(5);

/// How often a join looks whether a stop was asked for.
pub const JOIN_LOOK: Duration = Duration::from_millis(50);

/// The most CPUs of one instance. A map entry has 16 bits, but each CPU costs a ring for each queue.
pub const CPUS_MAX: usize = 1024;

/// The most outputs of one instance: a verdict has a byte for its output.
pub const OUTPUTS_MAX: usize = 256;

/// The most receive queues of one instance.
pub const QUEUES_MAX: usize = 1024;

/// The default cap on packet memory and rings together.
pub const MEMORY_MAX_DEFAULT: usize = 1 << 30;

/// The limits that can be changed while an instance runs: see [`Handle::set_limits`](crate::Handle::set_limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many frames of a queue may wait for a CPU: `netdev_max_backlog`. At least 1, at most what the rings have room for:
    /// what they were built with, rounded up to a power of two.
    pub backlog: usize,
    /// How many frames one poll takes of a queue, and how many are handled of one backlog before the next has its turn:
    /// `dev_weight`. So it is how long the lists are that are handed over. 1 to [`POLL_BUDGET`], which is the default.
    pub dev_weight: usize,
    /// How many packets a round handles before the queues are polled again: `netdev_budget`. At least 1; a CPU's own share and
    /// one list more are in every round. Default [`ROUND_BUDGET`].
    pub budget: usize,
    /// How long a round may take, likewise: `netdev_budget_usecs`. Default [`ROUND_TIME_MAX`].
    pub budget_time: Duration,
    /// How many places the flow limit tells flows apart by, where it is switched on from now on: `flow_limit_table_len`. A
    /// power of two (rounded up to one), at most [`FLOW_LIMIT_TABLE_LEN_MAX`]; default [`FLOW_LIMIT_TABLE_LEN`].
    pub flow_limit_table_len: usize,
}

impl Limits {
    pub(crate) const DEFAULT: Self = Self {
        backlog: BACKLOG_DEFAULT,
        dev_weight: POLL_BUDGET,
        budget: ROUND_BUDGET,
        budget_time: ROUND_TIME_MAX,
        flow_limit_table_len: FLOW_LIMIT_TABLE_LEN,
    };

    /// What can be in force where rings have so many slots.
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
/// [`Handle::set_queue_limits`](crate::Handle::set_queue_limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// How many pages the queue keeps to itself, in units of [`LPC_UNIT_PAGES`]: ENA's local page cache. 0 to [`LPC_SIZE_MAX`], 0
    /// switches it off; default [`LPC_SIZE_DEFAULT`], and 0 where memory is small ([`LPC_MEMORY_PART`]). It takes no memory of its
    /// own: these are pages that the queue has used and will use again. A device that lends its own memory has none.
    pub lpc_size: usize,
    /// Up to how many bytes a frame is copied out of its device's page by [`Completions::rx_finish`], so that the page stays
    /// in the device's ring: `rx-copybreak` of ethtool. Default 0: none is.
    ///
    /// [`Completions::rx_finish`]: crate::Completions::rx_finish
    pub copybreak: usize,
}

impl QueueLimits {
    pub(crate) const DEFAULT: Self = Self { lpc_size: LPC_SIZE_DEFAULT, copybreak: 0 };

    /// What can be in force: of a queue whose device lends its memory, no cache.
    pub(crate) fn clamped(self, lends: bool) -> Self {
        Self { lpc_size: if lends { 0 } else { self.lpc_size.min(LPC_SIZE_MAX) }, ..self }
    }

    /// The size of the local cache, in pages.
    pub(crate) fn local_pages(self) -> usize {
        self.lpc_size * LPC_UNIT_PAGES
    }
}

const _: () = {
    assert!(POLL_BUDGET == HANDLE_BUDGET);
    assert!(FLOW_LIMIT_HISTORY <= u8::MAX as usize && FLOW_LIMIT_TABLE_LEN_MAX <= u16::MAX as usize + 1);
    assert!(BUCKETS.is_power_of_two() && BUCKETS == 1 << (32 - BUCKET_SHIFT));
    assert!(PUBLISH_AT as usize <= POLL_BUDGET);
    assert!(PARKING_LOT_SLOTS >= 2 * POLL_BUDGET);
    assert!(BACKLOG_DEFAULT <= BACKLOG_MAX);
};
