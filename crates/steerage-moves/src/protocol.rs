//! The phases of a move, and what happens if a queue ends, a CPU is late, or a CPU dies.

use crate::counts::MoveCause;

use crate::{Actions, Ask, BucketMove, CpuIndex, Event, MovePhase, Moves};

impl Moves {
    /// Processes an event, and adds the resulting actions to `actions`.
    pub fn on(&mut self, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Mask { queues, cpus } => self.set_mask(queues, cpus),
            Event::Present(cpus) => self.set_present(cpus),
            Event::Plan { group, plan } => self.set_plan(group, plan),
            Event::Map { group, map, plan, cause } => self.set_map(group, map, plan, cause),
            Event::Died(cpu) => self.died(cpu, actions),
            Event::Revived(cpu) => self.revived(cpu, actions),
            Event::Owner { queue, cpu } => self.set_owner(queue, cpu, actions),
            // These events concern the current slice, and request no new move.
            Event::Overdue { by, open } => return self.overdue(by, open, actions),
            Event::FencesPassed { queue, epoch } => return self.done(queue, epoch, MovePhase::Park, actions),
            Event::Left { cpu, epoch, with_state } => return self.left(cpu, epoch, with_state, actions),
            Event::Arrived { cpu, epoch } => return self.arrived(cpu, epoch, actions),
            Event::Released { queue, epoch } => return self.done(queue, epoch, MovePhase::Release, actions),
            Event::Closed { queue } => return self.close(queue, actions),
        }
        self.advance(actions);
        self.wake_watchers(actions);
    }

    /// Wakes the CPUs that check whether the current move is delayed.
    fn wake_watchers(&self, actions: &mut Actions) {
        (0..self.queues.len()).filter(|at| self.awaits_move(*at)).for_each(|at| actions.wake(self.queues[at].owner));
    }

    fn is_at(&self, epoch: u64, phase: MovePhase) -> bool {
        self.slice().is_some_and(|slice| slice.is_at(epoch, phase))
    }

    fn done(&mut self, who: usize, epoch: u64, phase: MovePhase, actions: &mut Actions) {
        if self.is_at(epoch, phase) {
            self.slice.done(who);
            self.advance(actions);
        }
    }

    fn left(&mut self, cpu: CpuIndex, epoch: u64, with_state: &[u16], actions: &mut Actions) {
        // Flow state from a CPU that was declared dead during this phase is ignored.
        if !self.is_at(epoch, MovePhase::Leave) || !self.slice.waits_for(usize::from(cpu)) {
            return;
        }
        for bucket in with_state {
            if let Ok(at) = self.slice.moves.binary_search_by_key(bucket, |m| m.bucket) {
                self.slice.moves[at].has_state = true;
            }
        }
        self.done(usize::from(cpu), epoch, MovePhase::Leave, actions);
    }

    fn arrived(&mut self, cpu: CpuIndex, epoch: u64, actions: &mut Actions) {
        if self.is_at(epoch, MovePhase::Arrive) && self.slice.waits_for(usize::from(cpu)) {
            self.slice.moves.iter_mut().filter(|m| m.to == cpu).for_each(|m| m.has_state = false);
            self.done(usize::from(cpu), epoch, MovePhase::Arrive, actions);
        }
    }

    fn close(&mut self, queue: usize, actions: &mut Actions) {
        self.queues[queue].open = false;
        if matches!(self.slice.phase, MovePhase::Park | MovePhase::Release) {
            self.slice.done(queue);
        }
        self.advance(actions);
    }

    fn advance(&mut self, actions: &mut Actions) {
        loop {
            if !self.is_moving && !self.begin_slice(actions) {
                return;
            }
            while self.is_moving && self.slice.waiting.is_empty() {
                self.next_phase(actions);
            }
            if self.is_moving {
                return;
            }
        }
    }

    fn begin_slice(&mut self, actions: &mut Actions) -> bool {
        if !self.next_joining() && !self.next_of_a_group() {
            return false;
        }
        let Self { slice, queues, .. } = self;
        slice.epoch += 1;
        slice.phase = MovePhase::Park;
        slice.revoked = false;
        let before = slice.group_before;
        slice.with_state =
            queues.iter().enumerate().all(|(at, queue)| queue.group != before || slice.queues.contains(&at));
        slice.waiting.extend(slice.queues.iter().copied().filter(|queue| queues[*queue].open));
        self.is_moving = true;
        self.find_old_cpus();
        self.announce(actions);
        true
    }

    /// Returns true if the queue can take part in a move. The moves of a dead CPU's queues wait,
    /// and do not delay other moves.
    fn is_served(&self, queue: &crate::Queue) -> bool {
        queue.open && !self.is_dead(queue.owner)
    }

    /// Begins to park all buckets of a queue that joins another group, because the group must
    /// change at one point in the queue's sequence of frames.
    fn next_joining(&mut self) -> bool {
        let joining =
            |(at, queue): (usize, &crate::Queue)| Some((at, queue.joining.filter(|_| self.is_served(queue))?));
        let Some((queue, after)) = self.queues.iter().enumerate().find_map(joining) else { return false };
        let Self { slice, queues, groups, .. } = self;
        let (from, to) = (&queues[queue].map, &groups[usize::from(after)].map);
        slice.moves.clear();
        let moves = from.iter().zip(to).enumerate();
        slice.moves.extend(moves.map(|(bucket, (from, to))| BucketMove {
            bucket: bucket as u16,
            from: *from,
            to: *to,
            has_state: false,
        }));
        (slice.group_before, slice.group_after) = (queues[queue].group, after);
        slice.queues.clear();
        slice.queues.push(queue);
        true
    }

    fn next_of_a_group(&mut self) -> bool {
        for at in 0..self.groups.len() {
            if self.open_queues_of(at).next().is_none() {
                let group = &mut self.groups[at];
                group.map.copy_from_slice(&group.want);
            }
        }
        let is_served = |at: usize| self.queues.iter().any(|q| usize::from(q.group) == at && self.is_served(q));
        let moves = |at: &usize| self.groups[*at].map != self.groups[*at].want && is_served(*at);
        let Some(at) = (0..self.groups.len()).find(moves) else { return false };
        let Self { slice, queues, groups, next_bucket, buckets, slice_buckets, .. } = self;
        let (map, want) = (&groups[at].map, &groups[at].want);
        slice.moves.clear();
        // The search for buckets continues after those of the previous slice, so that every bucket
        // moves eventually.
        let by_turns = (*next_bucket..*buckets).chain(0..*next_bucket);
        let differ = by_turns.filter(|bucket| map[*bucket] != want[*bucket]).take(*slice_buckets);
        slice.moves.extend(differ.map(|bucket| BucketMove {
            bucket: bucket as u16,
            from: map[bucket],
            to: want[bucket],
            has_state: false,
        }));
        *next_bucket = slice.moves.last().map_or(0, |m| (usize::from(m.bucket) + 1) % *buckets);
        slice.moves.sort_unstable_by_key(|m| m.bucket);
        (slice.group_before, slice.group_after) = (at as u16, at as u16);
        slice.queues.clear();
        slice.queues.extend((0..queues.len()).filter(|queue| usize::from(queues[*queue].group) == at));
        true
    }

    fn find_old_cpus(&mut self) {
        let Self { slice, scratch, .. } = self;
        scratch.marks.fill(false);
        slice.old_cpus.clear();
        for m in &slice.moves {
            if !std::mem::replace(&mut scratch.marks[usize::from(m.from)], true) {
                slice.old_cpus.push(m.from);
            }
        }
    }

    fn wait_for_arrivals(&mut self) {
        let Self { slice, scratch, dead, .. } = self;
        scratch.marks.copy_from_slice(dead);
        slice.waiting.clear();
        for m in slice.moves.iter().filter(|m| m.has_state) {
            if !std::mem::replace(&mut scratch.marks[usize::from(m.to)], true) {
                slice.waiting.push(usize::from(m.to));
            }
        }
    }

    fn next_phase(&mut self, actions: &mut Actions) {
        match self.slice.phase {
            // All queues of the slice ended in the park phase, so the move ends, and no flow state
            // moves.
            MovePhase::Park if self.slice.queues.iter().all(|queue| !self.queues[*queue].open) => {
                self.is_moving = false;
                return;
            }
            MovePhase::Park => {
                let Self { slice, dead, .. } = self;
                slice.phase = MovePhase::Leave;
                if slice.with_state {
                    let living = slice.old_cpus.iter().map(|cpu| usize::from(*cpu)).filter(|cpu| !dead[*cpu]);
                    slice.waiting.extend(living);
                }
            }
            MovePhase::Leave => {
                self.slice.phase = MovePhase::Arrive;
                self.wait_for_arrivals();
            }
            MovePhase::Arrive => {
                self.put_in_force();
                let Self { slice, queues, dead, .. } = self;
                slice.phase = MovePhase::Release;
                let takes_part = |queue: &usize| queues[*queue].open && !dead[usize::from(queues[*queue].owner)];
                slice.waiting.extend(slice.queues.iter().copied().filter(takes_part));
            }
            MovePhase::Release => {
                self.counts.slices += 1;
                self.is_moving = false;
                return;
            }
        }
        self.announce(actions);
    }

    fn put_in_force(&mut self) {
        let Self { slice, groups, queues, counts, moved, dead, .. } = self;
        let after = usize::from(slice.group_after);
        let planned = groups[after].cause;
        for m in &slice.moves {
            let (bucket, moves) = (usize::from(m.bucket), u64::from(m.from != m.to));
            // Buckets must leave a dead CPU, even if the plan names it.
            let cause = if dead[usize::from(m.from)] { MoveCause::CpuDied } else { planned };
            counts.count(cause, moves);
            moved[bucket] += moves;
            slice.queues.iter().for_each(|queue| queues[*queue].map[bucket] = m.to);
            // If a queue joins the group, this store changes nothing, because `m.to` comes from the
            // group's map.
            groups[after].map[bucket] = m.to;
        }
        for queue in &slice.queues {
            let queue = &mut queues[*queue];
            queue.group = slice.group_after;
            if queue.joining == Some(slice.group_after) {
                queue.joining = None;
            }
        }
    }

    fn announce(&mut self, actions: &mut Actions) {
        actions.changed = true;
        match self.slice.phase {
            MovePhase::Park | MovePhase::Release => {
                self.slice.waiting.iter().for_each(|queue| actions.wake(self.queues[*queue].owner));
            }
            MovePhase::Leave | MovePhase::Arrive => {
                self.slice.waiting.iter().for_each(|cpu| actions.wake(*cpu as CpuIndex));
            }
        }
    }

    fn overdue(&mut self, by: CpuIndex, open: &[CpuIndex], actions: &mut Actions) {
        if !self.is_timed() {
            return;
        }
        let is_parking = self.slice.phase == MovePhase::Park;
        if is_parking && !self.slice.revoked {
            self.slice.revoked = true;
            actions.changed = true;
        }
        let mut suspect = |cpu: CpuIndex| {
            if cpu != by && !self.dead[usize::from(cpu)] {
                actions.ask(Ask::Declare(cpu));
            }
        };
        open.iter().copied().for_each(&mut suspect);
        for who in &self.slice.waiting {
            match self.slice.phase {
                MovePhase::Park | MovePhase::Release => suspect(self.queues[*who].owner),
                MovePhase::Leave | MovePhase::Arrive => suspect(*who as CpuIndex),
            }
        }
        self.ask_for_the_dead(actions);
    }

    /// Requests [`Ask::ReadFences`] for queues of dead CPUs. A dead CPU sends no frames, so the
    /// fences of its queues have been passed when all old CPUs that are alive have finished the
    /// frames of these queues.
    fn ask_for_the_dead(&self, actions: &mut Actions) {
        if self.slice.phase != MovePhase::Park {
            return;
        }
        let orphans = self.slice.waiting.iter().filter(|queue| self.is_dead(self.queues[**queue].owner));
        orphans.for_each(|queue| actions.ask(Ask::ReadFences { queue: *queue }));
    }

    fn died(&mut self, cpu: CpuIndex, actions: &mut Actions) {
        self.dead[usize::from(cpu)] = true;
        self.derive_all_maps(MoveCause::CpuDied);
        let Self { slice, groups, queues, .. } = self;
        // A queue that joins a group takes the group's map unchanged.
        if slice.group_before == slice.group_after && slice.phase != MovePhase::Release {
            let want = &groups[usize::from(slice.group_after)].want;
            for m in slice.moves.iter_mut().filter(|m| m.to == cpu) {
                m.to = want[usize::from(m.bucket)];
            }
        }
        match slice.phase {
            MovePhase::Park => {}
            MovePhase::Leave => slice.done(usize::from(cpu)),
            // Flow state that was to arrive on the dead CPU goes to the CPU that now gets the
            // bucket.
            MovePhase::Arrive => self.wait_for_arrivals(),
            MovePhase::Release => slice.waiting.retain(|queue| queues[*queue].owner != cpu),
        }
        self.announce(actions);
        self.ask_for_the_dead(actions);
    }

    fn revived(&mut self, cpu: CpuIndex, actions: &mut Actions) {
        self.dead[usize::from(cpu)] = false;
        self.derive_all_maps(MoveCause::CpuBack);
        let Self { slice, queues, .. } = self;
        if self.is_moving && matches!(slice.phase, MovePhase::Park | MovePhase::Release) {
            let mine = |queue: &&usize| queues[**queue].owner == cpu && queues[**queue].open;
            for queue in slice.queues.iter().filter(mine) {
                if !slice.waiting.contains(queue) {
                    slice.waiting.push(*queue);
                }
            }
        }
        actions.changed = true;
    }
    /// Records that `cpu` polls the queue. A queue that missed phases of a move, because its
    /// previous owner was dead, uses the current map.
    fn set_owner(&mut self, queue: usize, cpu: CpuIndex, actions: &mut Actions) {
        self.queues[queue].owner = cpu;
        // CPUs that poll queues come first in the group's order of CPUs.
        self.groups[usize::from(self.queues[queue].group)].version.changed += 1;
        actions.changed = true;
    }
}
