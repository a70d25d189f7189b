//! What the CPUs of one instance share.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use steerage_mem::park::{Bell, Sleepers};
use steerage_mem::{Home, Region};

use crate::cpu::CpuId;
use crate::device_name::DeviceName;
use crate::gate::Gate;
use crate::ledger::{
    CpuLedger, CpuSnapshot, DropReason, OutputSnapshot, PoolSnapshot, QueueError, QueueLedger, QueueSnapshot,
    RingLedger, Snapshot, TxLedger, Verdicts,
};
use crate::limits::{DRAIN_LOOK, DRAIN_MAX, LEAVE_BEHIND_AFTER, OUTPUT_STUCK_AFTER};
use crate::moves::Steering;
use crate::platform::Timestamp;
use crate::pool::{PoolCounters, SharedPool};
use crate::rps_map::CpuIndex;
use crate::rx::DeviceError;
use crate::tx::{Deferred, Settled};

/// `M` is a bucket's state when it moves: all that is shared of the handler's type. What makes handlers is not shared, so
/// that a handle which outlives the instance does not keep it.
pub(crate) struct Shared<M> {
    pub(crate) steering: Steering<M>,
    pub(crate) core: Arc<Core>,
}

/// The part of it that does not depend on the handler.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) sleepers: Sleepers,
    pub(crate) bells: Vec<Bell>,
    pub(crate) gates: Vec<Gate>,
    pub(crate) cpu_ledgers: Vec<CpuLedger>,
    pub(crate) queues: Vec<QueueInfo>,
    pub(crate) outputs: Vec<OutputInfo>,
    /// By CPU: the shared pool, as it is seen from the CPU's node.
    pub(crate) pools: Vec<Arc<SharedPool>>,
    pub(crate) region: Arc<Region>,
    pub(crate) memory_bytes: u64,
    /// Of each ring.
    pub(crate) ring_slots: usize,
    pub(crate) start: Instant,
    /// Queues that are not closed: at 0 everything that came in is finished.
    pub(crate) open_queues: AtomicUsize,
    pub(crate) stopping: AtomicBool,
}

/// What is known of a queue from outside.
#[derive(Debug)]
pub(crate) struct QueueInfo {
    pub(crate) device: DeviceName,
    pub(crate) kind: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) number: usize,
    pub(crate) owner: CpuIndex,
    pub(crate) hash: &'static str,
    pub(crate) checks_order: bool,
    pub(crate) ledger: Arc<QueueLedger>,
    /// By CPU.
    pub(crate) rings: Vec<Arc<RingLedger>>,
    pub(crate) pool: Arc<PoolCounters>,
    pub(crate) home: Arc<Home>,
    /// Its device lends memory of its own.
    pub(crate) lends: bool,
    pub(crate) error: Mutex<Option<QueueError>>,
    /// The steering group that handlers know it by. Relaxed throughout: it changes only while nothing of the queue is under
    /// way, so whoever takes a frame sees, by the frame's ring (P1), the group that it was sent under.
    pub(crate) group: AtomicU16,
}

/// What is known of an output from outside.
#[derive(Debug)]
pub(crate) struct OutputInfo {
    pub(crate) name: DeviceName,
    pub(crate) kind: &'static str,
    /// By CPU.
    pub(crate) ledgers: Vec<Arc<TxLedger>>,
}

impl OutputInfo {
    fn snapshot(&self, settled: &Settled) -> OutputSnapshot {
        let mut dropped = settled.dropped;
        self.ledgers.iter().for_each(|ledger| dropped.merge(&ledger.dropped.read()));
        OutputSnapshot {
            device: self.name.get(),
            kind: self.kind,
            packets: settled.packets + self.ledgers.iter().map(|ledger| ledger.packets.get()).sum::<u64>(),
            bytes: settled.bytes + self.ledgers.iter().map(|ledger| ledger.bytes.get()).sum::<u64>(),
            dropped,
            held: self.ledgers.iter().map(|ledger| ledger.held()).sum(),
            error: self.ledgers.iter().find_map(|ledger| ledger.error()),
        }
    }
}

/// What outputs have settled of what they took, added up in the three ways in which the ledger shows it.
struct SettledBy {
    output: Vec<Settled>,
    queue: Vec<Settled>,
    /// What came from receive queues.
    cpu: Vec<Settled>,
    /// What the CPU's function made.
    originated: Vec<Settled>,
}

