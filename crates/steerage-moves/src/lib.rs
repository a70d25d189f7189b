//! Moves of buckets between CPUs without reordering: the protocol, as a pure state machine.
//!
//! The machine gets events ([`Moves::on`]) and returns [`Actions`]. The machine has no clock, no
//! atomics and no lock, and does not access rings or handlers. An action with an outcome ([`Ask`])
//! is done while the machine is locked, and its outcome is the next event. So the machine can be
//! tested alone, and a test visits every state that a small instance can reach.
//!
//! A slice of buckets moves in four phases. A phase ends when all participants have done their
//! part. The event of the last participant begins the next phase.
//!
//! | phase | participants | part | event |
//! |---|---|---|---|
//! | park | each queue | parks the buckets' frames, waits for its fences | [`FencesPassed`](Event::FencesPassed) |
//! | leave | each old CPU | its handler returns its state of the buckets | [`Left`](Event::Left) |
//! | arrive | each new CPU | its handler takes that state | [`Arrived`](Event::Arrived) |
//! | release | each queue | sends the parked frames to the new CPU | [`Released`](Event::Released) |
//!
//! The participating queues are the queues of the group. To park, a queue sends the buckets' frames
//! to its parking lot, and records the tail of its ring to each old CPU as a fence. The fence is
//! passed when the ring's finished index has passed that tail. After the release, the frames of the
//! buckets go to the new CPU directly.
//!
//! Parking ends only when *every* queue of the group has parked *and* all frames that it sent
//! before are finished. So no bucket is on two CPUs, and no frame of a bucket overtakes another
//! frame. Only the fence ends this phase. If a phase takes too long ([`Overdue`](Event::Overdue)),
//! new frames of the buckets are dropped (`moving`), and the old CPU discards the frames that it
//! has not begun (`revoked`). A CPU that makes no progress is declared dead at its gate, and its
//! current batch does not count. Queues that can wait lose no frames in this way, because they are
//! not polled during the move.
//!
//! Details of the protocol:
//!
//! * **A sleeping producer is woken, not counted as passed.** Otherwise, the protocol would need a
//!   state in which another CPU acts for the producer. A wake-up per queue owner and slice is the
//!   cost, which the CPU that changes the mask pays.
//! * **State moves in separate phases** (leave, arrive) and not with the packets. The new CPU has
//!   the state before it gets the first packet, and no batch has to check a mailbox.
//! * **A CPU can be declared dead only inside its handler.** Outside of the handler, the CPU may be
//!   sending by a map that is about to change. The simulator found this kind of reordering. So a
//!   program that steps CPUs itself and then stops delays a move until it steps them again. Packets
//!   of that move are dropped and counted (`moving`).
//! * **Frames that a dead CPU's queues had sent to another dead CPU are revoked for both**, because
//!   no other CPU may touch the ends of these rings.
//! * **A queue that changes its group parks all of its buckets at once.** Handlers identify a
//!   bucket by the numbers of its group and of the bucket, and the group number must change for all
//!   of a queue's packets at one point. If the whole group moves, the state of its flows moves too.
//!   A queue that leaves a group in which other queues stay starts without state.
//! * **A source that can wait is never hurried.** With a capture file in the group, no move times
//!   out and no frame is revoked.
//! * **A group whose queues have all ended is not used again.** If a move ended because its queues
//!   ended, the state stayed on the old CPUs. A queue whose mask becomes equal to the group's mask
//!   later gets a group with another number.
//! * **A queue that has ended does not park** once none of its frames is in flight. A queue that
//!   parked after its end could never close while masks keep changing. The search for buckets to
//!   move continues where the last slice ended, so that every bucket eventually moves.
//!
//! The machine never calls a policy to place buckets. Each group has a [`Plan`], which a policy
//! stores in the machine. When the mask or the usable CPUs change, the machine derives the map from
//! the plan.
//!
//! Events of packet CPUs do not allocate. All buffers have their full size from the start, or from
//! the event that created the group.
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
pub use map::{cpus_in, even_share};
pub use plan::Plan;
pub use slice::{BucketMove, MovePhase, Slice};
pub use transit::{States, Transit};

