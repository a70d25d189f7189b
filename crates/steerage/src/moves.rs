//! Moves of buckets between CPUs that reorder nothing.
//!
//! A slice of buckets moves in four phases. Each ends when all who take part have said so; whoever says so last begins
//! the next one and wakes those who take part in it.
//!
//! | phase | who | what |
//! |---|---|---|
//! | park | each queue of the group | its table sends the buckets' frames to its parking lot; it notes the tail of its ring to the old CPU, and is done when that ring's finished index has passed it |
//! | leave | each old CPU | its handler gives up what it knows of the buckets |
//! | arrive | each new CPU | its handler takes it |
//! | release | each queue | sends what was parked to the new CPU, then lets the buckets go there directly |
//!
//! Parking is over only when *every* queue of the group has parked *and* all that it sent before is finished: so no
//! bucket is on two CPUs, and none of its frames overtakes another. Nothing but the fence ends it. If it takes longer
//! than [`MOVE_WAIT`](crate::MOVE_WAIT), new frames of the buckets drop (`moving`) and the old CPU discards what it has not begun
//! (`revoked`); a CPU that shows no sign of life for [`DEAD_AFTER`](crate::DEAD_AFTER) is declared dead at its gate, and what
//! it was doing does not count. None of this is done for queues that can wait: they are not polled meanwhile.
//!
//! All of it is state under one lock, which the data path takes only while a move concerns it, and then only by trying:
//! a round that does not get it goes on and tries again in the next.

mod elephants;
mod in_force;
mod late;
mod limits;
mod masks;
mod policies;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use steerage_mem::ring::Gauge;

use crate::distance::Distances;
use crate::ledger::{MoveCause, MoveCounts};
use crate::limits::{BUCKETS, Limits, QueueLimits, SLICE_BUCKETS};
use crate::load::{BucketWork, LoadMeter};
use crate::platform::Timestamp;
use crate::policy::Policy;
use crate::rps_map::{CpuIndex, RpsMap};

/// One bucket on its way.
#[derive(Debug)]
pub(crate) struct BucketMove<M> {
    pub(crate) bucket: u16,
    pub(crate) from: CpuIndex,
    pub(crate) to: CpuIndex,
    pub(crate) state: Option<M>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Park,
    Leave,
    Arrive,
    Release,
}

/// The buckets that move together now.
#[derive(Debug)]
pub(crate) struct Slice<M> {
    pub(crate) epoch: u64,
    pub(crate) phase: Phase,
    /// Sorted by bucket.
    pub(crate) moves: Vec<BucketMove<M>>,
    /// The group that the buckets are known by before and after: another one when a queue changes its group.
    pub(crate) group_before: u16,
    pub(crate) group_after: u16,
    /// The queues that take part.
    queues: Vec<usize>,
    /// Whether the whole group moves, so that what is known of its flows moves too.
    with_state: bool,
    /// Who has not said yet that this phase is done: queues in park and release, CPUs in leave and arrive.
    pub(crate) waiting: Vec<usize>,
    /// Queues that have parked, of those waiting for their fences.
    parked: Vec<usize>,
    /// When somebody first looked how long this phase takes.
    since: Option<Timestamp>,
    /// It took too long: park no more.
    pub(crate) revoked: bool,
    /// CPUs that hold it up: what their gates showed, and since when they show it.
    suspects: Vec<(CpuIndex, u64, Timestamp)>,
}

impl<M> Slice<M> {
    /// Notes that `who` has done its part of this phase.
    pub(crate) fn done(&mut self, who: usize) {
        self.waiting.retain(|waiting| *waiting != who);
    }

    pub(crate) fn includes(&self, queue: usize) -> bool {
        self.queues.contains(&queue)
    }

    pub(crate) fn has_parked(&mut self, queue: usize) {
        if !self.parked.contains(&queue) {
            self.parked.push(queue);
        }
    }
}

/// Queues with the same mask: they share one map, so that both directions of a flow meet on one CPU.
#[derive(Debug)]
pub(crate) struct Group {
    /// Sorted.
    mask: Vec<CpuIndex>,
    /// In force.
    pub(crate) map: RpsMap,
    /// To be in force.
    pub(crate) want: RpsMap,
    /// Why that was last changed.
    pub(crate) cause: MoveCause,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) work: BucketWork,
}

/// What control knows of a queue.
#[derive(Debug)]
pub(crate) struct QueueControl {
    pub(crate) owner: CpuIndex,
    pub(crate) can_wait: bool,
    /// Its rings, by CPU.
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) mask: Vec<CpuIndex>,
    /// At the start.
    pub(crate) limits: QueueLimits,
}

#[derive(Debug)]
struct QueueState {
    control: QueueControl,
    group: u16,
    joining: Option<u16>,
    /// In force for new frames, but for buckets that move now.
    map: RpsMap,
    open: bool,
    limits: QueueLimits,
}