impl SettledBy {
    fn of(core: &Core) -> Self {
        let none = |count: usize| vec![Settled::default(); count];
        let (queues, cpus) = (core.queues.len(), core.cpus.len());
        let mut by =
            Self { output: none(core.outputs.len()), queue: none(queues), cpu: none(cpus), originated: none(cpus) };
        for (output, info) in core.outputs.iter().enumerate() {
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

impl Core {
    /// Wakes a CPU if it sleeps; to be called after the work was published and
    /// [`Sleepers::after_publishing`] was passed. Returns whether it slept.
    pub(crate) fn wake(&self, cpu: usize) -> bool {
        let sleeps = self.sleepers.must_wake(cpu);
        if sleeps {
            self.bells[cpu].ring();
        }
        sleeps
    }

    pub(crate) fn wake_all(&self) {
        self.sleepers.after_publishing();
        (0..self.cpus.len()).for_each(|cpu| {
            self.wake(cpu);
        });
    }

    pub(crate) fn stop(&self) {
        // T1. Relaxed: nothing is handed over by it; that sleepers see it is the fence's doing in `wake_all`.
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_all();
    }

    /// Whether a stop was asked for.
    #[inline(always)]
    pub(crate) fn is_stopping(&self) -> bool {
        // T1.
        self.stopping.load(Ordering::Relaxed)
    }

    /// Counts a queue as closed; whoever closes the last one wakes all.
    pub(crate) fn close_one(&self) {
        // O1, release: pairs with O2. Acquire, so that the last one passes on what the others did before.
        if self.open_queues.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake_all();
        }
    }

    /// Whether every queue has ended and all that came in is finished.
    #[inline(always)]
    pub(crate) fn all_closed(&self) -> bool {
        // O2, acquire: pairs with O1. Who sees it sees every count of the ledger as it is at the end, and all pages home.
        self.open_queues.load(Ordering::Acquire) == 0
    }
}

impl<M> Shared<M> {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (masks, moves, groups, others) = {
            let state = self.steering.lock();
            let masks: Vec<Vec<CpuIndex>> = (0..self.core.queues.len()).map(|q| state.mask_of(q).to_vec()).collect();
            (masks, state.counts, state.group_snapshots(&self.core.cpus), state.others.clone())
        };
        let core = &self.core;
        core.collect_kept();
        // Before what was received is read: see the ledger's head.
        let settled = SettledBy::of(core);
        let cpus = (0..core.cpus.len()).map(|cpu| core.cpu_snapshot(cpu, others[cpu], &settled)).collect();
        let of_queues = core.queues.iter().zip(&settled.queue);
        let mut queues: Vec<QueueSnapshot> =
            of_queues.map(|(queue, settled)| queue.snapshot(&core.cpus, settled)).collect();
        for (queue, mask) in queues.iter_mut().zip(masks) {
            queue.rps_cpus = mask.into_iter().map(|cpu| core.cpus[usize::from(cpu)]).collect();
        }
        Snapshot {
            elapsed: core.start.elapsed(),
            queues,
            cpus,
            outputs: core
                .outputs
                .iter()
                .zip(&settled.output)
                .map(|(output, settled)| output.snapshot(settled))
                .collect(),
            moves,
            groups,
            backing: core.region.backing(),
            page_bytes: core.region.page_bytes() as u64,
            pages: core.region.pages() as u64,
            pages_free: core.pools[0].free() as u64,
            memory_bytes: core.memory_bytes,
        }
    }
}

impl Core {
    /// What was kept beyond its queue's end goes to the shared pool: its owner is gone.
    fn collect_kept(&self) {
        if self.all_closed() {
            let mut pages = Vec::new();
            self.queues.iter().for_each(|queue| queue.home.collect(|page| pages.push(page)));
            self.pools[0].give_back(&mut pages);
        }
    }

    /// Waits until outputs that finish packets later have finished them: as long as they get on, or until
    /// [`OUTPUT_STUCK_AFTER`]; once a stop was asked for, [`DRAIN_MAX`] in all. What is left then is lost. To be called when no CPU
    /// sends any more.
    pub(crate) fn finish_outputs(&self) {
        let held = || self.outputs.iter().flat_map(|output| &output.ledgers).map(|ledger| ledger.held()).sum::<u64>();
        let deferred = || self.outputs.iter().flat_map(|output| &output.ledgers).filter_map(|of| of.deferred.as_ref());
        let (mut left, mut since, mut stopping) = (held(), Instant::now(), None);
        while left > 0 && since.elapsed() < OUTPUT_STUCK_AFTER {
            if self.is_stopping() && stopping.get_or_insert_with(Instant::now).elapsed() >= DRAIN_MAX {
                break;
            }
            std::thread::sleep(DRAIN_LOOK);
            let now_left = held();
            if now_left < left {
                (left, since) = (now_left, Instant::now());
            }
        }
        deferred().for_each(Deferred::ask_to_end);
        // Those that can still say exactly what was sent do so.
        let asked = Instant::now();
        while held() > 0 && asked.elapsed() < LEAVE_BEHIND_AFTER {
            std::thread::sleep(DRAIN_LOOK);
        }
        for output in self.outputs.iter().filter(|output| output.ledgers.iter().any(|ledger| ledger.held() > 0)) {
            let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
            output.ledgers[0].failed(&DeviceError::new(output.name.to_string(), "send what it holds", cause));
        }
        deferred().for_each(Deferred::close);
    }

