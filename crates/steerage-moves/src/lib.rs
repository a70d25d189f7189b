//! Moves buckets between CPUs without reordering packets: the protocol, as a pure state machine.
//!
//! The state machine gets events ([`Moves::on`]) and returns [`Actions`]. The state machine has no
//! clock, no atomics and no lock, and does not access rings or handlers. An action that has an
//! outcome ([`Ask`]) is executed while the state machine is locked. The outcome of the action is
//! the state machine's next event. Therefore the state machine can be tested alone. A test visits
//! every state that an instance with few CPUs, buckets and packets can reach.
//!
//! Buckets move in sets called *slices*. The buckets of a slice move together, in four phases. A
//! phase of a move ends when all participants have done their part of the phase. When the last
//! participant has reported this by an event, the next phase begins.
//!
//! | phase | participants | part | event |
//! |---|---|---|---|
//! | park | each queue | parks the buckets' frames, waits for its fences | [`FencesPassed`](Event::FencesPassed) |
//! | leave | each old CPU | its handler returns its state of the buckets | [`Left`](Event::Left) |
//! | arrive | each new CPU | its handler takes that state | [`Arrived`](Event::Arrived) |
//! | release | each queue | sends the parked frames to the new CPU | [`Released`](Event::Released) |
//!
//! The queues of the group take part in the move. To park the buckets, a queue writes their frames
//! to its parking lot (the frames that it holds back). For each old CPU of the buckets, the queue
//! records the current tail of the queue's ring to that CPU as a *fence*. A fence is passed when
//! the finished index of the ring has passed the recorded tail. After the release phase, new frames
//! of the buckets go directly to the new CPU.
//!
//! The park phase ends only when *every* queue of the group has parked the buckets *and* all frames
//! that these queues sent before are finished. Therefore no bucket is on two CPUs, and no frame of
//! a bucket overtakes another frame. The park phase never ends before all fences (the recorded ring
//! tails) are passed. If a phase of a move takes too long ([`Overdue`](Event::Overdue)), new frames
//! of the moving buckets are dropped (`moving`). If a phase of a move takes too long, the old CPU
//! also discards the moving buckets' frames that it has not begun to handle (`revoked`). A CPU that
//! makes no progress is declared dead only at its gate, which means while it runs its handler. The
//! packets of a dead CPU's current batch count as dropped (`revoked`). Queues that can wait, such
//! as files, are not polled during a move. Therefore they lose no frames if a phase of the move
//! takes too long.
//!
//! Details of the protocol:
//!
//! * **A sleeping producer (a CPU that polls queues) is woken. The producer's fences do not count
//!   as passed while it sleeps.** Without the wake-up, another CPU would have to act for the
//!   producer, and the protocol would need a state for this. The cost is one wake-up for each CPU
//!   that polls a queue whose buckets move. Waking the producers takes time on the CPU that changes
//!   the mask.
//! * **The handlers' flow state moves in separate phases** (leave, arrive), and not together with
//!   the packets. Therefore the new CPU has the flow state before it gets the first packet, and
//!   need not check for new state before each batch.
//! * **A CPU can be declared dead only inside its handler.** Outside of the handler, the CPU may be
//!   sending frames by a bucket map that is about to change. In the simulator, frames were
//!   reordered if a CPU was declared dead outside of its handler. A program may itself call `step`,
//!   which runs one round (one pass of a CPU's loop). Therefore, if such a program stops calling
//!   `step`, a move is delayed until the program calls `step` again. While a move is delayed, new
//!   packets of the moving buckets are dropped and counted (`moving`).
//! * **If a dead CPU's queues have sent frames to another dead CPU, these frames are revoked for
//!   both CPUs.** No other CPU may touch the producer's or the consumer's end of the rings between
//!   these two CPUs.
//! * **A queue that changes its group parks all of its buckets at once.** Handlers identify a
//!   bucket by its group and its number. Therefore all buckets of a queue must change their group
//!   at the same point in the queue's sequence of packets. If all queues of a group move, the state
//!   of the group's flows moves too. If a queue leaves a group in which other queues stay, the
//!   queue's flows start without state in the new group.
//! * **Moves of queues that can wait have no time limit.** For example, if a capture file is in the
//!   group, no move times out and no frame is revoked.
//! * **If all queues of a group have ended, the group is not used again.** A move may have ended
//!   because all queues ended. The state of the flows has then stayed on the old CPUs. If a queue
//!   later gets the same mask as a group whose queues have ended, the queue gets a group with
//!   another number.
//! * **A queue that has ended takes no part in the park phase any more** when none of its frames is
//!   in flight. If an ended queue still took part in park phases, it could never be closed while
//!   masks keep changing. The search for buckets that must move continues after the last bucket of
//!   the previous slice (set of moving buckets). Therefore every bucket is moved eventually.
//!
//! The state machine never calls a policy to assign buckets to CPUs. Each group has a [`Plan`],
//! which a policy has stored in the state machine. When a mask or the set of usable CPUs changes,
//! the state machine derives the group's bucket map from the plan.
//!
//! Events from packet CPUs do not allocate memory. All buffers have their full size from the start,
//! or from the event that creates their group.
//!
//! | module | what it holds |
//! |---|---|
//! | `event` | the events and the actions |
//! | `counts` | why buckets moved, and how many |
//! | `protocol` | the phases, the end of a queue, late phases, deaths |
//! | `groups` | the queues that share a map, and the CPUs that may have its buckets |
//! | `transit` | handler state that moves to another CPU |
//! | `plan`, `map`, `slice` | the default placement of buckets; maps; the buckets that move
//! together |
#![forbid(unsafe_code)]