/// All that is known of who has which bucket.
#[derive(Debug)]
pub(crate) struct State<M> {
    pub(crate) groups: Vec<Group>,
    queues: Vec<QueueState>,
    /// What a new group's is made after.
    policy: Box<dyn Policy>,
    /// For each CPU that polls, the others in the order in which they are to join; empty: as they are numbered.
    nearness: Vec<Vec<CpuIndex>>,
    pub(crate) load: LoadMeter,
    pub(crate) distances: Distances,
    elephants: Vec<elephants::Candidate>,
    pub(crate) slice: Option<Slice<M>>,
    dead: Vec<bool>,
    /// Taken off line, or away from us: what is on such a CPU runs somewhere, but has no place of its own.
    absent: Vec<bool>,
    /// Which share of each CPU's time others had lately.
    pub(crate) others: Vec<f64>,
    epoch: u64,
    /// Where the search for buckets to move goes on.
    next_bucket: usize,
    pub(crate) counts: MoveCounts,
    /// Of each bucket, in whichever group.
    moved: Box<[u64; BUCKETS]>,
    limits: Limits,
    /// The CPUs whose backlogs have a flow limit.
    flow_limited: Vec<CpuIndex>,
    /// CPUs that do not go by these limits yet.
    unread: Vec<CpuIndex>,
    /// CPUs to wake once the lock is released.
    to_wake: Vec<CpuIndex>,
    changed: bool,
}

/// The lock around it, and a number that changes with it, so that the data path sees with one load that nothing did.
#[derive(Debug)]
pub(crate) struct Steering<M> {
    state: Mutex<State<M>>,
    version: AtomicU64,
}

impl<M> Steering<M> {
    pub(crate) fn new(
        cpus: usize,
        queues: Vec<QueueControl>,
        limits: Limits,
        policy: Box<dyn Policy>,
        nearness: Vec<Vec<CpuIndex>>,
    ) -> Self {
        let mut state = State {
            groups: Vec::new(),
            queues: Vec::new(),
            policy,
            nearness,
            load: LoadMeter::default(),
            distances: Distances::default(),
            elephants: Vec::new(),
            slice: None,
            dead: vec![false; cpus],
            absent: vec![false; cpus],
            others: vec![0.0; cpus],
            epoch: 0,
            next_bucket: 0,
            counts: MoveCounts::default(),
            moved: Box::new([0; BUCKETS]),
            limits,
            flow_limited: Vec::new(),
            unread: Vec::new(),
            to_wake: Vec::new(),
            changed: false,
        };
        let owners: Vec<(Vec<CpuIndex>, CpuIndex)> = queues.iter().map(|q| (q.mask.clone(), q.owner)).collect();
        for control in queues {
            let group = state.group_with(&control.mask).unwrap_or_else(|| {
                let alike = owners.iter().filter(|(mask, _)| *mask == control.mask).map(|(_, owner)| *owner);
                let (order, owners) = state.order_among(&control.mask, alike);
                let group = state.new_group(control.mask.clone(), RpsMap::even(&control.mask));
                let begun = &mut state.groups[usize::from(group)];
                begun.map = RpsMap::even(&begun.policy.active(&order, owners, &[]).unwrap_or(order));
                begun.want = begun.map.clone();
                group
            });
            let map = state.groups[usize::from(group)].map.clone();
            let limits = control.limits;
            state.queues.push(QueueState { control, group, joining: None, map, open: true, limits });
        }
        Self { state: Mutex::new(state), version: AtomicU64::new(1) }
    }

    /// Changes when there is something for somebody to do.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Acquire pairs with the release in `publish`; the lock orders the rest.
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State<M>>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock, and if something changed makes that known and returns the CPUs to be woken.
    pub(crate) fn publish(&self, mut state: MutexGuard<'_, State<M>>) -> Vec<CpuIndex> {
        let to_wake = std::mem::take(&mut state.to_wake);
        if std::mem::take(&mut state.changed) {
            self.version.fetch_add(1, Ordering::Release);
        }
        to_wake
    }
}

impl<M> State<M> {
    // ---- slices

    /// Begins the next slice, if none is under way and there is something to move.
    pub(crate) fn begin_slice(&mut self) {
        if self.slice.is_some() {
            return;
        }
        let Some((group_before, group_after, queues, moves)) = self.next_joining().or_else(|| self.next_of_a_group())
        else {
            return;
        };
        self.epoch += 1;
        let with_state = group_before == group_after
            || self.queues.iter().enumerate().all(|(at, q)| q.group != group_before || queues.contains(&at));
        self.slice = Some(Slice {
            epoch: self.epoch,
            phase: Phase::Park,
            moves,
            group_before,
            group_after,
            waiting: queues.iter().copied().filter(|queue| self.queues[*queue].open).collect(),
            queues,
            with_state,
            parked: Vec::new(),
            since: None,
            revoked: false,
            suspects: Vec::new(),
        });
        self.announce();
        self.advance();
    }

