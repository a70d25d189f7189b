//! The inputs and outputs of the state machine.

use crate::counts::MoveCause;

use crate::{CpuIndex, Plan};

/// An event. Events of packet CPUs name their slice by its epoch. If that slice has moved on, the
/// event does nothing. So a CPU can keep such an event and repeat it later.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    // ---- of control
    /// The mask of some queues changes. The change begins when the slice that is moving now has
    /// finished.
    Mask {
        /// The queues.
        queues: &'a [usize],
        /// Their new mask. Not empty.
        cpus: &'a [CpuIndex],
    },
    /// Sets the CPUs that are present. The others are offline or no longer belong to the process,
    /// and get no new buckets.
    Present(&'a [CpuIndex]),
    /// A policy changes the plan of a group. The CPUs of the plan get equal shares.
    Plan {
        /// The group.
        group: usize,
        /// Its new plan.
        plan: Plan,
    },
    /// A policy wants this map, and leaves a plan that agrees with it.
    Map {
        /// The group.
        group: usize,
        /// The CPU of each bucket, which the group must [allow](crate::Moves::allows).
        map: &'a [CpuIndex],
        /// The plan from now on.
        plan: Plan,
        /// The reason for the move.
        cause: MoveCause,
    },

    // ---- of packet CPUs
    /// The queue has parked the buckets of the slice, and everything that it sent to the old CPUs before is finished.
    FencesPassed {
        /// The queue.
        queue: usize,
        /// The slice.
        epoch: u64,
    },
    /// The handler of a CPU has given up its state of the buckets that leave.
    Left {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
        /// The buckets for which it had state.
        with_state: &'a [u16],
    },
    /// The handler of a CPU has taken the state of the buckets that arrive.
    Arrived {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
    },
    /// The queue has sent its parked frames, and sends the buckets' frames to the new CPUs.
    Released {
        /// The queue.
        queue: usize,
        /// The slice.
        epoch: u64,
    },
    /// The queue has ended and none of its frames is in flight.
    Closed {
        /// The queue.
        queue: usize,
    },
    /// The phase takes too long.
    Overdue {
        /// The CPU that noticed it.
        by: CpuIndex,
        /// The CPUs whose fences this CPU's queues wait for.
        open: &'a [CpuIndex],
    },
    /// A CPU that was declared dead is back. Its queues go by the map in force.
    Revived(CpuIndex),

    /// This CPU polls the queue from now on. The CPU that polled it before does not touch it any more.
    Owner {
        /// The queue.
        queue: usize,
        /// The CPU.
        cpu: CpuIndex,
    },

    // ---- outcomes
    /// The CPU was declared dead at its gate, so the batch that it was handling does not count.
    Died(CpuIndex),
}

/// An action that must be done while the machine is locked. The outcome is its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Declare this CPU dead if it has shown no sign of life for long enough and has no frames of a
    /// source that can wait:
    /// [`Event::Died`].
    Declare(CpuIndex),
    /// The owner of this queue is dead and sends nothing. Revoke the frames that it sent to dead
    /// CPUs. If the living old CPUs have finished the frames that it sent to them, the outcome is
    /// [`Event::FencesPassed`].
    ReadFences {
        /// The queue.
        queue: usize,
    },
}

/// The results of events. The buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// Whether something has changed that packet CPUs should check.
    pub changed: bool,
    /// The CPUs that should be woken to check it, each once.
    pub wake: Vec<CpuIndex>,
    /// Actions to do while the machine is locked, in this order.
    pub asks: Vec<Ask>,
}

impl Actions {
    /// Buffers for an instance of this size.
    pub fn for_size(cpus: usize, queues: usize) -> Self {
        Self { changed: false, wake: Vec::with_capacity(cpus), asks: Vec::with_capacity(2 * (cpus + queues)) }
    }

    /// `cpu` should be woken.
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
