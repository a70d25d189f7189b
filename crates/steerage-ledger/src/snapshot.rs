//! The ledger in plain numbers, read at one time.

use std::sync::PoisonError;
use std::time::Duration;

use steerage_flow::FlowKey;
use steerage_topology::CpuId;

use crate::backing::Backing;
use crate::counts::{MoveCounts, QueueError};
use crate::deferred::Settled;
use crate::drops::Drops;
use crate::memory::MemoryUse;
use crate::reasons::DropReason;
use crate::records::{Ledgers, OutputInfo, QueueInfo};

/// One of a queue's buckets.
///
/// ```
/// use steerage_ledger::BucketSnapshot;
///
/// /// The number of the bucket with the most packets. `Handle::buckets` of the crate `steerage` lists the buckets of a queue.
/// fn busiest(buckets: &[BucketSnapshot]) -> Option<usize> {
///     (0..buckets.len()).max_by_key(|bucket| buckets[*bucket].packets)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketSnapshot {
    /// The CPU that has the bucket. During a move this is the old CPU until the new one gets new packets.
    pub cpu: CpuId,
    /// The approximate number of the queue's packets for this bucket. One packet of each poll is sampled, and counts for all packets of
    /// the poll. No packets are counted while one CPU has all buckets, since nothing is hashed then.
    pub packets: u64,
    /// How many times the bucket changed CPU.
    pub moves: u64,
}

impl BucketSnapshot {
    /// A bucket on `cpu`.
    pub fn new(cpu: CpuId, packets: u64, moves: u64) -> Self {
        Self { cpu, packets, moves }
    }
}

/// The outcomes of delivered packets.
/// [`Snapshot`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdicts {
    /// Consumed by the packet function.
    pub consumed: u64,
    /// Discarded by the packet function.
    pub discarded: u64,
    /// Kept beyond their batch.
    pub kept: u64,
    /// Sent by an output.
    pub transmitted: u64,
}

impl Verdicts {
    /// All delivered packets.
    pub fn total(&self) -> u64 {
        self.consumed + self.discarded + self.kept + self.transmitted
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.consumed += other.consumed;
        self.discarded += other.discarded;
        self.kept += other.kept;
        self.transmitted += other.transmitted;
    }
}

/// One receive queue's part of the ledger.
/// [`Snapshot`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// The input's name.
    pub device: String,
    /// The kind of device.
    pub kind: &'static str,
    /// The mode in which the device runs.
    pub mode: &'static str,
    /// The number of the queue within the input.
    pub queue: usize,
    /// The CPU that polls it.
    pub cpu: CpuId,
    /// The source of the flow hash: `device`, or the name of our own hash.
    pub hash: &'static str,
    /// The CPUs of its mask that have buckets of the queue.
    pub rps_cpus: Vec<CpuId>,
    /// Frames received, including those that were lost before they reached us.
    pub received: u64,
    /// Bytes received, as on the wire, without the frames that were lost before they reached us.
    pub received_bytes: u64,
    /// The outcomes of the delivered frames.
    pub verdicts: Verdicts,
    /// Frames dropped, by reason.
    pub dropped: Drops,
    /// Frames received and neither delivered nor dropped yet.
    pub in_flight: u64,
    /// Frames whose flow hash was computed when they arrived. Those to which the device set a hash that is used are not among
    /// them, nor is any frame while one CPU has all buckets.
    pub hashed: u64,
    /// Frames without a known flow, either of IP or by the user's own flow key. They are steered by their link addresses. They are
    /// counted only if frames are hashed, that is, not while one CPU has all buckets.
    pub unparsed: u64,
    /// Fragments of datagrams whose flow could not be noted because the table was full. Such a datagram is steered by a key of its own.
    pub fragments_full: u64,
    /// Later fragments that arrived after the time limit of their datagram ([`FRAGMENT_TIME`](steerage_flow::limits::FRAGMENT_TIME)).
    pub fragments_aged: u64,
    /// Frames in lent memory that the device copied so that it could continue, since they were not released in time.
    pub copied: u64,
    /// Frames that the device left to the kernel. They are neither received nor dropped.
    pub passed: u64,
    /// The counts that only this kind of device has, by the kernel's names.
    pub device_counts: Vec<(&'static str, u64)>,
    /// Frames that completed out of order. `None` if the order is not checked.
    pub reordered: Option<u64>,
    /// The page pool's counters.
    pub pool: PoolSnapshot,
    /// The error that ended the queue, if one did.
    pub error: Option<QueueError>,
}

