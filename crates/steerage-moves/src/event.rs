//! The events that the state machine gets, and the actions that it returns.

use crate::counts::MoveCause;

use crate::{CpuIndex, Plan};

/// An event. Events from packet CPUs contain the epoch (the number) of their slice, a set of
/// buckets that move together. If that slice is already in a later phase of its move, the event has
/// no effect. Therefore a CPU can store an event and send it again later.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The mask of the given queues changes. The change of the mask begins after the current slice
    /// (the buckets that are moving now) has finished.
    Mask {
        /// The queues.
        queues: &'a [usize],
        /// The new mask of the queues, which is not empty.
        cpus: &'a [CpuIndex],
    },
    /// Sets which CPUs are present. CPUs that are not in this set are offline, or this process is
    /// no longer allowed to use them. They get no new buckets.
    Present(&'a [CpuIndex]),
    /// A policy changes the plan of a group (queues with the same mask). The plan determines which
    /// CPUs get buckets. The CPUs of the plan get equal shares of the buckets.
    Plan {
        /// The group.
        group: usize,
        /// The new plan of the group.
        plan: Plan,
    },
    /// A policy sets the bucket map of a group, and stores a plan that agrees with this map.
    Map {
        /// The group.
        group: usize,
        /// By bucket: its CPU. The group must [allow](crate::Moves::allows) this bucket map.
        map: &'a [CpuIndex],
        /// The plan from now on.
        plan: Plan,
        /// The reason for the move.
        cause: MoveCause,
    },

    /// The queue has parked the buckets of the slice. Parking means that the queue holds back new
    /// frames of the buckets that move. The buckets' old CPUs have finished all frames that the
    /// queue sent to them before it parked the buckets.
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
    /// The queue has sent its parked frames. After this event, the queue sends the frames of the
    /// moved buckets to the new CPUs.
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
        /// The old CPUs that have not passed their fences (markers in their rings) yet. Queues that
        /// the CPU `by` polls wait for these old CPUs.
        open: &'a [CpuIndex],
    },
    /// A CPU that was declared dead is alive again. The queues of this CPU already follow the
    /// current map.
    Revived(CpuIndex),

    /// A new CPU polls the queue from now on. The CPU that polled the queue before no longer
    /// accesses the queue.
    Owner {
        /// The queue.
        queue: usize,
        /// The CPU.
        cpu: CpuIndex,
    },

    /// The CPU was declared dead at its gate, which means that its handler was running. The dead
    /// CPU's current batch does not count as handled.
    Died(CpuIndex),
}

/// An action that must be done while the state machine is locked. The outcome of the action is the
/// next event of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Declare this CPU dead if it has made no progress for longer than the time limit. But do not
    /// declare the CPU dead if it holds frames of a queue that can wait, such as a file. If the CPU
    /// is declared dead, the next event is [`Event::Died`].
    Declare(CpuIndex),
    /// The CPU that polls this queue is dead and sends no frames. Revoke the frames that this queue
    /// has sent to dead CPUs. If the old CPUs that are alive have finished all frames of this
    /// queue, the next event is [`Event::FencesPassed`].
    ReadFences {
        /// The queue.
        queue: usize,
    },
}

/// The actions that the state machine returns for its events. The buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// True if packet CPUs should read the state of the state machine again.
    pub changed: bool,
    /// The CPUs that must be woken, because they must read the state of the state machine. Each CPU
    /// is in the list once.
    pub wake: Vec<CpuIndex>,
    /// Actions that must be done in this order, while the state machine is locked.
    pub asks: Vec<Ask>,
}

impl Actions {
    /// Creates buffers for actions, for an instance with this many CPUs and queues.
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
