//! The steps of a CPU during moves, as in `participant.rs` of steerage-core.

use super::queue::{Fate, Target};
use super::{Busy, Report, Scenario, World};
use crate::{Ask, CpuIndex, Event, MovePhase, Slice};

impl World {
    pub(super) fn follow(&mut self, cpu: CpuIndex, scenario: &Scenario) {
        if self.cpus[usize::from(cpu)].is_declared_dead {
            self.come_back(cpu);
        }
        self.report(cpu);
        loop {
            let Some(slice) = self.moves.slice() else { return };
            let (phase, epoch) = (slice.phase, slice.epoch);
            let waits_for_me =
                slice.waits_for(usize::from(cpu)) && self.cpus[usize::from(cpu)].pending_report == Report::Nothing;
            match phase {
                MovePhase::Park => self.park(cpu),
                MovePhase::Leave if waits_for_me => {
                    let from_here = slice.moves.iter().filter(|m| m.from == cpu);
                    let buckets = from_here.map(|m| m.bucket).collect();
                    let group = slice.group_before;
                    self.cpus[usize::from(cpu)].busy = Busy::Leaving { epoch, group, buckets };
                    return;
                }
                MovePhase::Arrive if waits_for_me => {
                    let to_here = slice.moves.iter().filter(|m| m.to == cpu && m.has_state);
                    let mine: Vec<u16> = to_here.map(|m| m.bucket).collect();
                    let group = slice.group_after;
                    if self.in_transit.0 == epoch {
                        self.cpus[usize::from(cpu)].carries =
                            self.in_transit.1.iter().copied().filter(|(bucket, _)| mine.contains(bucket)).collect();
                        self.in_transit.1.retain(|(bucket, _)| !mine.contains(bucket));
                    }
                    self.cpus[usize::from(cpu)].busy = Busy::Arriving { epoch, group };
                    return;
                }
                MovePhase::Leave | MovePhase::Arrive => {}
                MovePhase::Release => self.release(cpu, scenario),
            }
            if self.moves.slice().is_none_or(|slice| slice.is_at(epoch, phase)) {
                return;
            }
        }
    }

    fn report(&mut self, index: CpuIndex) {
        let cpu = &mut self.cpus[usize::from(index)];
        let carries = if matches!(cpu.pending_report, Report::Left { .. }) {
            std::mem::take(&mut cpu.carries)
        } else {
            Vec::new()
        };
        match std::mem::replace(&mut cpu.pending_report, Report::Nothing) {
            Report::Nothing => {}
            Report::Left { epoch } => {
                let takes =
                    |slice: &&Slice| slice.is_at(epoch, MovePhase::Leave) && slice.waits_for(usize::from(index));
                if let Some(slice) = self.moves.slice().filter(takes) {
                    for (bucket, queue) in &carries {
                        self.known.remove(&(slice.group_before, *bucket, *queue));
                        // A queue that joins a group uses the group's current map.
                        let to = slice.moves.iter().find(|m| m.bucket == *bucket).map(|m| m.to);
                        if to.is_some_and(|to| !self.moves.is_dead(to)) {
                            self.known.insert((slice.group_after, *bucket, *queue));
                        }
                    }
                    if self.in_transit.0 != epoch {
                        self.in_transit = (epoch, Vec::new());
                    }
                    self.in_transit.1.extend(&carries);
                    self.in_transit.1.sort_unstable();
                }
                let mut with_state: Vec<u16> = carries.iter().map(|(bucket, _)| *bucket).collect();
                with_state.dedup();
                self.on(Event::Left { cpu: index, epoch, with_state: &with_state });
            }
            Report::Arrived { epoch } => drop(self.on(Event::Arrived { cpu: index, epoch })),
        }
    }

    fn park(&mut self, cpu: CpuIndex) {
        let owned: Vec<usize> = self.owned(cpu).collect();
        for at in owned {
            let Some(slice) = self.moves.slice() else { return };
            let (epoch, queue) = (slice.epoch, &mut self.queues[at]);
            let is_part = slice.is_at(epoch, MovePhase::Park) && slice.waits_for(at);
            if !is_part || (queue.parked.is_none() && queue.has_ended() && queue.is_at_rest()) {
                continue;
            }
            queue.park(epoch, slice.moves.iter().map(|m| (m.bucket, m.from)));
            let is_dead = |cpu: CpuIndex| self.moves.is_dead(cpu);
            let passed = queue.fences_passed(is_dead);
            if !passed && slice.revoked {
                queue.lot_is_shut = true;
                for (cpu, tail) in queue.fences.clone() {
                    queue.rings[usize::from(cpu)].revoke(tail);
                }
            }
            if passed {
                self.on(Event::FencesPassed { queue: at, epoch });
            }
        }
    }