/// The counters of a queue's page pool, in pages. They have the names of ENA's driver and of the kernel's page_pool.
/// [`Snapshot`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Pages served from the local cache.
    pub alloc_fast: u64,
    /// Pages taken from the shared pool.
    pub alloc_slow: u64,
    /// The number of times that a page was needed and none was free.
    pub alloc_empty: u64,
    /// Pages that came back to the local cache.
    pub recycle_cached: u64,
    /// Pages that came back while the local cache was full.
    pub recycle_cache_full: u64,
    /// Pages that came back after a handler had kept them.
    pub recycle_kept: u64,
    /// Frames that were copied out of a device's page, so that the page stayed in the device's ring.
    pub rx_copybreak: u64,
    /// The pages from the shared pool that made the queue have more pages than ever before: the cache warms up.
    pub lpc_warm_up: u64,
    /// The pages from the shared pool that were taken while the local cache was switched off.
    pub lpc_passed_by: u64,
    /// Pages of another NUMA node than that of the queue's CPU that came back, and went to the shared pool. The queue replaces each by
    /// a page of its own node.
    pub lpc_wrong_numa: u64,
    /// Packets that handlers keep now.
    pub kept: u64,
}

/// One CPU's part of the ledger.
/// [`Snapshot`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CpuSnapshot {
    /// The number of the CPU.
    pub cpu: CpuId,
    /// Frames that it polled from its queues.
    pub polled: u64,
    /// Frames that other CPUs handed over to it, and that it has taken.
    pub handed_in: u64,
    /// Frames that were given to its handler.
    pub processed: u64,
    /// The frames given to its handler that it had polled itself.
    pub inline: u64,
    /// Frames that were dropped because of this CPU: its backlog was full, or it made no progress.
    pub dropped: Drops,
    /// The time of rounds that did some work. The time of a round lasts until the next one starts.
    pub busy: Duration,
    /// Rounds that did some work.
    pub rounds: u64,
    /// Rounds that ended early because their time was over.
    pub time_squeeze: u64,
    /// Frames that wait for it now.
    pub backlog: u64,
    /// The most frames that it has ever found waiting on one of its rings.
    pub backlog_max: u64,
    /// How many times it woke a sleeping CPU that it had given packets.
    pub wakes_sent: u64,
    /// How many times another CPU woke it because of packets.
    pub wakes_received: u64,
    /// How many times it was woken for something else: a change, a move, a stop, or room for packets.
    pub wakes_for_control: u64,
    /// How many times its handler panicked.
    pub panics: u64,
    /// How many times it was declared dead.
    pub deaths: u64,
    /// Packets that its packet function made itself and that were sent. They are in no queue's balance, since no queue received them.
    pub originated: u64,
    /// Packets that its packet function made and that were not sent: the output had no room, or cannot send such packets.
    pub originated_dropped: u64,
    /// The share of the CPU's time that others took recently, from 0 to 1: other programs, interrupts, other guests of the hypervisor.
    /// 0 if nobody measures it (`Handle::set_others_time`).
    pub others: f64,
    /// How long the packet function has been running without returning. `None` while it is not running. A working CPU spends most of
    /// its time in the packet function, for microseconds each time. A CPU that stays there for seconds is stuck.
    pub in_handler: Option<Duration>,
}

/// One output's part of the ledger.
/// [`Snapshot`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutputSnapshot {
    /// The output's name.
    pub device: String,
    /// The kind of device.
    pub kind: &'static str,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that should have been sent and were lost, by reason.
    pub dropped: Drops,
    /// Packets that the output has taken and not sent yet. They are in flight.
    pub held: u64,
    /// The error that ended the output on a CPU, if one did.
    pub error: Option<String>,
}

