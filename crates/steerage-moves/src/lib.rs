//! Moves buckets between CPUs without reordering packets: the protocol, as a pure state machine.
//!
//! The state machine gets events ([`Moves::on`]) and returns [`Actions`]. It has no clock, no
//! atomics and no lock, and does not access rings or handlers. An action that has an outcome
//! ([`Ask`]) is executed while the state machine is locked, and its outcome is the next event. A
//! test visits every state that an instance with few CPUs, buckets and packets can reach.
//!
//! Buckets move in sets called *slices*, in four phases. The next phase of a move begins when all
//! participants have reported, by an event, that they have done their part:
//!
//! | phase | participants | part | event |
//! |---|---|---|---|
//! | park | each queue | parks the buckets' frames, waits for its fences | [`FencesPassed`](Event::FencesPassed) |
//! | leave | each old CPU | its handler returns its state of the buckets | [`Left`](Event::Left) |
//! | arrive | each new CPU | its handler takes that state | [`Arrived`](Event::Arrived) |
//! | release | each queue | sends the parked frames to the new CPU | [`Released`](Event::Released) |
//!
//! The queues of a move are those of the buckets' group. To park the buckets, a queue writes their
//! frames to its parking lot. For each old CPU of the buckets, the queue records the tail of its
//! ring to that CPU as a *fence*. A fence is passed when the old CPU has finished all frames before
//! the recorded tail. After the release phase, new frames of the buckets go directly to the new
//! CPU.
//!
//! The park phase ends only when *every* queue of the group has parked the buckets *and* all frames
//! that these queues sent before are finished. Therefore no bucket is on two CPUs at the same time,
//! and no frame of a bucket overtakes another frame of the bucket. If a phase takes too long
//! ([`Overdue`](Event::Overdue)), new frames of the moving buckets are dropped (`moving`), and the
//! old CPU discards the buckets' frames that it has not begun to handle (`revoked`). A CPU that
//! makes no progress is declared dead only while it runs its handler, and its current batch then
//! counts as dropped (`revoked`). Queues that can wait, such as files, are not polled during a move
//! and lose no frames.
//!
//! Details of the protocol:
//!
//! * **A sleeping CPU that polls queues is woken; while it sleeps, the fences of its queues do not
//!   count as passed.** If another CPU acted for the sleeping CPU, the protocol would need another
//!   state.
//! * **Flow state moves in separate phases** (leave, arrive), so that the new CPU has the flow
//!   state before the first packet, and need not check for new state before each batch.
//! * **A CPU can be declared dead only inside its handler.** Outside of its handler, a CPU may be
//!   sending frames by a bucket map that changes meanwhile. In the simulator, such frames were
//!   reordered. A program that stops calling `step` delays a move; meanwhile new packets of moving
//!   buckets are dropped.
//! * **Frames from a dead CPU's queues to another dead CPU are revoked (discarded) on behalf of
//!   both CPUs.** No other CPU may touch either end of the rings between these two CPUs.
//! * **A queue that changes its group parks all of its buckets at once.** Handlers identify a
//!   bucket by its group and its number, so one point in the queue's sequence of packets must
//!   separate the old group from the new group. If all queues of a group move, the state of the
//!   group's flows moves too. If other queues stay in the old group, the flows of the queue that
//!   changes its group start without state in the new group.
//! * **Moves of queues that can wait have no time limit**, so no frame is discarded (revoked).
//! * **A group whose queues have all ended is not used again**, because flow state may be left on
//!   its old CPUs. A queue that later gets the mask of an ended group gets a group with a new
//!   number.
//! * **An ended queue without frames in flight takes no part in the park phase**, or else such a
//!   queue could never be closed while masks keep changing. The search for buckets that must move
//!   continues after the previous slice, so every bucket is moved eventually.
//!
//! The state machine never calls a policy. A policy stores a [`Plan`] for each group, from which
//! the state machine derives the group's bucket map when a mask or the set of usable CPUs changes.
//! Events from packet CPUs do not allocate memory: all buffers have their full size from the start,
//! or from the event that creates their group.
//!
//! | module | what it holds |
//! |---|---|
//! | `event` | the events and the actions |
//! | `counts` | why buckets moved, and how many |
//! | `protocol` | the phases, the end of a queue, late phases, deaths |
//! | `groups` | the queues that share a map, and the CPUs that may have its buckets |
//! | `transit` | handler state that moves to another CPU |
//! | `plan`, `map`, `slice` | default placement of buckets; maps; the buckets that move together |
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

/// The index of a CPU among the CPUs of the instance. (The kernel's CPU numbers may have gaps.)
pub type CpuIndex = u16;

/// The initial settings of a queue.
#[derive(Clone, Debug)]
pub struct QueueSetup {
    /// The CPU that polls the queue.
    pub owner: CpuIndex,
    /// True if the queue can wait and must lose no frames.
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
    /// For each CPU that polls a queue, the other CPUs, nearest first. If empty, CPUs are in the
    /// order of their numbers.
    pub nearness: Vec<Vec<CpuIndex>>,
}

#[derive(Clone, Debug)]
struct Queue {
    owner: CpuIndex,
    can_wait: bool,
    group: u16,
    joining: Option<u16>,
    /// For each bucket, the CPU that gets its new frames, except while the bucket moves.
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
    /// For each CPU, true if it is offline or not available to the process. The thread of an absent
    /// CPU runs on other CPUs.
    absent: Vec<bool>,
    scratch: Scratch,
}

impl Moves {
    /// Divides the queues into groups by their masks. `plan` gets a group's CPUs in the order in
    /// which they should get buckets, and how many CPUs at the front of this list poll queues.
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

    /// Returns the mask of a queue: if the mask is changing, the new mask.
    pub fn mask_of(&self, queue: usize) -> &[CpuIndex] {
        &self.groups[usize::from(self.group_of(queue))].mask
    }

    /// For each bucket of a queue, returns its CPU and how often it has moved.
    pub fn buckets_of(&self, queue: usize) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.queues[queue].map.iter().copied().zip(self.moved.iter().copied())
    }

    /// Returns the counts of all moves so far.
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Returns true if `queue` takes part in the current slice.
    pub fn concerns(&self, queue: usize) -> bool {
        self.slice().is_some_and(|slice| slice.includes(queue))
    }

    /// Returns true if buckets of the queue are moving or must move. If so, the CPU that polls the
    /// queue checks how long the current slice takes.
    pub fn awaits_move(&self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let group = &self.groups[usize::from(state.group)];
        state.open && (self.concerns(queue) || state.joining.is_some() || group.map != group.want)
    }

    /// Returns true if a queue has not ended and can wait without losing packets.
    pub fn waits(&self, queue: usize) -> bool {
        self.queues[queue].open && self.queues[queue].can_wait
    }

    /// Returns true if the current slice has a time limit: none of its queues can wait.
    pub fn is_timed(&self) -> bool {
        self.slice().is_some_and(|slice| !slice.queues.iter().any(|queue| self.waits(*queue)))
    }
}
