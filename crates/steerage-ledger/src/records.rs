//! The properties and counts of an instance's queues, outputs and CPUs, for all threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use steerage_mem::KeptPages;
use steerage_topology::CpuId;

use crate::counts::{CpuLedger, PoolCounters, QueueError, QueueLedger, RingLedger, TxLedger};
use crate::deferred::Deferred;
use crate::device_counts::DeviceCounts;
use crate::device_error::DeviceError;
use crate::device_name::DeviceName;
use crate::limits::{DRAIN_LOOK, DRAIN_MAX, LEAVE_BEHIND_AFTER, OUTPUT_STUCK_AFTER};
use crate::named::{CounterSnapshot, Counters};

/// The properties and counts of a receive queue.
#[derive(Debug)]
pub struct QueueInfo {
    pub device: DeviceName,
    pub kind: &'static str,
    pub mode: &'static str,
    pub number: usize,
    /// The index of the CPU that polls the queue. `Relaxed` is enough, because a thread that reads
    /// the index to wake the CPU executes a memory fence before the read.
    pub owner: AtomicU16,
    /// True if no policy may change the polling CPU. `Relaxed`: no other memory depends on it.
    pub owner_is_chosen: AtomicBool,
    pub hash: &'static str,
    pub checks_order: bool,
    pub ledger: Arc<QueueLedger>,
    /// The rings from this queue, by CPU.
    pub rings: Vec<Arc<RingLedger>>,
    pub pool: Arc<PoolCounters>,
    pub kept_pages: Arc<KeptPages>,
    /// The counts that only devices of this kind have, if any.
    pub device_counts: Option<Arc<DeviceCounts>>,
    pub lends: bool,
    pub has_copybreak: bool,
    pub error: Mutex<Option<QueueError>>,
    /// The group of the queue, as handlers get it in a `BucketId`. `Relaxed` is enough: the group
    /// of a queue changes only while no packet of the queue is in flight. A CPU that takes a later
    /// frame from a ring sees the new group, because publishing a frame is a release store (P1).
    pub group: AtomicU16,
}

impl QueueInfo {
    /// Returns the index of the CPU that polls the queue.
    pub fn owner(&self) -> u16 {
        self.owner.load(Ordering::Relaxed)
    }

    pub fn set_owner(&self, cpu: u16) {
        self.owner.store(cpu, Ordering::Relaxed);
    }

    pub fn group(&self) -> u16 {
        self.group.load(Ordering::Relaxed)
    }

    pub fn set_group(&self, group: u16) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// Records the error that ended the queue: a message of one line, and the byte offset in the
    /// input, if any.
    #[cold]
    pub fn failed(&self, message: String, offset: Option<u64>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(QueueError { message, offset });
    }

    /// Returns how many frames are in the rings, in the lane (the frames for the polling CPU
    /// itself) and in the parking lot. When no CPU runs, the held frames are the packets in flight.
    pub fn held(&self) -> u64 {
        let unparked = self.ledger.unparked.get();
        let in_rings: u64 = self.rings.iter().map(|ring| ring.gauge.read()).map(|(p, f)| p - f).sum();
        in_rings + self.ledger.in_lane.get() + (self.ledger.parked.get() - unparked)
    }
}

/// The properties and counts of an output.
#[derive(Debug)]
#[non_exhaustive]
pub struct OutputInfo {
    pub name: DeviceName,
    pub kind: &'static str,
    /// The counts of the packets that each CPU sends to this output, by CPU.
    pub ledgers: Vec<Arc<TxLedger>>,
}

impl OutputInfo {
    /// Creates an output with a ledger for each CPU.
    pub fn new(name: DeviceName, kind: &'static str, ledgers: Vec<Arc<TxLedger>>) -> Self {
        Self { name, kind, ledgers }
    }
}

/// All ledgers of an instance.
#[derive(Debug)]
pub struct Ledgers {
    pub cpus: Vec<CpuLedger>,
    /// The receive queues, numbered over all inputs.
    pub queues: Vec<QueueInfo>,
    /// The outputs, by number.
    pub outputs: Vec<OutputInfo>,
    counters: OnceLock<Counters>,
}

impl Ledgers {
    /// Creates the ledgers of an instance with `cpus` CPUs.
    pub fn new(cpus: usize, queues: Vec<QueueInfo>, outputs: Vec<OutputInfo>) -> Self {
        let cpus = (0..cpus).map(|_| CpuLedger::default()).collect();
        Self { cpus, queues, outputs, counters: OnceLock::new() }
    }

    /// Shows the counters of the packet function in snapshots. Only the first call has an effect.
    pub fn show(&self, counters: Counters) {
        let _ = self.counters.set(counters);
    }

    /// Returns the packet function's counters. `cpus` are the CPUs of the instance.
    pub fn counters(&self, cpus: &[CpuId]) -> Vec<CounterSnapshot> {
        self.counters.get().map(|counters| counters.snapshot(cpus)).unwrap_or_default()
    }

    /// Counts a wake-up of `cpu`. `by` is the CPU that woke `cpu` for packets, or `None` if `cpu`
    /// was woken for another reason.
    pub fn count_wake(&self, cpu: usize, by: Option<usize>) {
        match by {
            Some(by) => {
                self.cpus[by].wakes_sent.add(1);
                self.cpus[cpu].wakes_received.add(1);
            }
            None => self.cpus[cpu].wakes_for_control.add(1),
        }
    }

    /// Returns how many frames are in rings, in the parking lots of moving buckets, and in outputs.
    pub fn held(&self) -> u64 {
        self.queues.iter().map(QueueInfo::held).sum::<u64>() + self.held_by_outputs()
    }

    /// Returns how many packets the outputs have accepted but not finished yet.
    pub fn held_by_outputs(&self) -> u64 {
        self.outputs.iter().flat_map(|output| &output.ledgers).map(|ledger| ledger.held()).sum()
    }

    /// Waits until the outputs have sent or lost all packets that they hold. The wait ends early if
    /// the outputs make no progress for [`OUTPUT_STUCK_AFTER`]. After a stop, the wait takes at
    /// most [`DRAIN_MAX`]. Packets that the outputs still hold after the wait count as lost. Call
    /// `finish_outputs` after all CPUs have stopped sending.
    pub fn finish_outputs(&self, is_stopping: impl Fn() -> bool) {
        let deferred = || self.outputs.iter().flat_map(|output| &output.ledgers).filter_map(|of| of.deferred.as_ref());
        let (mut left, mut since, mut stopping) = (self.held_by_outputs(), Instant::now(), None);
        while left > 0 && since.elapsed() < OUTPUT_STUCK_AFTER {
            if is_stopping() && stopping.get_or_insert_with(Instant::now).elapsed() >= DRAIN_MAX {
                break;
            }
            thread::sleep(DRAIN_LOOK);
            let now_left = self.held_by_outputs();
            if now_left < left {
                (left, since) = (now_left, Instant::now());
            }
        }
        deferred().for_each(Deferred::ask_to_end);
        let asked = Instant::now();
        while self.held_by_outputs() > 0 && asked.elapsed() < LEAVE_BEHIND_AFTER {
            thread::sleep(DRAIN_LOOK);
        }
        for output in self.outputs.iter().filter(|output| output.ledgers.iter().any(|ledger| ledger.held() > 0)) {
            let cause = io::Error::from(io::ErrorKind::TimedOut);
            output.ledgers[0].failed(&DeviceError::new(output.name.to_string(), "send what it holds", cause));
        }
        deferred().for_each(Deferred::close);
    }
}