/// The whole ledger at one time.
///
/// ```
/// use steerage_ledger::Snapshot;
///
/// fn print(snapshot: &Snapshot) {
///     println!("{} of {} packets delivered, dropped: {}", snapshot.delivered(), snapshot.received(), snapshot.dropped());
///     println!("{} packets were sent", snapshot.verdicts().transmitted);
///     for queue in &snapshot.queues {
///         println!("{} queue {}: {} frames, {} kept", queue.device, queue.queue, queue.received, queue.pool.kept);
///         if let Some(error) = &queue.error {
///             println!("it ended: {}", error.message);
///         }
///     }
///     for cpu in &snapshot.cpus {
///         println!("CPU {}: {} packets in {:?}, {} wait", cpu.cpu, cpu.processed, cpu.busy, cpu.backlog);
///     }
///     for output in &snapshot.outputs {
///         println!("{}: {} packets, dropped: {}", output.device, output.packets, output.dropped);
///     }
///     for group in &snapshot.groups {
///         println!("{}: {} CPUs joined, {} left", group.policy, group.findings.joined, group.findings.left);
///         for elephant in &group.elephants {
///             println!("bucket {} takes {:.0} % of a CPU", elephant.bucket, 100.0 * elephant.load);
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time since the instance was built.
    pub elapsed: Duration,
    /// The queues.
    pub queues: Vec<QueueSnapshot>,
    /// The CPUs.
    pub cpus: Vec<CpuSnapshot>,
    /// The outputs.
    pub outputs: Vec<OutputSnapshot>,
    /// The counts of moves.
    pub moves: MoveCounts,
    /// The steering groups. The queues of a group have the same mask.
    pub groups: Vec<GroupSnapshot>,
    /// The kind of pages that back the packet memory.
    pub backing: Backing,
    /// The size of a page, in bytes.
    pub page_bytes: u64,
    /// All pages of the pool.
    pub pages: u64,
    /// The pages that no queue has. At rest, if no packets are kept, these are all pages.
    pub pages_free: u64,
    /// The upper limit of packet memory and rings, in bytes.
    pub memory_bytes: u64,
    /// The purposes of this memory.
    pub memory: MemoryUse,
}

impl Snapshot {
    /// Frames received.
    pub fn received(&self) -> u64 {
        self.queues.iter().map(|queue| queue.received).sum()
    }

    /// Bytes received, on the wire.
    pub fn received_bytes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.received_bytes).sum()
    }

    /// The outcomes of the delivered frames.
    pub fn verdicts(&self) -> Verdicts {
        let mut all = Verdicts::default();
        self.queues.iter().for_each(|queue| all.merge(&queue.verdicts));
        all
    }

    /// Frames delivered.
    pub fn delivered(&self) -> u64 {
        self.verdicts().total()
    }

    /// Frames dropped, by reason.
    pub fn dropped(&self) -> Drops {
        let mut all = Drops::default();
        self.queues.iter().for_each(|queue| all.merge(&queue.dropped));
        all
    }

    /// Frames in flight.
    pub fn in_flight(&self) -> u64 {
        self.queues.iter().map(|queue| queue.in_flight).sum()
    }

    /// Frames that completed out of order. `None` if the order is not checked.
    pub fn reordered(&self) -> Option<u64> {
        self.queues.iter().try_fold(0, |sum, queue| Some(sum + queue.reordered?))
    }
}

/// The packets that outputs took and finished later, added up in the three ways in which the ledger shows them.
struct SettledBy {
    output: Vec<Settled>,
    queue: Vec<Settled>,
    /// Packets that came from receive queues.
    cpu: Vec<Settled>,
    /// Packets that the CPU's packet function made.
    originated: Vec<Settled>,
}

