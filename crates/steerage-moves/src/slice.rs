use crate::CpuIndex;

/// A bucket that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketMove {
    /// The bucket.
    pub bucket: u16,
    /// The bucket's CPU before the move.
    pub from: CpuIndex,
    /// The bucket's CPU after the move.
    pub to: CpuIndex,
    /// True if the old CPU's handler has returned the bucket's state, and the new CPU's handler has
    /// not taken the state yet.
    pub has_state: bool,
}

/// The phase of a slice. The [crate's description](crate) has a table of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MovePhase {
    /// The queues park the frames of the buckets and wait for their fences.
    Park,
    /// The handlers of the old CPUs return the state of the flows in the buckets.
    Leave,
    /// The handlers of the new CPUs take the state of the flows in the buckets.
    Arrive,
    /// The queues send the parked frames.
    Release,
}

/// The buckets that currently move together.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The number of this slice, counted from 1.
    pub epoch: u64,
    /// The current phase of the slice.
    pub phase: MovePhase,
    /// The moves of the slice's buckets, sorted by bucket.
    pub moves: Vec<BucketMove>,
    /// The group before the move, which is not `group_after` if a queue changes its group.
    pub group_before: u16,
    /// The number of the group after the move.
    pub group_after: u16,
    /// True if the move of this slice took too long, so that queues drop new frames of its buckets
    /// instead of parking the frames.
    pub revoked: bool,
    /// The CPUs from which buckets move away, each once.
    pub old_cpus: Vec<CpuIndex>,
    pub(crate) queues: Vec<usize>,
    pub(crate) with_state: bool,
    /// The queues (in the phases `Park` and `Release`) or CPUs (in `Leave` and `Arrive`) that have
    /// not yet finished the phase.
    pub(crate) waiting: Vec<usize>,
}

impl Slice {
    pub(crate) fn new(buckets: usize, cpus: usize, queues: usize) -> Self {
        Self {
            epoch: 0,
            phase: MovePhase::Release,
            moves: Vec::with_capacity(buckets),
            group_before: 0,
            group_after: 0,
            revoked: false,
            old_cpus: Vec::with_capacity(cpus),
            queues: Vec::with_capacity(queues),
            with_state: false,
            waiting: Vec::with_capacity(cpus.max(queues)),
        }
    }

    /// Returns true if the current phase waits for the queue or CPU `who`.
    pub fn waits_for(&self, who: usize) -> bool {
        self.waiting.contains(&who)
    }

    /// Returns true if the queue takes part in the move of this slice.
    pub fn includes(&self, queue: usize) -> bool {
        self.queues.contains(&queue)
    }

    /// Returns true if this slice has the number `epoch` and is in the phase `phase`.
    pub fn is_at(&self, epoch: u64, phase: MovePhase) -> bool {
        self.epoch == epoch && self.phase == phase
    }

    pub(crate) fn done(&mut self, who: usize) {
        self.waiting.retain(|waiting| *waiting != who);
    }
}
