use crate::counts::MoveCause;

use crate::{CpuIndex, Plan};

/// An event. A packet CPU's event has no effect if its slice is already in a later phase, so a CPU
/// can store an event and send it again later.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The mask of the given queues changes, after the move of the current slice.
    Mask {
        /// The queues.
        queues: &'a [usize],
        /// The new mask of the queues, which is not empty.
        cpus: &'a [CpuIndex],
    },
    /// The CPUs that are online and available to the process. Other CPUs get no new buckets.
    Present(&'a [CpuIndex]),
    /// A policy changes the plan of a group, whose CPUs get equal shares of the buckets.
    Plan {
        /// The group.
        group: usize,
        /// The new plan of the group.
        plan: Plan,
    },
    /// A policy sets the bucket map of a group, and a plan that agrees with this map.
    Map {
        /// The group.
        group: usize,
        /// The CPU of each bucket. The group must [allow](crate::Moves::allows) this bucket map.
        map: &'a [CpuIndex],
        /// The plan from now on.
        plan: Plan,
        /// The reason for the move.
        cause: MoveCause,
    },

    /// The queue has parked the buckets, and the old CPUs have finished all frames that the queue
    /// sent before.
    FencesPassed {
        /// The queue.
        queue: usize,
        /// The slice.
        epoch: u64,
    },
    /// The handler of a CPU has returned the state of the buckets that leave the CPU.
    Left {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
        /// The buckets for which the handler has returned state.
        with_state: &'a [u16],
    },
    /// The handler of a CPU has taken the state of the buckets that arrive at the CPU.
    Arrived {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
    },
    /// The queue has sent its parked frames, and sends new frames to the new CPUs.
    Released {
        /// The queue.
        queue: usize,
        /// The slice.
        epoch: u64,
    },
    /// The queue has ended, and none of its frames is in flight.
    Closed {
        /// The queue.
        queue: usize,
    },
    /// The current phase of the move takes too long.
    Overdue {
        /// The CPU that detected the delay.
        by: CpuIndex,
        /// The old CPUs that have not passed all fences (recorded ring positions) of the queues
        /// that the CPU `by` polls.
        open: &'a [CpuIndex],
    },
    /// A CPU that was declared dead is alive again. The queues of this CPU use the current bucket
    /// map already.
    Revived(CpuIndex),

    /// A new CPU polls the queue. The CPU that polled the queue before no longer accesses it.
    Owner {
        /// The queue.
        queue: usize,
        /// The CPU.
        cpu: CpuIndex,
    },

    /// The CPU was declared dead in its handler. The CPU's current batch does not count as handled.
    Died(CpuIndex),
}

/// An action to be done while the state machine is locked. The outcome of the action is the next
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Declare this CPU dead ([`Event::Died`]) if it has made no progress for longer than the time
    /// limit, unless it holds frames of a queue that can wait, such as a file.
    Declare(CpuIndex),
    /// Revoke (discard without handling) the frames that this queue of a dead CPU has sent to dead
    /// CPUs. If all old CPUs that are alive have finished the frames of this queue, the next event
    /// is [`Event::FencesPassed`].
    ReadFences {
        /// The queue.
        queue: usize,
    },
}

/// The actions that follow from events. The buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// True if packet CPUs should read the state of the state machine again.
    pub changed: bool,
    /// The CPUs that must be woken to read the changed state, each once.
    pub wake: Vec<CpuIndex>,
    /// Actions that must be done in this order, while the state machine is locked.
    pub asks: Vec<Ask>,
}

impl Actions {
    /// Creates buffers for an instance with this many CPUs and queues.
    pub fn for_size(cpus: usize, queues: usize) -> Self {
        Self { changed: false, wake: Vec::with_capacity(cpus), asks: Vec::with_capacity(2 * (cpus + queues)) }
    }

    /// Adds `cpu` to the CPUs that must be woken.
    pub fn wake(&mut self, cpu: CpuIndex) {
        self.changed = true;
        if !self.wake.contains(&cpu) {
            self.wake.push(cpu);
        }
    }

    pub(crate) fn ask(&mut self, ask: Ask) {
        if !self.asks.contains(&ask) {
            self.asks.push(ask);
        }
    }
}