impl SettledBy {
    fn of(ledgers: &Ledgers) -> Self {
        let none = |count: usize| vec![Settled::default(); count];
        let (queues, cpus) = (ledgers.queues.len(), ledgers.cpus.len());
        let mut by =
            Self { output: none(ledgers.outputs.len()), queue: none(queues), cpu: none(cpus), originated: none(cpus) };
        for (output, info) in ledgers.outputs.iter().enumerate() {
            for (cpu, deferred) in
                info.ledgers.iter().enumerate().filter_map(|(cpu, of)| Some((cpu, of.deferred.as_ref()?)))
            {
                for (source, settled) in deferred.settled().iter().enumerate() {
                    by.output[output].merge(settled);
                    match by.queue.get_mut(source) {
                        Some(queue) => {
                            queue.merge(settled);
                            by.cpu[cpu].merge(settled);
                        }
                        None => by.originated[cpu].merge(settled),
                    }
                }
            }
        }
        by
    }
}

/// The findings of a policy.
/// [`Snapshot`] has an example.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Findings {
    /// CPUs that joined, so far.
    pub joined: u64,
    /// CPUs that left, so far.
    pub left: u64,
    /// The busiest CPU's load over the best that the buckets allow, when that was last measured.
    pub uneven: Option<f64>,
    /// How long a cache line takes from the CPU that receives to the CPU that joined or is next, by the last measurement. `None` if it
    /// did not matter.
    pub apart: Option<Duration>,
    /// The regime in force: `inline`, `collector` or `spread`. Empty if the policy knows no regimes.
    pub regime: &'static str,
    /// Why it is in force: `start`, `predicted`, `measured`, `probe-failed` or `quiet`. Empty like `regime`.
    pub reason: &'static str,
    /// The cost of a packet, as far as the policy has found out.
    pub costs: Vec<CostEstimate>,
    /// The value of each regime. The one in force is the first.
    pub regimes: Vec<RegimeEstimate>,
    /// The buckets that nearly fill or overfill a CPU, with the share of a CPU that each takes. The heaviest is first.
    pub elephants: Vec<(u16, f64)>,
    /// The number of buckets that a dry run would move now.
    pub would_move: Option<usize>,
}

/// The cost of one step per packet, as a policy estimates it.
/// [`Snapshot`] has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CostEstimate {
    /// The step: `receive`, `hash` and `work`, and on both sides of a hand-over, `give` and `take`.
    pub step: &'static str,
    /// The cost in nanoseconds per packet. That of `take` is negative if the other CPU is the faster one.
    pub nanos: f64,
    /// The standard deviation of the estimate.
    pub deviation: f64,
}

impl CostEstimate {
    /// An estimate, in nanoseconds per packet.
    pub fn new(step: &'static str, nanos: f64, deviation: f64) -> Self {
        Self { step, nanos, deviation }
    }
}

/// The value of a regime, as a policy estimates it.
/// [`Snapshot`] has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RegimeEstimate {
    /// The regime: `inline`, `collector` or `spread`.
    pub regime: &'static str,
    /// The number of CPUs, those that receive among them.
    pub cpus: usize,
    /// The throughput in packets per second, by the costs of a packet and what was measured.
    pub rate: f64,
    /// The standard deviation of the estimate.
    pub deviation: f64,
    /// The throughput by the costs alone.
    pub predicted: f64,
}

impl RegimeEstimate {
    /// An estimate, in packets per second.
    pub fn new(regime: &'static str, cpus: usize, rate: f64, deviation: f64, predicted: f64) -> Self {
        Self { regime, cpus, rate, deviation, predicted }
    }
}

/// How a steering group is steered.
/// [`Snapshot`] has an example.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The policy's name.
    pub policy: &'static str,
    /// The receive queues in it, numbered over all inputs.
    pub queues: Vec<usize>,
    /// The CPUs that have buckets, in the order in which they joined.
    pub active: Vec<CpuId>,
    /// The buckets that nearly fill a CPU, if there are any.
    pub elephants: Vec<Elephant>,
    /// The findings of the policy.
    pub findings: Findings,
}

