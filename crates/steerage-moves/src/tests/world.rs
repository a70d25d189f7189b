//! A model of a small steerage instance that uses the real state machine. A stalled CPU takes no
//! [`Step`]s. A CPU that does not get the control lock immediately takes its step later.

mod participant;
mod queue;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use crate::MoveCause;

use crate::{Actions, Ask, CpuIndex, Event, MovePhase, Moves, Plan, QueueSetup, Setup, Slice};
use queue::{Fate, Queue, Ring, Target};

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) cpus: usize,
    pub(super) buckets: usize,
    pub(super) slice_buckets: usize,
    pub(super) queues: Vec<QueueSetup>,
    pub(super) packets: Vec<Vec<u16>>,
    pub(super) requests: Vec<Request>,
    pub(super) deaths: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Mask(Vec<usize>, Vec<CpuIndex>),
    Present(Vec<CpuIndex>),
    Plan(Plan),
    Map(Vec<CpuIndex>),
    Owner(usize, CpuIndex),
}

/// A handler's state of (group, bucket, queue): the flows of one queue in one bucket.
type FlowState = (u16, u16, usize);

/// The flow state of (bucket, queue) on its way to another handler, which may use another group.
type Moved = (u16, usize);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Busy {
    No,
    Packet { queue: usize, packet: usize },
    Leaving { epoch: u64, group: u16, buckets: Vec<u16> },
    Arriving { epoch: u64, group: u16 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Report {
    Nothing,
    Left { epoch: u64 },
    Arrived { epoch: u64 },
}

#[derive(Clone, Debug, Hash)]
struct Cpu {
    busy: Busy,
    /// True if the CPU was declared dead while it was in its handler.
    is_declared_dead: bool,
    pending_report: Report,
    /// `has` is the flow state in the handler, and `carries` is flow state between the handler and
    /// the state machine.
    has: BTreeSet<FlowState>,
    carries: Vec<Moved>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) moves: Moves,
    queues: Vec<Queue>,
    cpus: Vec<Cpu>,
    in_transit: (u64, Vec<Moved>),
    /// Flow state that was created or has moved since a CPU was last declared dead, and that must
    /// still exist.
    known: BTreeSet<FlowState>,
    masks: Vec<Vec<CpuIndex>>,
    wanted: Vec<Option<CpuIndex>>,
    /// For each queue that was released, the CPU that may take it. Until this CPU takes the queue,
    /// no CPU polls it.
    offered: Vec<Option<CpuIndex>>,
    requests_done: usize,
    deaths: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Request,
    Receive(usize),
    Take(CpuIndex, usize),
    Return(CpuIndex),
    Follow(CpuIndex),
    /// The first CPU detects that the phase takes too long. The second CPU, if any, is declared
    /// dead.
    Hurry(CpuIndex, Option<CpuIndex>),
    Close(usize),
    Offer(usize),
    /// The CPU takes over a queue that another CPU has offered, or takes back a queue that it has
    /// offered itself.
    Adopt(CpuIndex, usize),
}

impl Step {
    pub(super) fn actor(self, world: &World) -> Option<CpuIndex> {
        match self {
            Self::Request => None,
            Self::Receive(queue) | Self::Close(queue) | Self::Offer(queue) => Some(world.moves.owner_of(queue)),
            Self::Adopt(cpu, _) | Self::Take(cpu, _) | Self::Return(cpu) | Self::Follow(cpu) | Self::Hurry(cpu, _) => {
                Some(cpu)
            }
        }
    }
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let Scenario { cpus, buckets, slice_buckets, queues, packets, .. } = scenario;
        let setup = Setup {
            cpus: *cpus,
            buckets: *buckets,
            slice_buckets: *slice_buckets,
            queues: queues.clone(),
            nearness: Vec::new(),
        };
        let moves = Moves::new(setup, |_, _| Plan::all());
        let queue = |(at, packets): (usize, &Vec<u16>)| {
            let (map, group) = moves.map_of(at);
            Queue {
                table: map.iter().map(|cpu| Target::Cpu(*cpu)).collect(),
                group,
                rings: vec![Ring::default(); *cpus],
                lot: Vec::new(),
                lot_is_shut: false,
                parked: None,
                fences: Vec::new(),
                fates: vec![Fate::ToCome; packets.len()],
                last: vec![0; *buckets],
                is_closed: false,
            }
        };
        let cpu = Cpu {
            busy: Busy::No,
            is_declared_dead: false,
            pending_report: Report::Nothing,
            has: BTreeSet::new(),
            carries: Vec::new(),
        };
        Self {
            queues: packets.iter().enumerate().map(queue).collect(),
            moves,
            cpus: vec![cpu; *cpus],
            in_transit: (0, Vec::new()),
            known: BTreeSet::new(),
            masks: queues.iter().map(|queue| queue.mask.clone()).collect(),
            wanted: vec![None; queues.len()],
            offered: vec![None; queues.len()],
            requests_done: 0,
            deaths: 0,
        }
    }

    pub(super) fn steps(&self, scenario: &Scenario) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.requests_done < scenario.requests.len() {
            steps.push(Step::Request);
        }
        for (at, queue) in self.queues.iter().enumerate() {
            let owner = self.moves.owner_of(at);
            if let Some(to) = self.offered[at] {
                let takers = [Some(to), Some(owner).filter(|owner| *owner != to)].into_iter().flatten();
                steps.extend(takers.filter(|cpu| self.is_free(*cpu)).map(|cpu| Step::Adopt(cpu, at)));
                continue;
            }
            let is_quiet = queue.parked.is_none() && !self.moves.concerns(at) && !queue.has_ended();
            if self.is_free(owner) && is_quiet && self.wanted[at].is_some_and(|to| !self.moves.is_dead(to)) {
                steps.push(Step::Offer(at));
            }
            // A queue that can wait receives no frames while its parked frames take up the room.
            let waits = scenario.queues[at].can_wait && queue.parked.is_some();
            if self.is_free(owner) && queue.fates.contains(&Fate::ToCome) && !waits {
                steps.push(Step::Receive(at));
            }
            if self.is_free(owner) && !queue.is_closed && queue.has_ended() && queue.is_at_rest() {
                steps.push(Step::Close(at));
            }
        }
        for (cpu, is_free) in (0..self.cpus.len() as CpuIndex).map(|cpu| (cpu, self.is_free(cpu))) {
            if self.cpus[usize::from(cpu)].busy != Busy::No {
                steps.push(Step::Return(cpu));
                continue;
            }
            if self.has_something_to_follow(cpu) {
                steps.push(Step::Follow(cpu));
            }
            if !is_free {
                continue;
            }
            let with_frames = |queue: &usize| !self.queues[*queue].rings[usize::from(cpu)].waiting.is_empty();
            steps.extend((0..self.queues.len()).filter(with_frames).map(|queue| Step::Take(cpu, queue)));
            if self.moves.is_timed() && self.owned(cpu).any(|queue| self.moves.awaits_move(queue)) {
                steps.push(Step::Hurry(cpu, None));
                if self.deaths < scenario.deaths {
                    let victims = (0..self.cpus.len()).filter(|at| self.can_be_declared_dead(*at));
                    steps.extend(victims.map(|at| Step::Hurry(cpu, Some(at as CpuIndex))));
                }
            }
        }
        steps
    }

    fn is_free(&self, cpu: CpuIndex) -> bool {
        let cpu = &self.cpus[usize::from(cpu)];
        cpu.busy == Busy::No && !cpu.is_declared_dead
    }

    fn can_be_declared_dead(&self, cpu: usize) -> bool {
        self.cpus[cpu].busy != Busy::No && !self.cpus[cpu].is_declared_dead
    }

    fn owned(&self, cpu: CpuIndex) -> impl Iterator<Item = usize> + '_ {
        let is_there = |queue: usize| !self.queues[queue].is_closed && self.offered[queue].is_none();
        (0..self.queues.len()).filter(move |queue| self.moves.owner_of(*queue) == cpu && is_there(*queue))
    }

    fn has_something_to_follow(&self, cpu: CpuIndex) -> bool {
        let state = &self.cpus[usize::from(cpu)];
        if state.is_declared_dead || state.pending_report != Report::Nothing {
            return true;
        }
        let Some(slice) = self.moves.slice() else { return false };
        match slice.phase {
            MovePhase::Park | MovePhase::Release => self.owned(cpu).any(|queue| slice.waits_for(queue)),
            MovePhase::Leave | MovePhase::Arrive => slice.waits_for(usize::from(cpu)),
        }
    }

    pub(super) fn is_over(&self, scenario: &Scenario) -> bool {
        let fates = self.queues.iter().flat_map(|queue| &queue.fates);
        self.requests_done == scenario.requests.len()
            && self.moves.is_settled()
            && self.offered.iter().all(Option::is_none)
            && fates.into_iter().all(|fate| matches!(fate, Fate::Delivered | Fate::Dropped))
    }

    /// Returns true if `cpu` is in its handler, and another live CPU waits for `cpu` and may
    /// declare `cpu` dead.
    pub(super) fn is_held_up_by(&self, scenario: &Scenario, cpu: CpuIndex) -> bool {
        let others_watch = (0..self.cpus.len() as CpuIndex)
            .any(|other| other != cpu && self.owned(other).any(|at| self.watches_on(at)));
        let has_frames_that_wait = (0..self.queues.len()).any(|at| {
            let ring = &self.queues[at].rings[usize::from(cpu)];
            scenario.queues[at].can_wait && ring.sent != ring.finished
        });
        self.moves.is_timed()
            && self.deaths < scenario.deaths
            && self.can_be_declared_dead(usize::from(cpu))
            && others_watch
            && !has_frames_that_wait
    }

    /// Returns true if the queue's owner checks how long the move takes. The owner of an ended
    /// queue does not, because the queue will be closed.
    fn watches_on(&self, queue: usize) -> bool {
        self.moves.awaits_move(queue) && !self.queues[queue].has_ended()
    }

    pub(super) fn take(&mut self, step: Step, scenario: &Scenario) {
        match step {
            Step::Request => self.request(scenario),
            Step::Receive(queue) => self.receive(queue, scenario),
            Step::Take(cpu, queue) => self.take_frame(cpu, queue),
            Step::Return(cpu) => self.returns(cpu, scenario),
            Step::Follow(cpu) => self.follow(cpu, scenario),
            Step::Hurry(cpu, victim) => self.hurry(cpu, victim, scenario),
            Step::Close(queue) => {
                self.queues[queue].is_closed = true;
                self.on(Event::Closed { queue });
            }
            Step::Offer(queue) => self.offered[queue] = self.wanted[queue].take(),
            Step::Adopt(cpu, queue) => self.adopt(cpu, queue),
        }
        self.check(scenario);
    }

    fn on(&mut self, event: Event<'_>) -> Vec<Ask> {
        let at = |moves: &Moves| moves.slice().map(|slice| (slice.epoch, slice.phase));
        let mut actions = Actions::default();
        let before = at(&self.moves);
        let leaves_others = self.moves.slice().is_some_and(|slice| !slice.with_state);
        let groups: Vec<u16> = (0..self.queues.len()).map(|queue| self.moves.map_of(queue).1).collect();
        let is_wish = matches!(event, Event::Mask { .. } | Event::Present(_) | Event::Plan { .. } | Event::Map { .. });
        self.moves.on(event, &mut actions);
        for (queue, group) in groups.iter().enumerate() {
            if leaves_others && self.moves.map_of(queue).1 != *group {
                self.forget_flows_of(queue);
            }
        }
        let has_its_owner = |queue: &usize| self.offered[*queue].is_none();
        for queue in
            (0..self.queues.len()).filter(|queue| is_wish && self.moves.awaits_move(*queue)).filter(has_its_owner)
        {
            let owner = self.moves.owner_of(queue);
            assert!(actions.wake.contains(&owner), "CPU {owner} is not woken to watch the move");
        }
        if at(&self.moves).is_some() && at(&self.moves) != before {
            assert!(actions.changed, "a new phase is not announced");
            for cpu in 0..self.cpus.len() as CpuIndex {
                let is_asleep = self.cpus[usize::from(cpu)].pending_report == Report::Nothing;
                let is_back = !self.cpus[usize::from(cpu)].is_declared_dead;
                let must_wake = is_asleep && is_back && self.has_something_to_follow(cpu);
                assert!(
                    !must_wake || actions.wake.contains(&cpu),
                    "CPU {cpu} is not woken for its part in {:?}, before {before:?}",
                    self.moves.slice
                );
            }
        }
        actions.asks
    }

    fn request(&mut self, scenario: &Scenario) {
        let request = &scenario.requests[self.requests_done];
        self.requests_done += 1;
        match request {
            Request::Mask(queues, cpus) => {
                queues.iter().for_each(|queue| self.masks[*queue].clone_from(cpus));
                self.on(Event::Mask { queues, cpus })
            }
            Request::Present(cpus) => self.on(Event::Present(cpus)),
            Request::Plan(plan) => self.on(Event::Plan { group: 0, plan: plan.clone() }),
            Request::Map(map) if self.moves.allows(0, map) => {
                self.on(Event::Map { group: 0, map, plan: Plan::all(), cause: MoveCause::Balance })
            }
            Request::Map(_) => Vec::new(),
            Request::Owner(queue, cpu) => {
                self.wanted[*queue] = Some(*cpu).filter(|cpu| *cpu != self.moves.owner_of(*queue));
                Vec::new()
            }
        };
    }

    fn receive(&mut self, at: usize, scenario: &Scenario) {
        let queue = &mut self.queues[at];
        let Some(packet) = queue.fates.iter().position(|fate| *fate == Fate::ToCome) else { return };
        queue.fates[packet] = Fate::InFlight;
        match queue.table[usize::from(scenario.packets[at][packet])] {
            Target::Cpu(cpu) => queue.send(cpu, packet),
            Target::Lot if queue.lot_is_shut => queue.end(packet, Fate::Dropped),
            Target::Lot => queue.lot.push(packet),
        }
    }

    fn take_frame(&mut self, cpu: CpuIndex, at: usize) {
        let queue = &mut self.queues[at];
        let ring = &mut queue.rings[usize::from(cpu)];
        let packet = ring.waiting.remove(0);
        ring.taken += 1;
        if ring.taken <= ring.revoked_until {
            ring.finished += 1;
            queue.end(packet, Fate::Dropped);
        } else {
            self.cpus[usize::from(cpu)].busy = Busy::Packet { queue: at, packet };
        }
    }

    /// The handler of a CPU returns. If the CPU was declared dead in its handler, the batch does
    /// not count as handled.
    fn returns(&mut self, index: CpuIndex, scenario: &Scenario) {
        let cpu = &mut self.cpus[usize::from(index)];
        let counts = !cpu.is_declared_dead;
        if !counts {
            cpu.has.clear();
            cpu.carries.clear();
        }
        match std::mem::replace(&mut cpu.busy, Busy::No) {
            Busy::No => {}
            Busy::Packet { queue, packet } => {
                let bucket = scenario.packets[queue][packet];
                let state = (self.queues[queue].group, bucket, queue);
                if counts {
                    self.uses_state(index, state);
                    let last = &mut self.queues[queue].last[usize::from(bucket)];
                    assert!(packet >= *last, "packet {packet} of queue {queue} comes after packet {last}");
                    *last = packet + 1;
                }
                let fate = if counts { Fate::Delivered } else { Fate::Dropped };
                self.queues[queue].end(packet, fate);
                self.queues[queue].rings[usize::from(index)].finished += 1;
            }
            Busy::Leaving { epoch, group, buckets } if counts => {
                let leaves = |state: &FlowState| state.0 == group && buckets.contains(&state.1);
                cpu.carries = cpu.has.iter().filter(|state| leaves(state)).map(|state| (state.1, state.2)).collect();
                cpu.has.retain(|state| !leaves(state));
                cpu.pending_report = Report::Left { epoch };
            }
            Busy::Arriving { epoch, group } if counts => {
                let arrives = |(bucket, queue)| (group, bucket, queue);
                self.known.extend(cpu.carries.iter().copied().map(arrives));
                cpu.has.extend(cpu.carries.drain(..).map(arrives));
                cpu.pending_report = Report::Arrived { epoch };
            }
            Busy::Leaving { .. } | Busy::Arriving { .. } => {}
        }
    }

    fn uses_state(&mut self, cpu: CpuIndex, state: FlowState) {
        let elsewhere =
            self.cpus.iter().enumerate().find(|(at, other)| *at != usize::from(cpu) && other.has.contains(&state));
        let is_on_its_way = self.in_transit.1.contains(&(state.1, state.2)) && self.is_moving_group(state.0);
        let elsewhere = elsewhere.filter(|(_, other)| !other.is_declared_dead);
        assert!(elsewhere.is_none() && !is_on_its_way, "CPU {cpu} handles {state:?}, whose state is elsewhere");
        if self.cpus[usize::from(cpu)].has.insert(state) {
            assert!(self.known.insert(state), "CPU {cpu} makes the state of {state:?} anew, which was lost");
        }
    }

    /// If a queue leaves a group in which other queues stay, the state of its flows stays in the
    /// old group.
    fn forget_flows_of(&mut self, queue: usize) {
        self.cpus.iter_mut().for_each(|cpu| cpu.has.retain(|state| state.2 != queue));
        self.known.retain(|state| state.2 != queue);
    }

    fn is_moving_group(&self, group: u16) -> bool {
        // Flow state that no handler has taken over by the end of the phase `Arrive` is lost.
        let is_under_way = |slice: &Slice| slice.epoch == self.in_transit.0 && slice.phase != MovePhase::Release;
        self.moves.slice().is_some_and(|slice| slice.group_after == group && is_under_way(slice))
    }

    pub(super) fn lose_a_packet(mut self, scenario: &Scenario) {
        self.queues.iter_mut().flat_map(|queue| &mut queue.rings).for_each(|ring| ring.waiting.clear());
        self.check(scenario);
    }

    fn check(&self, scenario: &Scenario) {
        self.check_settled();
        for (at, mask) in self.masks.iter().enumerate().filter(|(at, _)| self.moves.is_open(*at)) {
            assert_eq!(self.moves.mask_of(at), mask, "the last wish for queue {at} is forgotten");
        }
        assert!(self.moves.is_moving || self.moves.slice.waiting.is_empty(), "the machine waits between two slices");
        for (at, queue) in self.queues.iter().enumerate() {
            let in_rings: usize = queue.rings.iter().map(|ring| ring.waiting.len()).sum();
            let in_hand =
                self.cpus.iter().filter(|cpu| matches!(cpu.busy, Busy::Packet { queue, .. } if queue == at)).count();
            let in_flight = queue.fates.iter().filter(|fate| **fate == Fate::InFlight).count();
            assert_eq!(in_flight, in_rings + in_hand + queue.lot.len(), "queue {at} has lost or doubled a packet");
            let loses = self.deaths == 0 && queue.fates.contains(&Fate::Dropped);
            assert!(!loses || !scenario.queues[at].can_wait, "queue {at} can wait and loses a packet");
            for bucket in 0..scenario.buckets as u16 {
                self.check_bucket(at, bucket);
            }
        }
    }

    /// Checks that no open queue sends frames to a CPU outside of the queue's mask when every mask
    /// is in effect.
    fn check_settled(&self) {
        if !self.moves.is_settled() {
            return;
        }
        assert!(self.moves.slice().is_none(), "buckets still move");
        for at in (0..self.queues.len()).filter(|at| self.moves.is_open(*at)) {
            let (map, mask) = (self.moves.map_of(at).0, self.moves.mask_of(at));
            assert!(map.iter().all(|cpu| mask.contains(cpu)), "queue {at} is not settled");
        }
    }

    /// Checks that the frames of a bucket are on only one CPU at a time, except for frames on a
    /// dead CPU.
    fn check_bucket(&self, at: usize, bucket: u16) {
        let (map, _) = self.moves.map_of(at);
        let target = self.queues[at].table[usize::from(bucket)];
        let is_there = !self.queues[at].is_closed && self.offered[at].is_none();
        let sends = is_there && !self.moves.is_dead(self.moves.owner_of(at));
        if let (Target::Cpu(cpu), true, None) = (target, sends, self.moves.slice()) {
            assert_eq!(cpu, map[usize::from(bucket)], "queue {at} sends bucket {bucket} by an old map");
        }
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let moves = &self.moves;
        for group in &moves.groups {
            (&group.version, &group.mask, &group.map, &group.want).hash(hasher);
        }
        for queue in &moves.queues {
            (queue.group, queue.joining, &queue.map, queue.open, queue.owner).hash(hasher);
        }
        let slice = &moves.slice;
        (moves.is_moving, moves.next_bucket, &moves.dead, &moves.absent).hash(hasher);
        if moves.is_moving {
            (slice.epoch, slice.phase, slice.group_before, slice.group_after, slice.revoked).hash(hasher);
            (&slice.queues, &slice.with_state, &slice.waiting).hash(hasher);
            slice.moves.iter().for_each(|m| (m.bucket, m.from, m.to, m.has_state).hash(hasher));
        }
        (&self.queues, &self.cpus, &self.in_transit, &self.known).hash(hasher);
        (self.requests_done, self.deaths, &self.wanted, &self.offered).hash(hasher);
    }
}
