//! Reads the ledgers into a [`Snapshot`].

use std::sync::PoisonError;
use std::time::Duration;

use steerage_mem::Backing;
use steerage_moves::MoveCounts;
use steerage_topology::CpuId;

use crate::deferred::Settled;
use crate::drops::Drops;
use crate::findings::GroupSnapshot;
use crate::memory::MemoryUse;
use crate::notes::notes;
use crate::reasons::DropReason;
use crate::records::{Ledgers, OutputInfo, QueueInfo};
use crate::snapshot::{CpuSnapshot, OutputSnapshot, PoolSnapshot, QueueSnapshot, Snapshot, Totals, Verdicts};

/// The packets that outputs accepted first and settled (sent or lost) later. There are separate
/// sums for each output, queue and CPU, because a snapshot shows all of them.
struct SettledBy {
    output: Vec<Settled>,
    queue: Vec<Settled>,
    /// Packets from receive queues, by CPU.
    cpu: Vec<Settled>,
    /// Packets that a CPU's handler created, by CPU.
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

/// The values in a snapshot that are not stored in the ledgers.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The CPUs of the instance.
    pub cpus: &'a [CpuId],
    /// The time since the instance was built.
    pub elapsed: Duration,
    /// For each queue, the CPUs in its mask.
    pub masks: Vec<Vec<CpuId>>,
    /// For each CPU, the share of its time that other programs or guests took.
    pub others: Vec<f64>,
    /// For each CPU, the time since its current call of the handler began, or `None` outside of the
    /// handler.
    pub in_handler: Vec<Option<Duration>>,
    /// The counts of moves.
    pub moves: MoveCounts,
    /// How each group is steered.
    pub groups: Vec<GroupSnapshot>,
    /// The kind of memory pages that hold the packets.
    pub backing: Backing,
    /// A page's size, in bytes.
    pub page_bytes: u64,
    /// The number of all pages.
    pub pages: u64,
    /// The number of free pages in the shared pool.
    pub pages_free: u64,
    /// The use of packet memory and rings.
    pub memory: MemoryUse,
}

impl Ledgers {
    /// Reads all counts into a snapshot.
    pub fn snapshot(&self, facts: Facts<'_>) -> Snapshot {
        // Delivered and dropped packets are read before received packets, so that packets in flight
        // are never negative.
        let settled = SettledBy::of(self);
        let mut of_cpus: Vec<OfCpu> = settled.cpu.iter().map(|of| OfCpu { dropped: of.dropped, backlog: 0 }).collect();
        let rings: Vec<_> = self.queues.iter().map(|queue| OfQueue::read(queue, &mut of_cpus)).collect();
        let cpus: Vec<_> =
            of_cpus.iter().enumerate().map(|(cpu, rings)| self.cpu_snapshot(cpu, &facts, &settled, rings)).collect();
        let queues = self.queues.iter().zip(&settled.queue).zip(facts.masks).zip(&rings);
        let queues: Vec<_> = queues
            .map(|(((queue, settled), mask), rings)| queue_snapshot(queue, facts.cpus, mask, settled, rings))
            .collect();
        let outputs = self.outputs.iter().zip(&settled.output);
        let outputs = outputs.map(|(output, settled)| output_snapshot(output, settled)).collect();
        let notes = notes(&queues, &cpus, &self.queues);
        Snapshot {
            elapsed: facts.elapsed,
            totals: Totals::of(&queues),
            queues,
            cpus,
            outputs,
            counters: self.counters(facts.cpus),
            moves: facts.moves,
            groups: facts.groups,
            backing: facts.backing,
            page_bytes: facts.page_bytes,
            pages: facts.pages,
            pages_free: facts.pages_free,
            memory_bytes: facts.memory.bytes(),
            memory: facts.memory,
            notes,
        }
    }

    fn cpu_snapshot(&self, cpu: usize, facts: &Facts<'_>, settled: &SettledBy, rings: &OfCpu) -> CpuSnapshot {
        let ledger = &self.cpus[cpu];
        let OfCpu { dropped, backlog } = *rings;
        let originated = &settled.originated[cpu];
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
            longest_batch: Duration::from_nanos(ledger.longest_batch.get()),
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
        kind: output.kind.into(),
        packets: settled.packets + output.ledgers.iter().map(|ledger| ledger.packets.get()).sum::<u64>(),
        bytes: settled.bytes + output.ledgers.iter().map(|ledger| ledger.bytes.get()).sum::<u64>(),
        dropped,
        held: output.ledgers.iter().map(|ledger| ledger.held()).sum(),
        error: output.ledgers.iter().find_map(|ledger| ledger.error()),
    }
}