impl GroupSnapshot {
    /// A group with these queues, CPUs and findings of its policy.
    pub fn new(
        policy: &'static str,
        queues: Vec<usize>,
        active: Vec<CpuId>,
        elephants: Vec<Elephant>,
        findings: Findings,
    ) -> Self {
        Self { policy, queues, active, elephants, findings }
    }
}

/// A bucket that takes much of a CPU.
/// [`Snapshot`] has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Elephant {
    /// The number of the bucket.
    pub bucket: u16,
    /// The share of a CPU's time that it takes.
    pub load: f64,
    /// The flow that most of its packets belong to, in the direction of its sender. `None` if no flow stands out, or too few packets
    /// were sampled.
    pub flow: Option<FlowKey>,
}

impl Elephant {
    /// A bucket with this load.
    pub fn new(bucket: u16, load: f64, flow: Option<FlowKey>) -> Self {
        Self { bucket, load, flow }
    }
}

/// The facts that a snapshot shows besides the ledgers.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The CPUs of the instance.
    pub cpus: &'a [CpuId],
    /// The time since the instance was built.
    pub elapsed: Duration,
    /// The CPUs of each queue's mask.
    pub masks: Vec<Vec<CpuId>>,
    /// The share of each CPU's time that others took recently.
    pub others: Vec<f64>,
    /// How long each CPU has been in its handler, if it is.
    pub in_handler: Vec<Option<Duration>>,
    /// The counts of moves.
    pub moves: MoveCounts,
    /// How each group is steered.
    pub groups: Vec<GroupSnapshot>,
    /// The kind of pages that back the packet memory.
    pub backing: Backing,
    /// A page's size, in bytes.
    pub page_bytes: u64,
    /// Pages in all.
    pub pages: u64,
    /// Pages that no queue has.
    pub pages_free: u64,
    /// Packet memory and rings.
    pub memory: MemoryUse,
}

impl Ledgers {
    /// Reads all counts.
    pub fn snapshot(&self, facts: Facts<'_>) -> Snapshot {
        // Delivered and dropped are read before received: see the crate's documentation.
        let settled = SettledBy::of(self);
        let cpus = (0..self.cpus.len()).map(|cpu| self.cpu_snapshot(cpu, &facts, &settled)).collect();
        let queues = self.queues.iter().zip(&settled.queue).zip(facts.masks);
        let queues = queues.map(|((queue, settled), mask)| queue_snapshot(queue, facts.cpus, mask, settled)).collect();
        let outputs = self.outputs.iter().zip(&settled.output);
        let outputs = outputs.map(|(output, settled)| output_snapshot(output, settled)).collect();
        Snapshot {
            elapsed: facts.elapsed,
            queues,
            cpus,
            outputs,
            moves: facts.moves,
            groups: facts.groups,
            backing: facts.backing,
            page_bytes: facts.page_bytes,
            pages: facts.pages,
            pages_free: facts.pages_free,
            memory_bytes: facts.memory.bytes(),
            memory: facts.memory,
        }
    }

    fn cpu_snapshot(&self, cpu: usize, facts: &Facts<'_>, settled: &SettledBy) -> CpuSnapshot {
        let ledger = &self.cpus[cpu];
        let mut dropped = settled.cpu[cpu].dropped;
        let originated = &settled.originated[cpu];
        let mut backlog = 0;
        for queue in &self.queues {
            let ring = &queue.rings[cpu];
            dropped.merge(&ring.by_consumer.dropped.read());
            dropped.add(DropReason::BacklogFull, ring.by_producer.backlog_full.get());
            dropped.add(DropReason::FlowLimit, ring.by_producer.flow_limit.get());
            let (published, finished) = ring.gauge.read();
            backlog += published - finished;
        }
        CpuSnapshot {
            cpu: facts.cpus[cpu],
            polled: ledger.polled.get(),
            handed_in: ledger.handed_in.get(),
            processed: ledger.processed.get(),
            inline: ledger.inline.get(),
            dropped,
            busy: Duration::from_nanos(ledger.busy_nanos.get()),
            rounds: ledger.rounds.get(),
            time_squeeze: ledger.time_squeeze.get(),
            backlog,
            backlog_max: ledger.backlog_max.get(),
            wakes_sent: ledger.wakes_sent.get(),
            wakes_received: ledger.wakes_received.get(),
            wakes_for_control: ledger.wakes_for_control.get(),
            panics: ledger.panics.get(),
            deaths: ledger.deaths.get(),
            originated: ledger.originated.get() + originated.packets,
            originated_dropped: ledger.originated_dropped.get() + originated.dropped.total(),
            others: facts.others[cpu],
            in_handler: facts.in_handler[cpu],
        }
    }
}

