//! Moves of buckets between CPUs that reorder nothing: the protocol, as a pure state machine.
//!
//! The machine gets events ([`Moves::on`]) and returns [`Actions`]. It has no clock, no atomics and
//! no lock, and does not touch rings or handlers. An action that has an outcome ([`Ask`]) is done
//! while the machine is locked, and its outcome is the next event. So the machine can be tested
//! alone, and a test visits every state that a small instance can reach.
//!
//! A slice of buckets moves in four phases. A phase ends when all participants have done their
//! part. The event of the last participant begins the next phase.
//!
//! | phase | participants | part | event |
//! |---|---|---|---|
//! | park | each queue | parks the buckets' frames, waits for its fences | [`FencesPassed`](Event::FencesPassed) |
//! | leave | each old CPU | its handler gives up its state of the buckets | [`Left`](Event::Left) |
//! | arrive | each new CPU | its handler takes that state | [`Arrived`](Event::Arrived) |
//! | release | each queue | sends the parked frames to the new CPU | [`Released`](Event::Released) |
//!
//! The queues are those of the group. To park, a queue sends the buckets' frames to its parking
//! lot, and records the tail of its ring to each old CPU as a fence. The fence is passed when that
//! ring's finished index has passed that tail. After the release, the frames of the buckets go to
//! the new CPU directly.
//!
//! Parking ends only when *every* queue of the group has parked *and* everything that it sent
//! before is finished. So no bucket is on two CPUs, and none of its frames overtakes another.
//! Nothing but the fence ends this phase. If a phase takes too long ([`Overdue`](Event::Overdue)),
//! new frames of the buckets are dropped (`moving`), and the old CPU discards the frames that it
//! has not begun (`revoked`). A CPU that shows no sign of life is declared dead at its gate, and
//! the batch that it was handling does not count. None of this happens to queues that can wait:
//! they are not polled in the meantime.
//!
//! These are the finer points:
//!
//! * **A sleeping producer is woken, not counted as passed.** Otherwise the protocol would need a
//!   state in which another CPU acts for the producer. The cost is one wake-up per queue owner and
//!   slice, for the CPU that changes the mask.
//! * **State moves in separate phases** (leave, arrive) and not with the packets. The new CPU has
//!   the state before the first packet is released to it, and no batch has to check a mailbox.
//! * **A CPU can be declared dead only inside its handler.** Outside of it, the CPU may be sending
//!   by a map that is about to change; the simulator found that reordering. So a program that steps
//!   CPUs itself and then stops calling holds up a move until it calls again, and the packets of
//!   that move drop as `moving`, counted.
//! * **Frames that a dead CPU's queues had sent to another dead CPU are revoked for both**, because
//!   no other CPU may touch the ends of these rings.
//! * **A queue that changes its group parks all of its buckets at once.** Handlers know a bucket by
//!   the numbers of its group and of the bucket, and the group number must change for all of a
//!   queue's packets at one point. The state of the flows moves too if the whole group moves. A
//!   queue that leaves a group in which other queues stay starts without state.
//! * **A source that can wait is never hurried.** With a capture file in the group, no move times
//!   out and nothing is revoked.
//! * **A group whose queues have all ended is left alone.** A move that ended because its queues
//!   ended has left state where it was. A queue that gets the same mask later gets a group with
//!   another number.
//! * **A queue that has ended does not park** once none of its frames is in flight. Otherwise masks
//!   that keep changing would prevent it from ever closing. The search for buckets to move goes on
//!   where the last slice ended, so that each bucket has its turn.
//!
//! The machine never asks a policy where buckets go. Each group has a [`Plan`], which a policy
//! leaves in the machine. When the mask or the usable CPUs change, the machine derives the map from
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
    /// The CPU that polls it.
    pub owner: CpuIndex,
    /// Whether its source can wait. If so, no frame of it may be lost.
    pub can_wait: bool,
    /// The CPUs over which its packets are spread. Not empty.
    pub mask: Vec<CpuIndex>,
}

