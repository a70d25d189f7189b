//! A queue's part in a move: park, wait for the fences, release.

use super::{OwnedQueue, Parked, Spread};
use crate::ledger::DropReason;
use crate::limits::BUCKET_SHIFT;
use crate::moves::BucketMove;
use crate::rps_map::{CpuIndex, RpsMap};

impl OwnedQueue {
    /// Parks the moving buckets: from here on their frames wait, and the fences say for what.
    pub(crate) fn park<M>(&mut self, epoch: u64, moves: &[BucketMove<M>], mut shown: impl FnMut(usize)) {
        if self.parked.as_ref().is_some_and(|parked| parked.epoch == epoch) {
            return;
        }
        let mut fences: Vec<(CpuIndex, u64)> = Vec::new();
        let lot = self.lot() as CpuIndex;
        for m in moves {
            self.table[usize::from(m.bucket)] = lot;
            if !fences.iter().any(|(cpu, _)| *cpu == m.from) {
                let ring = &mut self.targets[usize::from(m.from)];
                // What the fence waits for must be on its way.
                if ring.publish() {
                    shown(usize::from(m.from));
                }
                fences.push((m.from, ring.tail()));
            }
        }
        // Were there one target only, the lot, its frames would still need the hash by which they are sent on.
        self.spread = Spread::of(&self.table).max(Spread::Few);
        self.parked = Some(Parked { epoch, fences });
    }

    /// Whether all that was sent before the buckets were parked is finished. A dead CPU's fence counts as passed: what it
    /// has not finished it is told to discard, should it come back.
    pub(crate) fn fences_passed(&mut self, dead: impl Fn(CpuIndex) -> bool) -> bool {
        let Some(parked) = &self.parked else { return true };
        let mut passed = true;
        for (cpu, tail) in &parked.fences {
            let ring = &mut self.targets[usize::from(*cpu)];
            if dead(*cpu) {
                ring.revoke_until(*tail);
            } else {
                passed &= ring.passed(*tail);
            }
        }
        passed
    }

    /// The CPUs whose fences have not been passed.
    pub(crate) fn fences_open(&self) -> impl Iterator<Item = CpuIndex> + '_ {
        let fences = self.parked.iter().flat_map(|parked| parked.fences.iter());
        fences.filter(|(cpu, tail)| !self.targets[usize::from(*cpu)].passed(*tail)).map(|(cpu, _)| *cpu)
    }

    /// The move takes too long: parks no more, and tells the old CPUs to discard what they have not begun.
    pub(crate) fn revoke(&mut self) {
        let lot = self.lot();
        self.targets[lot].set_limit(1);
        if let Some(parked) = &self.parked {
            for (cpu, tail) in &parked.fences {
                self.targets[usize::from(*cpu)].revoke_until(*tail);
            }
        }
    }

    /// Sends what was parked to the buckets' new CPUs, in order, and lets the buckets go there directly. Returns false
    /// while some of it has to wait for room.
    pub(crate) fn release<M>(&mut self, moves: &[BucketMove<M>], mut shown: impl FnMut(usize)) -> bool {
        if self.parked.is_none() {
            return true;
        }
        let lot = self.lot();
        let mut done = true;
        loop {
            if self.can_wait && moves.iter().any(|m| self.no_room(usize::from(m.to))) {
                done = self.targets[lot].occupied() == 0;
                break;
            }
            let Some((frame, arrival)) = self.targets[lot].unpark() else { break };
            let bucket = (frame.hash_or_zero() >> BUCKET_SHIFT) as u16;
            // Sorted by bucket; every parked frame is of a bucket of this slice.
            let target = moves.binary_search_by_key(&bucket, |m| m.bucket).map_or(0, |at| usize::from(moves[at].to));
            if let Err(frame) = self.targets[target].stage(frame, arrival) {
                self.stage_slowly(target, frame, arrival);
            }
        }
        let taken = self.targets[lot].tail() - self.targets[lot].occupied();
        self.ledger.unparked.raise_to(taken);
        if done {
            for m in moves {
                self.table[usize::from(m.bucket)] = m.to;
            }
            self.parked = None;
            let capacity = self.targets[lot].capacity();
            self.targets[lot].set_limit(capacity);
            self.spread = Spread::of(&self.table);
        }
        for (at, ring) in self.targets[..lot].iter_mut().enumerate() {
            if ring.publish() {
                shown(at);
            }
        }
        done
    }

    fn no_room(&mut self, target: usize) -> bool {
        if self.targets[target].room() == 0 {
            self.reclaim(target);
        }
        self.targets[target].room() == 0
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// This CPU was declared dead and is back: what it had staged and parked is out of date and drops, and the table is
    /// as it is now in force.
    pub(crate) fn rise(&mut self, map: &RpsMap) {
        let lot = self.lot();
        for at in 0..lot {
            let mut withdrawn = Vec::new();
            self.targets[at].withdraw(|frame| withdrawn.push(frame));
            self.ledger.dropped.add(DropReason::Revoked, withdrawn.len() as u64);
            withdrawn.into_iter().for_each(|frame| self.take_home(frame));
        }
        while let Some((frame, _)) = self.targets[lot].unpark() {
            self.ledger.dropped.add(DropReason::Moving, 1);
            self.take_home(frame);
        }
        self.ledger.unparked.raise_to(self.targets[lot].tail());
        let capacity = self.targets[lot].capacity();
        self.targets[lot].set_limit(capacity);
        self.parked = None;
        self.adopt(map);
    }
}