    fn cpu_snapshot(&self, cpu: usize, others: f64, settled: &SettledBy) -> CpuSnapshot {
        let ledger = &self.cpu_ledgers[cpu];
        let mut dropped = settled.cpu[cpu].dropped;
        let originated = &settled.originated[cpu];
        let now = Timestamp::from_nanos(self.start.elapsed().as_nanos() as u64);
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
            cpu: self.cpus[cpu],
            polled: ledger.polled.get(),
            handed_in: ledger.handed_in.get(),
            processed: ledger.processed.get(),
            inline: ledger.inline.get(),
            dropped,
            busy: std::time::Duration::from_nanos(ledger.busy_nanos.get()),
            rounds: ledger.rounds.get(),
            time_squeeze: ledger.time_squeeze.get(),
            backlog,
            backlog_max: ledger.backlog_max.get(),
            wakes_sent: ledger.wakes_sent.get(),
            wakes_received: ledger.wakes_received.get(),
            panics: ledger.panics.get(),
            deaths: ledger.deaths.get(),
            originated: ledger.originated.get() + originated.packets,
            originated_dropped: ledger.originated_dropped.get() + originated.dropped.total(),
            others,
            in_handler: self.gates[cpu].inside_since().map(|since| now.since(Timestamp::from_nanos(since))),
        }
    }
}

impl QueueInfo {
    fn snapshot(&self, cpus: &[CpuId], settled: &Settled) -> QueueSnapshot {
        let mut verdicts = Verdicts { transmitted: settled.packets, ..Verdicts::default() };
        let mut dropped = settled.dropped;
        let mut reordered = 0;
        // What was delivered and dropped is read before what was received: see the ledger's head.
        for ring in &self.rings {
            let counts = &ring.by_consumer;
            verdicts.consumed += counts.consumed.get();
            verdicts.discarded += counts.discarded.get();
            verdicts.kept += counts.kept.get();
            verdicts.transmitted += counts.transmitted.get();
            dropped.merge(&counts.dropped.read());
            reordered += counts.reordered.get();
        }
        dropped.merge(&self.ledger.dropped.read());
        let received = self.ledger.received.get();
        QueueSnapshot {
            device: self.device.get(),
            kind: self.kind,
            mode: self.mode,
            queue: self.number,
            cpu: cpus[usize::from(self.owner)],
            hash: self.hash,
            rps_cpus: Vec::new(),
            received,
            received_bytes: self.ledger.received_bytes.get(),
            verdicts,
            dropped,
            in_flight: received - verdicts.total() - dropped.total(),
            unparsed: self.ledger.unparsed.get(),
            fragments_full: self.ledger.fragments_full.get(),
            fragments_aged: self.ledger.fragments_aged.get(),
            copied: self.ledger.copied.get(),
            passed: self.ledger.passed.get(),
            reordered: self.checks_order.then_some(reordered),
            pool: PoolSnapshot {
                alloc_fast: self.pool.alloc_fast.get(),
                alloc_slow: self.pool.alloc_slow.get(),
                alloc_empty: self.pool.alloc_empty.get(),
                recycle_cached: self.pool.recycle_cached.get(),
                recycle_cache_full: self.pool.recycle_cache_full.get(),
                recycle_kept: self.pool.recycle_kept.get(),
                rx_copybreak: self.pool.rx_copybreak.get(),
                lpc_warm_up: self.pool.lpc_warm_up.get(),
                lpc_passed_by: self.pool.lpc_passed_by.get(),
                lpc_wrong_numa: self.pool.lpc_wrong_numa.get(),
                kept: self.home.kept(),
            },
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// What rings and parking lot hold: at rest, exactly what is in flight.
    pub(crate) fn held(&self) -> u64 {
        let unparked = self.ledger.unparked.get();
        let in_rings: u64 = self.rings.iter().map(|ring| ring.gauge.read()).map(|(p, f)| p - f).sum();
        in_rings + (self.ledger.parked.get() - unparked)
    }
}
