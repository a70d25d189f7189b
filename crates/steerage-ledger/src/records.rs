//! The ledgers of an instance: the properties and counts of its queues, outputs and CPUs that all
//! threads may read.

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

/// The properties and counts of a queue that all threads may read.
#[derive(Debug)]
pub struct QueueInfo {
    pub device: DeviceName,
    pub kind: &'static str,
    pub mode: &'static str,
    pub number: usize,
    /// The index of the CPU that polls the queue. Relaxed: a thread that reads the index to wake
    /// that CPU has executed a fence before.
    pub owner: AtomicU16,
    /// True if the user chose the polling CPU, so that no policy chooses another CPU. Relaxed: the
    /// flag publishes no other memory.
    pub owner_is_chosen: AtomicBool,
    pub hash: &'static str,
    pub checks_order: bool,
    pub ledger: Arc<QueueLedger>,
    /// The ledgers of the queue's rings, by CPU.
    pub rings: Vec<Arc<RingLedger>>,
    pub pool: Arc<PoolCounters>,
    pub kept_pages: Arc<KeptPages>,
    /// The device's own counts, if the device has any.
    pub device_counts: Option<Arc<DeviceCounts>>,
    /// True if the device provides the memory blocks of its frames.
    pub lends: bool,
    /// True if short frames can be copied out of the device's pages.
    pub has_copybreak: bool,
    pub error: Mutex<Option<QueueError>>,
    /// The steering group that handlers see. Relaxed: the group changes only while no packet of the
    /// queue is in flight. Therefore a CPU that takes a frame from its ring sees, by the ring's
    /// ordering (P1), the group under which the frame was sent.
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

    /// Returns the queue's steering group, as handlers see it.
    pub fn group(&self) -> u16 {
        self.group.load(Ordering::Relaxed)
    }

    pub fn set_group(&self, group: u16) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// Records the error that ended the queue: a one-line message, and the error's position in the
    /// input.
    #[cold]
    pub fn failed(&self, message: String, offset: Option<u64>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(QueueError { message, offset });
    }

    /// Returns the number of frames in the rings, the lane and the parking lot. At rest, exactly
    /// these frames are in flight.
    pub fn held(&self) -> u64 {
        let unparked = self.ledger.unparked.get();
        let in_rings: u64 = self.rings.iter().map(|ring| ring.gauge.read()).map(|(p, f)| p - f).sum();
        in_rings + self.ledger.in_lane.get() + (self.ledger.parked.get() - unparked)
    }
}

/// The properties and counts of an output that all threads may read.
#[derive(Debug)]
#[non_exhaustive]
pub struct OutputInfo {
    pub name: DeviceName,
    pub kind: &'static str,
    /// The ledgers of the queues to the output, by CPU.
    pub ledgers: Vec<Arc<TxLedger>>,
}

impl OutputInfo {
    /// Makes an output with this name and kind, and a ledger for each CPU.
    pub fn new(name: DeviceName, kind: &'static str, ledgers: Vec<Arc<TxLedger>>) -> Self {
        Self { name, kind, ledgers }
    }
}

/// All ledgers of an instance.
#[derive(Debug)]
pub struct Ledgers {
    /// The ledgers of the CPUs, by the CPU's index.
    pub cpus: Vec<CpuLedger>,
    /// The queues, by number over all inputs.
    pub queues: Vec<QueueInfo>,
    /// The outputs, by number.
    pub outputs: Vec<OutputInfo>,
    counters: OnceLock<Counters>,
}

impl Ledgers {
    /// Makes the ledgers of this many CPUs.
    pub fn new(cpus: usize, queues: Vec<QueueInfo>, outputs: Vec<OutputInfo>) -> Self {
        let cpus = (0..cpus).map(|_| CpuLedger::default()).collect();
        Self { cpus, queues, outputs, counters: OnceLock::new() }
    }

    /// Shows the counters of the packet function in snapshots. Only the first call has an effect.
    pub fn show(&self, counters: Counters) {
        let _ = self.counters.set(counters);
    }

    /// Reads the counters of the packet function. `cpus` are the CPUs of the instance.
    pub fn counters(&self, cpus: &[CpuId]) -> Vec<CounterSnapshot> {
        self.counters.get().map(|counters| counters.snapshot(cpus)).unwrap_or_default()
    }

    /// Counts a wake-up of the CPU with the index `cpu`. `by` is the CPU that handed packets over;
    /// `None` stands for a wake-up for control.
    pub fn count_wake(&self, cpu: usize, by: Option<usize>) {
        match by {
            Some(by) => {
                self.cpus[by].wakes_sent.add(1);
                self.cpus[cpu].wakes_received.add(1);
            }
            None => self.cpus[cpu].wakes_for_control.add(1),
        }
    }

    /// Returns the number of frames in rings, parking lots and outputs.
    pub fn held(&self) -> u64 {
        self.queues.iter().map(QueueInfo::held).sum::<u64>() + self.held_by_outputs()
    }

    /// Returns the number of packets that outputs have taken and not finished.
    pub fn held_by_outputs(&self) -> u64 {
        self.outputs.iter().flat_map(|output| &output.ledgers).map(|ledger| ledger.held()).sum()
    }

    /// Waits until the outputs that finish packets later have finished them. The function waits as
    /// long as the outputs make progress, and at most [`OUTPUT_STUCK_AFTER`] without progress.
    /// After a stop was requested, the function waits at most [`DRAIN_MAX`] in all. Packets that
    /// are then unfinished count as lost. Call this function when no CPU sends any more.
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
        // Outputs that can still report exactly which packets were sent do so now.
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
