//! The inputs and outputs of the state machine.

use crate::counts::MoveCause;

use crate::{CpuIndex, Plan};

/// An event. Events of packet CPUs name their slice by its epoch. If that slice has reached a later
/// phase, the event has no effect. So a CPU can keep such an event and repeat it later.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The mask of some queues changes. The change begins when the current slice has finished.
    Mask {
        /// The queues.
        queues: &'a [usize],
        /// The queues' new mask, which is not empty.
        cpus: &'a [CpuIndex],
    },
    /// Sets the CPUs that are present. Other CPUs are offline or no longer belong to the process,
    /// and get no new buckets.
    Present(&'a [CpuIndex]),
    /// A policy changes the plan of a group. The CPUs of the plan get equal shares.
    Plan {
        /// The group.
        group: usize,
        /// The new plan of the group.
        plan: Plan,
    },
    /// A policy sets the map of a group, and stores a plan that agrees with the map.
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

    /// The queue has parked the buckets of the slice, and the old CPUs have finished all frames
    /// that it sent to them before.
    FencesPassed {
        /// The queue.
        queue: usize,
        /// The slice.
        epoch: u64,
    },
    /// The handler of a CPU has returned its state of the leaving buckets.
    Left {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
        /// The buckets for which the handler had state.
        with_state: &'a [u16],
    },
    /// The handler of a CPU has taken the state of the arriving buckets.
    Arrived {
        /// The CPU.
        cpu: CpuIndex,
        /// The slice.
        epoch: u64,
    },
    /// The queue has sent its parked frames, and from now on sends the buckets' frames to the new
    /// CPUs.
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
        /// The CPU that detected the delay.
        by: CpuIndex,
        /// The CPUs for whose fences this CPU's queues wait.
        open: &'a [CpuIndex],
    },
    /// A CPU that was declared dead is alive again. The queues of this CPU follow the current map.
    Revived(CpuIndex),

    /// This CPU polls the queue from now on. The previous owner no longer accesses the queue.
    Owner {
        /// The queue.
        queue: usize,
        /// The CPU.
        cpu: CpuIndex,
    },

    /// The CPU was declared dead at its gate, so its current batch does not count.
    Died(CpuIndex),
}

/// An action to do while the machine is locked. The outcome of the action is the machine's next
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Declare this CPU dead if it has made no progress for long enough and has no frames of a
    /// source that can wait: [`Event::Died`].
    Declare(CpuIndex),
    /// The owner of this queue is dead and sends no frames. Revoke the frames that the queue sent
    /// to dead CPUs. If the living old CPUs have finished all of its frames, the outcome is
    /// [`Event::FencesPassed`].
    ReadFences {
        /// The queue.
        queue: usize,
    },
}

/// The actions that follow from events. The buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// True if packet CPUs should check the machine's state.
    pub changed: bool,
    /// The CPUs to wake for that check, each CPU once.
    pub wake: Vec<CpuIndex>,
    /// Actions to do while the machine is locked, in this order.
    pub asks: Vec<Ask>,
}

impl Actions {
    /// Creates buffers for an instance of this size.
    pub fn for_size(cpus: usize, queues: usize) -> Self {
        Self { changed: false, wake: Vec::with_capacity(cpus), asks: Vec::with_capacity(2 * (cpus + queues)) }
    }

    /// Adds `cpu` to the CPUs to wake.
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
