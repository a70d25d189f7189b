//! A slice that takes too long: whoever holds it up is told to discard, and at last declared dead.

use super::{Phase, State, cpus};
use crate::gate::Gate;
use crate::ledger::MoveCause;
use crate::limits::{DEAD_AFTER, MOVE_WAIT};
use crate::platform::Timestamp;
use crate::rps_map::CpuIndex;

impl<M> State<M> {
    pub(crate) fn is_dead(&self, cpu: CpuIndex) -> bool {
        self.dead[usize::from(cpu)]
    }

    /// Whether time counts for the slice that moves: not if one of its queues can wait.
    fn is_timed(&self) -> bool {
        let can_wait = |queue: &usize| self.queues[*queue].open && self.queues[*queue].control.can_wait;
        self.slice.as_ref().is_some_and(|slice| !slice.queues.iter().any(can_wait))
    }

    /// Whether `cpu` has frames of a queue that can wait: of those none is to be lost, however long it takes.
    fn is_waited_for(&self, cpu: CpuIndex) -> bool {
        self.queues.iter().filter(|queue| queue.open && queue.control.can_wait).any(|queue| {
            let (published, finished) = queue.control.gauges[usize::from(cpu)].read();
            published != finished
        })
    }

    /// Looks whether the slice takes too long, and acts on it. `open` are the CPUs whose fences the caller waits for.
    pub(crate) fn hurry(&mut self, me: CpuIndex, open: &[CpuIndex], gates: &[Gate], now: Timestamp) {
        if !self.is_timed() {
            return;
        }
        let Some(slice) = &mut self.slice else { return };
        if now.since(*slice.since.get_or_insert(now)) < MOVE_WAIT {
            return;
        }
        if slice.phase == Phase::Park && !slice.revoked {
            slice.revoked = true;
            self.changed = true;
        }
        // Those who hold it up: CPUs with frames to finish, and those who have not even answered.
        let mut late: Vec<CpuIndex> = open.to_vec();
        match slice.phase {
            Phase::Park => {
                let silent = slice.waiting.iter().filter(|queue| !slice.parked.contains(queue));
                late.extend(silent.map(|queue| self.queues[*queue].control.owner));
            }
            Phase::Leave | Phase::Arrive => late.extend(slice.waiting.iter().map(|cpu| *cpu as CpuIndex)),
            Phase::Release => late.extend(slice.waiting.iter().map(|queue| self.queues[*queue].control.owner)),
        }
        late.retain(|cpu| *cpu != me && !self.dead[usize::from(*cpu)] && !self.is_waited_for(*cpu));
        let Some(slice) = &mut self.slice else { return };
        let mut died = Vec::new();
        for cpu in late {
            let sign = gates[usize::from(cpu)].sign();
            match slice.suspects.iter_mut().find(|(suspect, ..)| *suspect == cpu) {
                None => slice.suspects.push((cpu, sign, now)),
                Some((_, seen, since)) if *seen != sign => (*seen, *since) = (sign, now),
                Some((_, _, since)) if now.since(*since) < DEAD_AFTER => {}
                Some(_) if gates[usize::from(cpu)].declare_dead(sign) => died.push(cpu),
                Some(_) => {}
            }
        }
        for cpu in died {
            self.bury(cpu);
        }
        self.answer_for_the_dead();
        self.advance();
    }

    /// A CPU was declared dead: its buckets are to go to the living, and nobody waits for it.
    fn bury(&mut self, cpu: CpuIndex) {
        self.dead[usize::from(cpu)] = true;
        self.changed = true;
        for group in 0..self.groups.len() {
            self.plan(group, MoveCause::CpuDied);
        }
        let Some(slice) = &mut self.slice else { return };
        // But not where a queue joins a group: it has to take over that group's map as it is.
        if slice.group_before == slice.group_after && slice.phase != Phase::Release {
            let want = &self.groups[usize::from(slice.group_after)].want;
            for m in slice.moves.iter_mut().filter(|m| m.to == cpu) {
                m.to = want.0[usize::from(m.bucket)];
            }
        }
        match slice.phase {
            Phase::Park => {}
            Phase::Leave => slice.done(usize::from(cpu)),
            // What was on its way to it goes to whoever has the bucket now.
            Phase::Arrive => {
                slice.waiting = cpus(slice.moves.iter().filter(|m| m.state.is_some()).map(|m| m.to));
                let dead = &self.dead;
                slice.waiting.retain(|cpu| !dead[*cpu]);
            }
            Phase::Release => {
                let queues = &self.queues;
                slice.waiting.retain(|queue| queues[*queue].control.owner != cpu);
            }
        }
        self.announce();
    }

    /// The queues of a dead CPU send nothing: they count as parked, and as passed once their rings are finished. What
    /// they had sent to the dead is revoked.
    fn answer_for_the_dead(&mut self) {
        let Some(slice) = &mut self.slice else { return };
        if slice.phase != Phase::Park {
            return;
        }
        let (queues, dead) = (&self.queues, &self.dead);
        let old = cpus(slice.moves.iter().map(|m| m.from));
        slice.waiting.retain(|queue| {
            let control = &queues[*queue].control;
            let passed = |cpu: &usize| {
                if dead[*cpu] {
                    control.gauges[*cpu].revoke_published();
                    return true;
                }
                let (published, finished) = control.gauges[*cpu].read();
                published == finished
            };
            !(dead[usize::from(control.owner)] && old.iter().all(passed))
        });
    }

    /// A CPU is back from the dead: buckets may come to it again, and its queues take part in what moves.
    pub(crate) fn rise(&mut self, cpu: CpuIndex) {
        self.dead[usize::from(cpu)] = false;
        for group in 0..self.groups.len() {
            self.plan(group, MoveCause::CpuBack);
        }
        if let Some(slice) = &mut self.slice {
            let queues = &self.queues;
            let mine = |queue: &&usize| queues[**queue].control.owner == cpu && queues[**queue].open;
            if matches!(slice.phase, Phase::Park | Phase::Release) {
                let missing: Vec<usize> = slice.queues.iter().filter(mine).copied().collect();
                for queue in missing {
                    if !slice.waiting.contains(&queue) {
                        slice.waiting.push(queue);
                    }
                }
            }
        }
        self.changed = true;
        self.begin_slice();
    }
}