/// The initial settings of an instance.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of CPUs.
    pub cpus: usize,
    /// The number of buckets in each map. At most 65,536.
    pub buckets: usize,
    /// The number of buckets of a group that move at a time.
    pub slice_buckets: usize,
    /// The receive queues.
    pub queues: Vec<QueueSetup>,
    /// For each CPU that polls, the other CPUs in the order in which they should join it. If empty,
    /// the order is that of their numbers.
    pub nearness: Vec<Vec<CpuIndex>>,
}

#[derive(Clone, Debug)]
struct Queue {
    owner: CpuIndex,
    can_wait: bool,
    group: u16,
    /// The group that the queue is changing to.
    joining: Option<u16>,
    /// The map in force for new frames, except for buckets that are moving now.
    map: Vec<CpuIndex>,
    open: bool,
}

/// The CPU of each bucket, and all current changes.
#[derive(Clone, Debug)]
pub struct Moves {
    buckets: usize,
    slice_buckets: usize,
    groups: Vec<Group>,
    /// The number of groups created so far.
    groups_begun: u64,
    queues: Vec<Queue>,
    nearness: Vec<Vec<CpuIndex>>,
    /// The moving buckets, if `is_moving`.
    slice: Slice,
    is_moving: bool,
    /// The bucket at which the search for buckets to move continues.
    next_bucket: usize,
    counts: MoveCounts,
    /// The number of moves of each bucket, in any group.
    moved: Vec<u64>,
    dead: Vec<bool>,
    /// CPUs that are offline or no longer belong to the process. The thread of such a CPU still
    /// runs somewhere, but has no dedicated CPU.
    absent: Vec<bool>,
    scratch: Scratch,
}

impl Moves {
    /// Groups the queues by their masks. `plan` returns the plan of each group. It gets the group's
    /// CPUs in the order in which they should join, and the number of CPUs at the front that poll.
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

    // ---- queries

    /// The slice that is moving now.
    pub fn slice(&self) -> Option<&Slice> {
        self.is_moving.then_some(&self.slice)
    }

    /// Whether `cpu` was declared dead and is not back.
    pub fn is_dead(&self, cpu: CpuIndex) -> bool {
        self.dead[usize::from(cpu)]
    }

    /// Whether every mask is in force.
    pub fn is_settled(&self) -> bool {
        !self.is_moving
            && self.queues.iter().all(|queue| queue.joining.is_none() || !queue.open)
            && self.groups.iter().all(|group| group.map == group.want)
    }

    /// The map in force for a queue, and the number of its group.
    pub fn map_of(&self, queue: usize) -> (&[CpuIndex], u16) {
        (&self.queues[queue].map, self.queues[queue].group)
    }

    /// Whether a queue has not ended.
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

    /// The CPU of each bucket of a queue, and the number of times that it changed.
    pub fn buckets_of(&self, queue: usize) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.queues[queue].map.iter().copied().zip(self.moved.iter().copied())
    }

    /// The moves so far.
    pub fn counts(&self) -> MoveCounts {
        self.counts
    }

    /// Whether `queue` takes part in the slice that is moving.
    pub fn concerns(&self, queue: usize) -> bool {
        self.slice().is_some_and(|slice| slice.includes(queue))
    }

    /// Whether a queue takes part in the slice that is moving, or waits for its own slice. Its
    /// owner then watches the slice that is moving, so that a slow slice does not hold up all
    /// others.
    pub fn awaits_move(&self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let group = &self.groups[usize::from(state.group)];
        state.open && (self.concerns(queue) || state.joining.is_some() || group.map != group.want)
    }

    /// Whether the moving slice has a time limit. It has none if one of its queues can wait.
    pub fn is_timed(&self) -> bool {
        let can_wait = |queue: &usize| self.queues[*queue].open && self.queues[*queue].can_wait;
        self.slice().is_some_and(|slice| !slice.queues.iter().any(can_wait))
    }
}

/// The cause of the moves that a plan asks for.
const BY_PLAN: MoveCause = MoveCause::Mask;