mod counts;
mod event;
mod groups;
mod last_slice;
mod map;
mod plan;
mod protocol;
mod slice;
#[cfg(test)]
mod tests;
mod transit;

pub use counts::{MoveCause, MoveCounts};
pub use event::{Actions, Ask, Event};
pub use groups::GroupVersion;
pub use last_slice::LastSlice;
pub use map::{cpus_in, even_share};
pub use plan::Plan;
pub use slice::{BucketMove, MovePhase, Slice};
pub use transit::{States, Transit};

use groups::Group;
use map::Scratch;

/// The index of a CPU among the CPUs of the instance, counted from 0. (The kernel's CPU numbers may
/// have gaps.)
pub type CpuIndex = u16;

/// The initial settings of a queue.
#[derive(Clone, Debug)]
pub struct QueueSetup {
    /// The CPU that polls the queue.
    pub owner: CpuIndex,
    /// True if the queue can wait, so that none of its frames may be lost.
    pub can_wait: bool,
    /// The CPUs over which the packets of the queue are spread. Not empty.
    pub mask: Vec<CpuIndex>,
}

/// The initial settings of an instance.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of CPUs.
    pub cpus: usize,
    /// The number of buckets in each map, at most 65,536.
    pub buckets: usize,
    /// The number of buckets of a group that move at a time.
    pub slice_buckets: usize,
    /// The receive queues.
    pub queues: Vec<QueueSetup>,
    /// For each CPU that polls a queue: the other CPUs, in the order in which they should get the
    /// queue's buckets. If the list is empty, CPUs get buckets in the order of their numbers.
    pub nearness: Vec<Vec<CpuIndex>>,
}

#[derive(Clone, Debug)]
struct Queue {
    owner: CpuIndex,
    can_wait: bool,
    group: u16,
    joining: Option<u16>,
    /// The map of buckets to CPUs that new frames follow. Frames of moving buckets do not follow
    /// this map.
    map: Vec<CpuIndex>,
    open: bool,
}

/// The map of each group, and all changes that are in progress.
#[derive(Clone, Debug)]
pub struct Moves {
    buckets: usize,
    slice_buckets: usize,
    groups: Vec<Group>,
    groups_begun: u64,
    queues: Vec<Queue>,
    nearness: Vec<Vec<CpuIndex>>,
    slice: Slice,
    is_moving: bool,
    next_bucket: usize,
    counts: MoveCounts,
    moved: Vec<u64>,
    dead: Vec<bool>,
    /// The CPUs that are offline or do not belong to the process any more. The thread of an absent
    /// CPU still runs, but without a CPU of its own.
    absent: Vec<bool>,
    scratch: Scratch,
}

