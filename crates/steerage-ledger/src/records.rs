//! The ledgers of an instance: the facts and counts of its queues, outputs and CPUs that other threads may read.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use steerage_mem::KeptPages;

use crate::counts::{CpuLedger, PoolCounters, QueueError, QueueLedger, RingLedger, TxLedger};
use crate::device_name::DeviceName;

/// The facts and counts of a queue that other threads may read.
#[derive(Debug)]
pub struct QueueInfo {
    pub device: DeviceName,
    pub kind: &'static str,
    pub mode: &'static str,
    pub number: usize,
    pub owner: u16,
    pub hash: &'static str,
    pub checks_order: bool,
    pub ledger: Arc<QueueLedger>,
    /// By CPU.
    pub rings: Vec<Arc<RingLedger>>,
    pub pool: Arc<PoolCounters>,
    pub kept_pages: Arc<KeptPages>,
    /// The device lends memory of its own.
    pub lends: bool,
    pub error: Mutex<Option<QueueError>>,
    /// The steering group that handlers see. Relaxed throughout: it changes only while no packet of the queue is in flight. So
    /// a CPU that takes a frame sees, by the frame's ring (P1), the group under which the frame was sent.
    pub group: AtomicU16,
}

impl QueueInfo {
    /// The queue's steering group, as handlers see it.
    pub fn group(&self) -> u16 {
        self.group.load(Ordering::Relaxed)
    }

    pub fn set_group(&self, group: u16) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// Notes the error that ended the queue: a one-line message, and its position in the input.
    #[cold]
    pub fn failed(&self, message: String, offset: Option<u64>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(QueueError { message, offset });
    }

    /// The number of frames in the rings and the parking lot. At rest these are exactly the frames in flight.
    pub fn held(&self) -> u64 {
        let unparked = self.ledger.unparked.get();
        let in_rings: u64 = self.rings.iter().map(|ring| ring.gauge.read()).map(|(p, f)| p - f).sum();
        in_rings + (self.ledger.parked.get() - unparked)
    }
}

/// The facts and counts of an output that other threads may read.
#[derive(Debug)]
#[non_exhaustive]
pub struct OutputInfo {
    pub name: DeviceName,
    pub kind: &'static str,
    /// By CPU.
    pub ledgers: Vec<Arc<TxLedger>>,
}

impl OutputInfo {
    /// An output of that name and kind, with the ledger of each CPU.
    pub fn new(name: DeviceName, kind: &'static str, ledgers: Vec<Arc<TxLedger>>) -> Self {
        Self { name, kind, ledgers }
    }
}

/// All ledgers of an instance.
#[derive(Debug)]
pub struct Ledgers {
    /// By the index of the CPU.
    pub cpus: Vec<CpuLedger>,
    /// By the number of the queue, counted over all inputs.
    pub queues: Vec<QueueInfo>,
    /// By the number of the output.
    pub outputs: Vec<OutputInfo>,
}

impl Ledgers {
    /// The number of frames in rings, parking lots and outputs.
    pub fn held(&self) -> u64 {
        self.queues.iter().map(QueueInfo::held).sum::<u64>() + self.held_by_outputs()
    }

    /// The number of packets that outputs have taken and not finished.
    pub fn held_by_outputs(&self) -> u64 {
        self.outputs.iter().flat_map(|output| &output.ledgers).map(|ledger| ledger.held()).sum()
    }
}