struct OfCpu {
    dropped: Drops,
    backlog: u64,
}

struct OfQueue {
    verdicts: Verdicts,
    dropped: Drops,
    reordered: u64,
}

impl OfQueue {
    /// Reads the rings of a queue in the order of memory, and adds their counts to their CPUs.
    /// There may be 262,144 rings (1,024 CPUs, 256 queues), so counts that must be 0 are not read.
    fn read(queue: &QueueInfo, cpus: &mut [OfCpu]) -> Self {
        let (mut verdicts, mut dropped, mut reordered) = (Verdicts::default(), Drops::default(), 0);
        let all = queue.ledger.dropped.read();
        let has_refused = all.get(DropReason::BacklogFull) + all.get(DropReason::FlowLimit) > 0;
        for (ring, cpu) in queue.rings.iter().zip(&mut *cpus) {
            if has_refused {
                let refused = &ring.by_producer;
                cpu.dropped.add(DropReason::BacklogFull, refused.backlog_full.get());
                cpu.dropped.add(DropReason::FlowLimit, refused.flow_limit.get());
            }
            let counts = &ring.by_consumer;
            if counts.finished.get() == 0 {
                continue;
            }
            verdicts.consumed += counts.consumed.get();
            verdicts.discarded += counts.discarded.get();
            verdicts.kept += counts.kept.get();
            verdicts.transmitted += counts.transmitted.get();
            reordered += counts.reordered.get();
            let lost = counts.dropped.read();
            dropped.merge(&lost);
            cpu.dropped.merge(&lost);
        }
        let done = verdicts.total() + dropped.total() + all.total();
        if queue.ledger.received.get() > done {
            for (ring, cpu) in queue.rings.iter().zip(&mut *cpus) {
                let (published, finished) = ring.gauge.read();
                cpu.backlog += published - finished;
            }
        }
        if let Some(owner) = cpus.get_mut(usize::from(queue.owner())) {
            owner.backlog += queue.ledger.in_lane.get();
        }
        Self { verdicts, dropped, reordered }
    }
}

fn queue_snapshot(
    queue: &QueueInfo,
    cpus: &[CpuId],
    rps_cpus: Vec<CpuId>,
    settled: &Settled,
    rings: &OfQueue,
) -> QueueSnapshot {
    let OfQueue { mut verdicts, mut dropped, reordered } = *rings;
    verdicts.transmitted += settled.packets;
    // Read before received packets, so that packets in flight are never negative.
    dropped.merge(&settled.dropped);
    dropped.merge(&queue.ledger.dropped.read());
    let received = queue.ledger.received.get();
    QueueSnapshot {
        device: queue.device.get(),
        kind: queue.kind.into(),
        mode: queue.mode.into(),
        queue: queue.number,
        cpu: cpus[usize::from(queue.owner())],
        hash: queue.hash.into(),
        rps_cpus,
        received,
        received_bytes: queue.ledger.received_bytes.get(),
        delivered: verdicts.total(),
        verdicts,
        dropped,
        in_flight: received - verdicts.total() - dropped.total(),
        hashed: queue.ledger.hashed.get(),
        unparsed: queue.ledger.unparsed.get(),
        fragments_full: queue.ledger.fragments_full.get(),
        fragments_aged: queue.ledger.fragments_aged.get(),
        copied: queue.ledger.copied.get(),
        passed: queue.ledger.passed.get(),
        device_counts: queue
            .device_counts
            .iter()
            .flat_map(|of| of.read())
            .map(|(name, count)| (name.into(), count))
            .collect(),
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
            lpc_full: queue.pool.lpc_full.get(),
            lpc_passed_by: queue.pool.lpc_passed_by.get(),
            lpc_wrong_numa: queue.pool.lpc_wrong_numa.get(),
            kept: queue.kept_pages.kept(),
        },
        error: queue.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    }
}
