//! What a CPU has to do for moves, between two polls.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::handler::{BucketId, Handler};
use crate::limits::LOOK_GRACE;
use crate::moves::{Phase, State};
use crate::platform::Platform;
use crate::rps_map::CpuIndex;
use crate::softnet::Softnet;

impl<H: Handler, P: Platform> Softnet<H, P> {
    /// Plays this CPU's part in the slice that moves, as far as it can now.
    #[cold]
    #[inline(never)]
    pub(crate) fn do_duties(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        // Read before the state: what changes after this is seen as a change.
        let version = shared.steering.version();
        let Some(mut state) = shared.steering.try_lock() else {
            self.duty = true;
            return;
        };
        self.seen = version;
        self.duty = false;
        self.limits = state.limits_for(self.index);
        self.measures = state.look_every().is_some();
        self.next_look = state.next_look();
        self.to_name = state.buckets_to_name();
        for queue in &mut self.queues {
            queue.set_limits(self.limits, state.queue_limits(queue.id));
            queue.set_flow_limits(state.flow_limited(), self.limits.flow_limit_table_len);
        }
        state = self.measure_distance(&shared, state);
        let mut open = Vec::new();
        while let Some(slice) = &mut state.slice {
            let (phase, epoch) = (slice.phase, slice.epoch);
            match phase {
                Phase::Park => open = self.park_queues(&mut state),
                Phase::Leave if slice.waiting.contains(&usize::from(self.index)) => {
                    drop(state);
                    self.buckets_leave(epoch);
                    state = shared.steering.lock();
                }
                Phase::Arrive if slice.waiting.contains(&usize::from(self.index)) => {
                    drop(state);
                    self.buckets_arrive(epoch);
                    state = shared.steering.lock();
                }
                Phase::Leave | Phase::Arrive => {}
                Phase::Release => self.release_queues(&mut state),
            }
            state.advance();
            if !state.slice.as_ref().is_some_and(|slice| (slice.phase, slice.epoch) != (phase, epoch)) {
                break;
            }
        }
        // Whoever has a queue in the slice keeps an eye on it until it is through: somebody has to see that it takes long.
        self.duty |= self.queues.iter().any(|queue| state.concerns(queue.id));
        if self.duty {
            state.hurry(self.index, &open, &shared.core.gates, self.cpu.now);
        }
        self.publish_control(state);
    }