    /// A queue that changes its group parks all of its buckets at once: what it is known by must change for all of its
    /// frames at one point, so everything it sent has to be finished first.
    #[expect(clippy::type_complexity, reason = "the parts of a slice, named where they are taken apart")]
    fn next_joining(&mut self) -> Option<(u16, u16, Vec<usize>, Vec<BucketMove<M>>)> {
        let queue = self.queues.iter().position(|queue| queue.joining.is_some() && queue.open)?;
        let after = self.queues[queue].joining?;
        let (from, to) = (&self.queues[queue].map, &self.groups[usize::from(after)].map);
        let moves = (0..BUCKETS)
            .map(|bucket| BucketMove { bucket: bucket as u16, from: from.0[bucket], to: to.0[bucket], state: None })
            .collect();
        Some((self.queues[queue].group, after, vec![queue], moves))
    }

    #[expect(clippy::type_complexity, reason = "as next_joining")]
    fn next_of_a_group(&mut self) -> Option<(u16, u16, Vec<usize>, Vec<BucketMove<M>>)> {
        let at = loop {
            let at = self.groups.iter().position(|group| group.map != group.want)?;
            if self.queues.iter().any(|queue| usize::from(queue.group) == at && queue.open) {
                break at;
            }
            // Nobody is in it: nothing to wait for.
            self.groups[at].map = self.groups[at].want.clone();
        };
        let group = &self.groups[at];
        // On from where the last slice ended: however fast masks change, every bucket has its turn.
        let mut moves: Vec<_> = (0..BUCKETS)
            .map(|nth| (nth + self.next_bucket) % BUCKETS)
            .filter(|bucket| group.map.0[*bucket] != group.want.0[*bucket])
            .take(SLICE_BUCKETS)
            .map(|b| BucketMove { bucket: b as u16, from: group.map.0[b], to: group.want.0[b], state: None })
            .collect();
        self.next_bucket = moves.last().map_or(0, |m| usize::from(m.bucket) + 1);
        moves.sort_unstable_by_key(|m| m.bucket);
        let queues = (0..self.queues.len()).filter(|queue| usize::from(self.queues[*queue].group) == at).collect();
        Some((at as u16, at as u16, queues, moves))
    }

    /// Goes on to the next phase while nobody is waited for.
    pub(crate) fn advance(&mut self) {
        while let Some(slice) = &mut self.slice {
            if !slice.waiting.is_empty() {
                return;
            }
            slice.since = None;
            slice.suspects.clear();
            let dead = |cpu: &usize| self.dead[*cpu];
            match slice.phase {
                // All of its queues ended before they parked: nothing will come, so what is known stays where it is.
                Phase::Park if slice.queues.iter().all(|queue| !self.queues[*queue].open) => {
                    self.slice = None;
                    self.begin_slice();
                    return;
                }
                Phase::Park => {
                    slice.phase = Phase::Leave;
                    if slice.with_state {
                        slice.waiting = cpus(slice.moves.iter().map(|m| m.from));
                        slice.waiting.retain(|cpu| !dead(cpu));
                    }
                }
                Phase::Leave => {
                    slice.phase = Phase::Arrive;
                    slice.waiting = cpus(slice.moves.iter().filter(|m| m.state.is_some()).map(|m| m.to));
                    slice.waiting.retain(|cpu| !dead(cpu));
                }
                Phase::Arrive => {
                    slice.phase = Phase::Release;
                    let queues = &self.queues;
                    let alive = |q: &usize| queues[*q].open && !self.dead[usize::from(queues[*q].control.owner)];
                    slice.waiting = slice.queues.iter().copied().filter(alive).collect();
                    self.put_in_force();
                }
                Phase::Release => {
                    self.counts.slices += 1;
                    self.slice = None;
                    self.begin_slice();
                    return;
                }
            }
            self.announce();
        }
    }

    /// Has those woken who take part in the phase that begins.
    fn announce(&mut self) {
        self.changed = true;
        let Some(slice) = &self.slice else { return };
        match slice.phase {
            Phase::Park | Phase::Release => {
                self.to_wake.extend(slice.waiting.iter().map(|queue| self.queues[*queue].control.owner));
            }
            Phase::Leave | Phase::Arrive => self.to_wake.extend(slice.waiting.iter().map(|cpu| *cpu as CpuIndex)),
        }
    }

    // ---- the end of a queue

    /// The queue has ended and nothing of it is under way.
    pub(crate) fn close_queue(&mut self, queue: usize) {
        self.queues[queue].open = false;
        if let Some(slice) = &mut self.slice {
            if matches!(slice.phase, Phase::Park | Phase::Release) {
                slice.done(queue);
            }
        }
        self.advance();
    }

    /// Whether `queue` takes part in the slice that moves.
    pub(crate) fn concerns(&self, queue: usize) -> bool {
        self.slice.as_ref().is_some_and(|slice| slice.includes(queue))
    }
}

/// Each CPU once.
fn cpus(all: impl Iterator<Item = CpuIndex>) -> Vec<usize> {
    let mut cpus: Vec<usize> = all.map(usize::from).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}
