//! A queue's part in a move: it parks packets of moving buckets, waits for the fences (the old CPUs
//! have finished earlier packets), and releases the parked packets.

use steerage_flow::FlowHash;
use steerage_mem::{Outbox, RingsInUse};
use steerage_moves::BucketMove;

use super::{OwnedQueue, Published};
use crate::ids::{CpuIndex, DropReason};
use crate::rps_map::bucket_of;

pub(super) struct Moving {
    parked: Option<u64>,
    /// The fence of each CPU that the parked buckets leave: the tail of this CPU's ring at the time
    /// of parking.
    fences: Vec<(CpuIndex, u64)>,
    lot_slots: usize,
}

impl Moving {
    pub(super) fn new(outbox: &mut Outbox) -> Self {
        Self { parked: None, fences: Vec::with_capacity(outbox.cpus()), lot_slots: outbox.lot().limit() }
    }

    fn fences(&self) -> impl Iterator<Item = (CpuIndex, u64)> + '_ {
        self.parked.iter().flat_map(|_| self.fences.iter().copied())
    }
}

impl OwnedQueue {
    pub(crate) fn park(&mut self, epoch: u64, moves: &[BucketMove], published: &mut Vec<Published>) {
        if self.moving.parked == Some(epoch) {
            return;
        }
        self.moving.fences.clear();
        // All slots up to the ring's tail must be published, because the move waits until the CPU
        // has finished them. Frames that find no room in the ring are dropped before the ring's
        // tail is recorded as a fence.
        self.publish_from(1, published);
        let lot = self.outbox.cpus() as CpuIndex;
        for m in moves {
            self.table.set(usize::from(m.bucket), lot);
            if !self.moving.fences.iter().any(|(cpu, _)| *cpu == m.from) {
                self.moving.fences.push((m.from, self.outbox.look(usize::from(m.from)).tail()));
            }
        }
        // Parked frames need a hash, because the hash determines their new CPU.
        self.rings_in_use = self.table.rings_in_use().max(RingsInUse::Few);
        self.moving.parked = Some(epoch);
    }

    /// Returns true if the old CPUs have finished all frames that they got before parking. A dead
    /// CPU counts as finished. A dead CPU is ordered to discard the frames, in case the CPU
    /// continues to run.
    pub(crate) fn fences_passed(&mut self, dead: impl Fn(CpuIndex) -> bool) -> bool {
        let mut passed = true;
        for (cpu, tail) in self.moving.fences() {
            if dead(cpu) {
                self.outbox.ring(usize::from(cpu)).revoke_until(tail);
            } else {
                passed &= self.outbox.has_passed(cpu, tail);
            }
        }
        passed
    }

    pub(crate) fn fences_open(&self) -> impl Iterator<Item = CpuIndex> + '_ {
        self.moving.fences().filter(move |(cpu, tail)| !self.outbox.has_passed(*cpu, *tail)).map(|(cpu, _)| cpu)
    }

    /// Called when a move has taken too long. Stops parking, and orders the CPUs that the buckets
    /// leave to discard (revoke) all frames that they have not begun to handle. (The lane of a live
    /// queue is empty after a round, and frames of a queue that can wait are never revoked.)
    pub(crate) fn revoke(&mut self) {
        self.outbox.lot().set_limit(1);
        for (cpu, tail) in self.moving.fences() {
            self.outbox.ring(usize::from(cpu)).revoke_until(tail);
        }
    }

    /// Sends the parked frames to the new CPUs of their buckets, in order. Returns false if the
    /// queue can wait and frames are still parked, because the rings of the new CPUs have no room.
    pub(crate) fn release(&mut self, moves: &[BucketMove], published: &mut Vec<Published>) -> bool {
        if !self.is_parked() {
            return true;
        }
        let mut done = true;
        loop {
            if self.limits.can_wait && moves.iter().any(|m| !self.has_room_for_one(usize::from(m.to))) {
                done = self.outbox.lot().occupied() == 0;
                break;
            }
            let Some((frame, arrival)) = self.outbox.unpark(self.pages.blocks.as_mut()) else { break };
            let bucket = bucket_of(FlowHash(frame.hash_or_zero()));
            let target = moves.binary_search_by_key(&bucket, |m| m.bucket).map_or(0, |at| usize::from(moves[at].to));
            self.stage(target, frame, arrival);
        }
        self.ledger.in_lane.set(self.outbox.staying() as u64);
        moves.iter().for_each(|m| self.outbox.touch_one(usize::from(m.to)));
        self.ledger.unparked.raise_to(self.outbox.lot().tail() - self.outbox.lot().occupied());
        if done {
            for m in moves {
                self.table.set(usize::from(m.bucket), m.to);
            }
            self.moving.parked = None;
            self.outbox.lot().set_limit(self.moving.lot_slots);
            self.rings_in_use = self.table.rings_in_use();
        }
        self.publish_from(1, published);
        done
    }

    fn has_room_for_one(&mut self, target: usize) -> bool {
        if !self.outbox.has_room(target, 1) {
            self.reclaim(target);
        }
        self.outbox.has_room(target, 1)
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.moving.parked.is_some()
    }

    /// Called after this CPU was declared dead and is alive again. Drops the frames that this CPU
    /// has staged, parked or kept in its lane. No other CPU has seen these frames, and the CPUs
    /// that were chosen for them are outdated. Steering continues with the current map from buckets
    /// to CPUs (`map`).
    pub(crate) fn start_over(&mut self, map: &[CpuIndex]) {
        let Self { outbox, pages, ledger, .. } = self;
        outbox.withdraw_all(|frame| {
            ledger.dropped.add(DropReason::Revoked, 1);
            pages.take_home(frame);
        });
        ledger.in_lane.set(0);
        while let Some((frame, _)) = outbox.unpark(pages.blocks.as_mut()) {
            ledger.dropped.add(DropReason::Moving, 1);
            pages.take_home(frame);
        }
        ledger.unparked.raise_to(outbox.lot().tail());
        self.outbox.lot().set_limit(self.moving.lot_slots);
        self.moving.parked = None;
        self.adopt(map);
    }
}