impl Moves {
    /// Divides the queues into groups by their masks. The function `plan` returns the plan of each
    /// group. `plan` gets the group's CPUs in the order in which they should get buckets, and how
    /// many CPUs at the front of this list poll queues.
    pub fn new(setup: Setup, mut plan: impl FnMut(&[CpuIndex], usize) -> Plan) -> Self {
        let Setup { cpus, buckets, slice_buckets, queues, nearness } = setup;
        let mut moves = Self {
            buckets,
            slice_buckets,
            groups: Vec::new(),
            groups_begun: 0,
            queues: Vec::with_capacity(queues.len()),
            nearness,
            slice: Slice::new(buckets, cpus, queues.len()),
            is_moving: false,
            next_bucket: 0,
            counts: MoveCounts::default(),
            moved: vec![0; buckets],
            dead: vec![false; cpus],
            absent: vec![false; cpus],
            scratch: Scratch::new(cpus),
        };
        for queue in &queues {
            let mut mask = queue.mask.clone();
            mask.sort_unstable();
            let group = moves.group_with(&mask).unwrap_or_else(|| {
                let alike = queues.iter().filter(|other| {
                    let mut others = other.mask.clone();
                    others.sort_unstable();
                    others == mask
                });
                let owners: Vec<CpuIndex> = alike.map(|queue| queue.owner).collect();
                let (order, polls) = moves.order_among(&mask, &owners);
                let plan = plan(&order, polls);
                let chosen = plan.choose(&order);
                let map = (0..buckets).map(|at| chosen[even_share(at, chosen.len(), buckets)]).collect();
                moves.begin_group(mask.clone(), plan, map)
            });
            let map = moves.groups[usize::from(group)].map.clone();
            let QueueSetup { owner, can_wait, .. } = *queue;
            moves.queues.push(Queue { owner, can_wait, group, joining: None, map, open: true });
        }
        moves
    }

    /// The current slice.
    pub fn slice(&self) -> Option<&Slice> {
        self.is_moving.then_some(&self.slice)
    }

    /// Returns true if `cpu` was declared dead and is not alive again yet.
    pub fn is_dead(&self, cpu: CpuIndex) -> bool {
        self.dead[usize::from(cpu)]
    }

    /// Returns true if every mask is in effect and no bucket has to move.
    pub fn is_settled(&self) -> bool {
        !self.is_moving
            && self.queues.iter().all(|queue| queue.joining.is_none() || !queue.open)
            && self.groups.iter().all(|group| group.map == group.want)
    }

    /// Returns the current map of a queue's buckets to CPUs, and the number of the queue's group.
    pub fn map_of(&self, queue: usize) -> (&[CpuIndex], u16) {
        (&self.queues[queue].map, self.queues[queue].group)
    }

    /// Returns true if a queue has not ended.
    pub fn is_open(&self, queue: usize) -> bool {
        self.queues[queue].open
    }

    /// Returns the CPU that polls a queue.
    pub fn owner_of(&self, queue: usize) -> CpuIndex {
        self.queues[queue].owner
    }

    /// Returns the mask of a queue. If the queue's mask is changing, returns the new mask.
    pub fn mask_of(&self, queue: usize) -> &[CpuIndex] {
        &self.groups[usize::from(self.group_of(queue))].mask
    }

    /// For each bucket of a queue, returns the bucket's CPU and the number of times that the bucket
    /// has moved.
    pub fn buckets_of(&self, queue: usize) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.queues[queue].map.iter().copied().zip(self.moved.iter().copied())
    }

    /// The moves so far.
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Returns true if `queue` takes part in the current slice (the set of buckets that are
    /// moving).
    pub fn concerns(&self, queue: usize) -> bool {
        self.slice().is_some_and(|slice| slice.includes(queue))
    }

    /// Returns true if buckets of the queue are moving in the current slice, or if buckets of the
    /// queue must move in a later slice. The CPU that polls a moving or waiting queue checks how
    /// long the current slice (set of moving buckets) takes, so that a slow slice does not delay
    /// all other slices.
    pub fn awaits_move(&self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let group = &self.groups[usize::from(state.group)];
        state.open && (self.concerns(queue) || state.joining.is_some() || group.map != group.want)
    }

    /// Returns true if a queue has not ended and can wait without losing packets, as a file can.
    pub fn waits(&self, queue: usize) -> bool {
        self.queues[queue].open && self.queues[queue].can_wait
    }

    /// Returns true if the move of the current slice (the set of buckets that are moving) has a
    /// time limit. The move of a slice (a set of buckets) has no time limit if one of its queues
    /// can wait without losing frames.
    pub fn is_timed(&self) -> bool {
        self.slice().is_some_and(|slice| !slice.queues.iter().any(|queue| self.waits(*queue)))
    }
}

/// The cause that is counted for moves that are due to a new plan.
const BY_PLAN: MoveCause = MoveCause::Mask;