    fn release(&mut self, cpu: CpuIndex, scenario: &Scenario) {
        let owned: Vec<usize> = self.owned(cpu).collect();
        for at in owned {
            let Some(slice) = self.moves.slice() else { return };
            let epoch = slice.epoch;
            if !slice.is_at(epoch, MovePhase::Release) || !slice.waits_for(at) {
                continue;
            }
            let queue = &mut self.queues[at];
            queue.group = slice.group_after;
            if queue.parked.take().is_some() {
                let to = |bucket: u16| slice.moves.iter().find(|m| m.bucket == bucket).map(|m| m.to);
                for packet in std::mem::take(&mut queue.lot) {
                    let cpu = to(scenario.packets[at][packet]).expect("a parked frame's bucket is moving");
                    queue.send(cpu, packet);
                }
                for m in &slice.moves {
                    queue.table[usize::from(m.bucket)] = Target::Cpu(m.to);
                }
                queue.lot_is_shut = false;
                queue.fences.clear();
            }
            self.on(Event::Released { queue: at, epoch });
        }
    }

    fn come_back(&mut self, cpu: CpuIndex) {
        self.on(Event::Revived(cpu));
        let owned: Vec<usize> = self.owned(cpu).collect();
        owned.into_iter().for_each(|at| self.go_by_the_map_in_force(at));
        let cpu = &mut self.cpus[usize::from(cpu)];
        cpu.is_declared_dead = false;
        cpu.pending_report = Report::Nothing;
        cpu.carries.clear();
    }

    /// Makes a queue use the current map, because buckets may have moved while no CPU polled the
    /// queue.
    fn go_by_the_map_in_force(&mut self, at: usize) {
        let queue = &mut self.queues[at];
        for packet in std::mem::take(&mut queue.lot) {
            queue.end(packet, Fate::Dropped);
        }
        let (map, group) = self.moves.map_of(at);
        queue.table = map.iter().map(|cpu| Target::Cpu(*cpu)).collect();
        queue.group = group;
        (queue.parked, queue.lot_is_shut) = (None, false);
        queue.fences.clear();
        if let Some(slice) = self.moves.slice().filter(|s| s.phase != MovePhase::Release && s.includes(at)) {
            queue.park(slice.epoch, slice.moves.iter().map(|m| (m.bucket, m.from)));
        }
    }

    /// Takes a queue that was released. The previous owner may have been declared dead after it
    /// released the queue.
    pub(super) fn adopt(&mut self, cpu: CpuIndex, queue: usize) {
        self.offered[queue] = None;
        if self.moves.owner_of(queue) != cpu {
            self.on(Event::Owner { queue, cpu });
        }
        self.go_by_the_map_in_force(queue);
    }

    pub(super) fn hurry(&mut self, cpu: CpuIndex, victim: Option<CpuIndex>, scenario: &Scenario) {
        let mut open = Vec::new();
        for at in self.owned(cpu) {
            let queue = &self.queues[at];
            open.extend(
                queue.fences.iter().filter(|(cpu, tail)| !queue.rings[usize::from(*cpu)].passed(*tail)).map(|f| f.0),
            );
        }
        let mut asks = self.on(Event::Overdue { by: cpu, open: &open });
        while !asks.is_empty() {
            match asks.remove(0) {
                Ask::Declare(late) => {
                    assert!(late != cpu && !self.moves.is_dead(late), "CPU {late} is suspected by mistake");
                    let waits = (0..self.queues.len()).any(|at| {
                        let ring = &self.queues[at].rings[usize::from(late)];
                        scenario.queues[at].can_wait && !self.queues[at].is_closed && ring.sent != ring.finished
                    });
                    if Some(late) == victim && self.can_be_declared_dead(usize::from(late)) && !waits {
                        self.cpus[usize::from(late)].is_declared_dead = true;
                        self.deaths += 1;
                        // Flow state in the dead CPU's handler, or on its way to or from this
                        // handler, may be lost.
                        self.known.clear();
                        asks.extend(self.on(Event::Died(late)));
                    }
                }
                Ask::ReadFences { queue } => {
                    let Some(slice) = self.moves.slice() else { continue };
                    assert!(self.moves.is_dead(self.moves.owner_of(queue)), "only the owner reads its fences");
                    let epoch = slice.epoch;
                    let mut passed = true;
                    for old in slice.old_cpus.clone() {
                        let ring = &mut self.queues[queue].rings[usize::from(old)];
                        if self.moves.is_dead(old) {
                            ring.revoke(ring.sent);
                        } else {
                            passed &= ring.sent == ring.finished;
                        }
                    }
                    if passed {
                        asks.extend(self.on(Event::FencesPassed { queue, epoch }));
                    }
                }
            }
        }
    }
}