    /// Has the policies look at the load. Who receives has the least time for it, and leaves it to others if it can.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&mut self) {
        let shared = std::sync::Arc::clone(&self.shared);
        let now = self.cpu.now;
        let Some(mut state) = shared.steering.try_lock() else {
            self.next_look = now + LOOK_GRACE;
            return;
        };
        let due = state.next_look();
        let grace = if self.queues.is_empty() { Duration::ZERO } else { LOOK_GRACE };
        if now < due + grace {
            self.next_look = due + grace;
            return;
        }
        state.look(&shared.core, now);
        self.next_look = state.next_look() + grace;
        self.publish_control(state);
    }

    /// Returns the CPUs whose fences are waited for.
    fn park_queues(&mut self, state: &mut State<H::Moved>) -> Vec<CpuIndex> {
        let dead: Vec<bool> = (0..self.shared.core.cpus.len()).map(|cpu| state.is_dead(cpu as CpuIndex)).collect();
        let mut open: Vec<CpuIndex> = Vec::new();
        let Some(slice) = &mut state.slice else { return open };
        let mut shown = Vec::new();
        for queue in &mut self.queues {
            // One that has ended with nothing under way is closed this round, which counts as done: parked again and again
            // by one move after the other, it would never end.
            if !slice.waiting.contains(&queue.id) || (!queue.is_parked() && queue.is_at_rest()) {
                continue;
            }
            queue.park(slice.epoch, &slice.moves, |cpu| shown.push(cpu));
            slice.has_parked(queue.id);
            if queue.fences_passed(|cpu| dead[usize::from(cpu)]) {
                slice.done(queue.id);
            } else {
                open.extend(queue.fences_open());
                if slice.revoked {
                    queue.revoke();
                }
                self.duty = true;
            }
        }
        self.wake_shown(&shown);
        open
    }

    fn release_queues(&mut self, state: &mut State<H::Moved>) {
        let Some(slice) = &mut state.slice else { return };
        let mut shown = Vec::new();
        for queue in &mut self.queues {
            if !slice.waiting.contains(&queue.id) {
                continue;
            }
            // Nothing of the queue is under way when it changes its group, so no packet is known by two.
            self.shared.core.queues[queue.id].group.store(slice.group_after, Ordering::Relaxed);
            if queue.release(&slice.moves, |cpu| shown.push(cpu)) {
                slice.done(queue.id);
            } else {
                self.duty = true;
            }
        }
        self.wake_shown(&shown);
    }

    fn wake_shown(&self, shown: &[usize]) {
        self.shared.core.sleepers.after_publishing();
        for cpu in shown {
            if *cpu != usize::from(self.index) && self.shared.core.wake(*cpu) {
                self.ledger().wakes_sent.add(1);
            }
        }
    }

    /// Without the lock: the function may take its time.
    fn buckets_leave(&mut self, epoch: u64) {
        let shared = std::sync::Arc::clone(&self.shared);
        let me = self.index;
        let buckets: Vec<BucketId> = {
            let state = shared.steering.lock();
            let Some(slice) = &state.slice else { return };
            let group = slice.group_before;
            slice.moves.iter().filter(|m| m.from == me).map(|m| BucketId { group, bucket: m.bucket }).collect()
        };
        let given = self.in_gate("bucket_leaves", |handler, _| {
            buckets.iter().map(|bucket| (bucket.bucket, handler.bucket_leaves(*bucket))).collect::<Vec<_>>()
        });
        let mut state = shared.steering.lock();
        let Some(slice) = state.slice.as_mut().filter(|slice| slice.epoch == epoch && slice.phase == Phase::Leave)
        else {
            return;
        };
        // Declared dead meanwhile: what it gives up is void.
        if !slice.waiting.contains(&usize::from(me)) {
            return;
        }
        for (bucket, moved) in given.unwrap_or_default() {
            if let Ok(at) = slice.moves.binary_search_by_key(&bucket, |m| m.bucket) {
                slice.moves[at].state = moved;
            }
        }
        slice.done(usize::from(me));
    }

    fn buckets_arrive(&mut self, epoch: u64) {
        let shared = std::sync::Arc::clone(&self.shared);
        let me = self.index;
        let arriving: Vec<(BucketId, H::Moved)> = {
            let mut state = shared.steering.lock();
            let Some(slice) = &mut state.slice else { return };
            let group = slice.group_after;
            let mine = slice.moves.iter_mut().filter(|m| m.to == me);
            mine.filter_map(|m| Some((BucketId { group, bucket: m.bucket }, m.state.take()?))).collect()
        };
        self.in_gate("bucket_arrives", |handler, _| {
            arriving.into_iter().for_each(|(bucket, state)| handler.bucket_arrives(bucket, state));
        });
        let mut state = shared.steering.lock();
        if let Some(slice) = state.slice.as_mut().filter(|slice| slice.epoch == epoch && slice.phase == Phase::Arrive) {
            slice.done(usize::from(me));
        }
    }

    /// This CPU finds that it was declared dead. Puts everything in order, then counts as alive again.
    #[cold]
    pub(crate) fn rise(&mut self) {
        tracing::warn!(cpu = self.cpu.id.0, "was declared dead; its handler is built anew");
        self.ledger().deaths.add(1);
        self.replace_handler();
        let shared = std::sync::Arc::clone(&self.shared);
        let mut state = shared.steering.lock();
        state.rise(self.index);
        for queue in &mut self.queues {
            let (map, group) = state.map_of(queue.id);
            shared.core.queues[queue.id].group.store(group, Ordering::Relaxed);
            queue.rise(map);
            // A slice that is half through: this queue must not send to the old CPU again.
            if let Some(slice) = state.slice.as_ref().filter(|s| s.phase != Phase::Release && s.includes(queue.id)) {
                queue.park(slice.epoch, &slice.moves, |_| {});
            }
        }
        self.duty = true;
        shared.core.gates[usize::from(self.index)].rise();
        self.publish_control(state);
    }
}