use groups::Group;
use map::Scratch;

/// A CPU's index among the CPUs of the instance, from 0. (The kernel's CPU numbers may have gaps.)
pub type CpuIndex = u16;

/// The initial settings of a queue.
#[derive(Clone, Debug)]
pub struct QueueSetup {
    /// The CPU that polls the queue.
    pub owner: CpuIndex,
    /// True if the queue's source can wait, so that no frame of the queue may be lost.
    pub can_wait: bool,
    /// The CPUs over which the queue's packets are spread. Not empty.
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
    /// For each CPU that polls, the other CPUs in the order in which they should join it. If empty,
    /// CPUs join in the order of their numbers.
    pub nearness: Vec<Vec<CpuIndex>>,
}

#[derive(Clone, Debug)]
struct Queue {
    owner: CpuIndex,
    can_wait: bool,
    group: u16,
    joining: Option<u16>,
    /// The current map for new frames, except for moving buckets.
    map: Vec<CpuIndex>,
    open: bool,
}

/// The CPU of each bucket, and all current changes.
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
    /// CPUs that are offline or no longer belong to the process. The thread of an absent CPU still
    /// runs, but on no CPU of its own.
    absent: Vec<bool>,
    scratch: Scratch,
}

impl Moves {
    /// Groups the queues by their masks. `plan` returns the plan of each group. `plan` gets the
    /// group's CPUs in the order in which they should join, and how many CPUs at the front poll.
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

    /// Returns true if `cpu` was declared dead and is not alive again.
    pub fn is_dead(&self, cpu: CpuIndex) -> bool {
        self.dead[usize::from(cpu)]
    }

    /// Returns true if every mask is in force.
    pub fn is_settled(&self) -> bool {
        !self.is_moving
            && self.queues.iter().all(|queue| queue.joining.is_none() || !queue.open)
            && self.groups.iter().all(|group| group.map == group.want)
    }

    /// The current map of a queue's buckets to CPUs, and the number of the queue's group.
    pub fn map_of(&self, queue: usize) -> (&[CpuIndex], u16) {
        (&self.queues[queue].map, self.queues[queue].group)
    }

    /// Returns true if a queue has not ended.
    pub fn is_open(&self, queue: usize) -> bool {
        self.queues[queue].open
    }

    /// The CPU that polls a queue.
    pub fn owner_of(&self, queue: usize) -> CpuIndex {
        self.queues[queue].owner
    }

    /// The mask of a queue, including a change that is not in force yet.
    pub fn mask_of(&self, queue: usize) -> &[CpuIndex] {
        &self.groups[usize::from(self.group_of(queue))].mask
    }

    /// The CPU of each bucket of a queue, and how often it changed.
    pub fn buckets_of(&self, queue: usize) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.queues[queue].map.iter().copied().zip(self.moved.iter().copied())
    }

    /// The moves so far.
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Returns true if `queue` takes part in the current slice.
    pub fn concerns(&self, queue: usize) -> bool {
        self.slice().is_some_and(|slice| slice.includes(queue))
    }

    /// Returns true if a queue takes part in the current slice, or waits for its own slice. The
    /// queue's owner then watches the current slice, so that a slow slice does not delay all other
    /// slices.
    pub fn awaits_move(&self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let group = &self.groups[usize::from(state.group)];
        state.open && (self.concerns(queue) || state.joining.is_some() || group.map != group.want)
    }

    /// Returns true if a queue has not ended, and its source can wait.
    pub fn waits(&self, queue: usize) -> bool {
        self.queues[queue].open && self.queues[queue].can_wait
    }

    /// Returns true if the current slice has a time limit: not if one of its queues can wait.
    pub fn is_timed(&self) -> bool {
        self.slice().is_some_and(|slice| !slice.queues.iter().any(|queue| self.waits(*queue)))
    }
}

/// The cause of moves that a plan requests.
const BY_PLAN: MoveCause = MoveCause::Mask;