fn output_snapshot(output: &OutputInfo, settled: &Settled) -> OutputSnapshot {
    let mut dropped = settled.dropped;
    output.ledgers.iter().for_each(|ledger| dropped.merge(&ledger.dropped.read()));
    OutputSnapshot {
        device: output.name.get(),
        kind: output.kind,
        packets: settled.packets + output.ledgers.iter().map(|ledger| ledger.packets.get()).sum::<u64>(),
        bytes: settled.bytes + output.ledgers.iter().map(|ledger| ledger.bytes.get()).sum::<u64>(),
        dropped,
        held: output.ledgers.iter().map(|ledger| ledger.held()).sum(),
        error: output.ledgers.iter().find_map(|ledger| ledger.error()),
    }
}

fn queue_snapshot(queue: &QueueInfo, cpus: &[CpuId], rps_cpus: Vec<CpuId>, settled: &Settled) -> QueueSnapshot {
    let mut verdicts = Verdicts { transmitted: settled.packets, ..Verdicts::default() };
    let mut dropped = settled.dropped;
    let mut reordered = 0;
    // Delivered and dropped are read before received: see the crate's documentation.
    for ring in &queue.rings {
        let counts = &ring.by_consumer;
        verdicts.consumed += counts.consumed.get();
        verdicts.discarded += counts.discarded.get();
        verdicts.kept += counts.kept.get();
        verdicts.transmitted += counts.transmitted.get();
        dropped.merge(&counts.dropped.read());
        reordered += counts.reordered.get();
    }
    dropped.merge(&queue.ledger.dropped.read());
    let received = queue.ledger.received.get();
    QueueSnapshot {
        device: queue.device.get(),
        kind: queue.kind,
        mode: queue.mode,
        queue: queue.number,
        cpu: cpus[usize::from(queue.owner())],
        hash: queue.hash,
        rps_cpus,
        received,
        received_bytes: queue.ledger.received_bytes.get(),
        verdicts,
        dropped,
        in_flight: received - verdicts.total() - dropped.total(),
        hashed: queue.ledger.hashed.get(),
        unparsed: queue.ledger.unparsed.get(),
        fragments_full: queue.ledger.fragments_full.get(),
        fragments_aged: queue.ledger.fragments_aged.get(),
        copied: queue.ledger.copied.get(),
        passed: queue.ledger.passed.get(),
        device_counts: queue.device_counts.as_ref().map_or_else(Vec::new, |counts| counts.read()),
        reordered: queue.checks_order.then_some(reordered),
        pool: PoolSnapshot {
            alloc_fast: queue.pool.alloc_fast.get(),
            alloc_slow: queue.pool.alloc_slow.get(),
            alloc_empty: queue.pool.alloc_empty.get(),
            recycle_cached: queue.pool.recycle_cached.get(),
            recycle_cache_full: queue.pool.recycle_cache_full.get(),
            recycle_kept: queue.pool.recycle_kept.get(),
            rx_copybreak: queue.pool.rx_copybreak.get(),
            lpc_warm_up: queue.pool.lpc_warm_up.get(),
            lpc_passed_by: queue.pool.lpc_passed_by.get(),
            lpc_wrong_numa: queue.pool.lpc_wrong_numa.get(),
            kept: queue.kept_pages.kept(),
        },
        error: queue.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    }
}
